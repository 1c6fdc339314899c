"""Format numbers in cells: the filters of docs/templates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from statistics import mean, median, stdev

from bench import registry
from bench.boards.flags import standing
from bench.boards.results import Result
from bench.config import STUDENT
from bench.escape import visible
from bench.storage.records import BUDGET, Changed, Record
from docs.tables.boards import TEACHERS, own, published, published_number, runs


def cell(value: object) -> str:
    """Escape the text of a cell, which has markup of this project: only a cell's end and hidden characters."""
    return visible(str(value)).replace("|", "\\|")


def accuracy(result: Result | None) -> str:
    """Format mean and standard deviation in percent; "" without a result."""
    if result is None or result.accuracy is None:
        return ""
    deviation = "" if result.deviation is None else f" ± {100 * result.deviation:.1f}"
    return f"{100 * result.accuracy:.1f}{deviation} %"


def with_seeds(result: Result | None) -> str:
    """Format the accuracy, with the number of seeds if that is not three."""
    count = 3 if result is None else len(result.runs)
    return accuracy(result) + ("" if count == 3 else f" ({count} seed{'s' * (count > 1)})")


def of_version(result: Result | None) -> str:
    """Return ", older version" if the method or the attack has changed since; else nothing."""
    return ", older version" if result is not None and result.is_older else ""


def of_method(result: Result) -> str:
    """Return ", older version" if the method has changed since, even if the attack has not; else nothing."""
    today = registry.describe("method", result.release.method, result.release.variant).facts["version"]
    return ", older version" if min(run.spec["release"]["version"] for run in runs(result)) < today else ""


def claimed(result: Result) -> str:
    """Format the claim, with its unit if that is not a private record."""
    unit = result.release.claimed_unit
    return _epsilon(result.claimed, unit) + {"query": " per response", "label": " per label"}.get(unit, "")


def accounted(result: Result) -> str:
    """Format the account, with its unit if that is not a private record, and whether its noise was drawn in
    float32."""
    unit = result.release.unit
    value = _epsilon(result.accounted, unit)
    is_coarse = value not in ("none", "infinite") and "float32-noise" in result.flags
    unit_words = {"label": " per label", "client": " per client"}.get(unit, "")
    return value + unit_words + (", float32 noise" if is_coarse else "")


def _epsilon(value: float | None, unit: str) -> str:
    if not unit or value is None:
        return "none"
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if value > 100 else f"{value:.3g}"


def typed(options: Changed) -> str:
    """Format options as the command takes them; `--solve none` is left out."""
    words = []
    for group, held in options.items():
        for name, value in sorted(held.items(), key=lambda item: BUDGET.index(item[0]) if group == "budget" else 0):
            if (name, value) != ("solve", "none"):
                flag = name if group == "budget" else f"{group}.{name}"
                text = str(value).lower() if value is None or isinstance(value, bool) else str(value).removesuffix(".0")
                words.append(f"--{flag} {text}")
    return "`" + " ".join(words) + "`" if words else ""


def sized(result: Result) -> str:
    """Format the options of a release as the command takes them, with an unusual tier, teacher or student."""
    row = result.release
    tier = "" if row.tier == "quick" else f"`--tier {row.tier}`"
    teacher = "" if row.teacher == TEACHERS.get(row.tier) else f"`--teacher {row.teacher}`"
    has_other = row.student != STUDENT and (teacher or row.student != row.teacher) and _converts(row.method)
    student = f"`--student {row.student}`" if has_other else ""
    return " ".join(filter(None, (tier, teacher, student, typed(own(result)))))


@cache
def _converts(method: str) -> bool:
    """Whether the student of a result is the run's `--student`, and no network of the method's own or the teacher's."""
    is_trained = getattr(registry.load("method", method), "trains_student", True) is not False
    networks = {(each.release.method, each.release.student) for each in published()}
    return is_trained and (method, STUDENT) in networks


def control(mine: list[Record]) -> str:
    """Format the accuracy of the baseline without the teacher, where there is one."""
    found = [value for run in mine if (value := run.metrics.get("control_accuracy")) is not None]
    return f" (control {100 * mean(found):.1f})" if len(found) == len(mine) else ""


def minutes(mine: list[Record]) -> str:
    """Format the minutes of the release: the median of the runs on a CPU, or else of those on a GPU, marked."""
    here = [run for run in mine if run.provenance["device"].startswith("cpu")]
    took = median(run.provenance["seconds"]["release"] for run in here or mine) / 60
    return f"{took:.1f}" + ("" if here else ", GPU")


def printed(result: Result) -> str:
    """Format the published number that a result is compared with."""
    number = published_number(result)
    return "" if number is None else f"{100 * number.value:.1f} ({number.source})"


def spread(accuracies: list[float]) -> str:
    """Format mean and deviation in percent, with the number of seeds if that is not three; "" without accuracies."""
    if not accuracies:
        return ""
    count = "" if len(accuracies) == 3 else f" ({len(accuracies)} seeds)" if len(accuracies) > 1 else " (1 seed)"
    deviation = f" ± {100 * stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.1f}{deviation} %{count}"


def percent(value: float | None) -> str:
    """Format a share in percent; "-" without one."""
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(metrics: dict[str, float], key: str) -> str:
    """Format a metric with its 95 % interval."""
    return f"{metrics[key]:.3f} [{metrics[f'{key}.lo']:.2f}, {metrics[f'{key}.hi']:.2f}]"


def gain(metrics: dict[str, float], key: str) -> str:
    """Format the gain over retrieval in points, with the interval."""
    value, low, high = (100 * metrics[f"{key}above_floor{end}"] for end in ("", ".lo", ".hi"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def joined(values: Iterable[float | None], places: int) -> str:
    """Join numbers with slashes."""
    return " / ".join("-" if value is None else f"{value:.{places}f}" for value in values)


def power(mine: Iterable[Record]) -> str:
    """Format whether the attack proved its power in every run."""
    return " / ".join(sorted({standing(run) or run.status for run in mine}))


FILTERS = (
    accuracy, with_seeds, of_version, of_method, claimed, accounted, typed, sized, control, minutes, printed, spread,
    percent, interval, gain, joined, power,
)  # fmt: skip
