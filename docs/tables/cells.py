"""How a number is written in a cell: the filters of docs/templates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from statistics import mean, median, stdev
from typing import Any

from bench import registry
from bench.boards.flags import standing
from bench.config import STUDENT
from bench.escape import visible
from bench.storage.options import BUDGET, Changed
from bench.storage.records import Record
from docs.tables.boards import TEACHERS, Row, older, own, published, runs, seeds


def cell(value: object) -> str:
    """Text of a cell, which has markup of this project: only what ends a cell or hides in it is escaped."""
    return visible(str(value)).replace("|", "\\|")


def accuracy(row: Row | None) -> str:
    """Mean and standard deviation of a row, in percent."""
    if row is None:
        return ""
    deviation = f" ± {100 * float(row['accuracy_std']):.1f}" if row["accuracy_std"] else ""
    return f"{100 * float(row['accuracy_mean']):.1f}{deviation} %"


def with_seeds(row: Row | None) -> str:
    """Accuracy, and how many seeds where they are not three."""
    count = 3 if row is None else seeds(row)
    return accuracy(row) + ("" if count == 3 else f" ({count} seed{'s' * (count > 1)})")


def of_version(row: Row | None) -> str:
    """ ", older version" where the method or the attack has changed since; else nothing."""
    return ", older version" if row is not None and older(row) else ""


def of_method(row: Row) -> str:
    """ ", older version" where the method has changed since, even if the attack has not; else nothing."""
    today = registry.describe("method", row["method"], row["variant"]).facts["version"]
    return ", older version" if min(run.spec["release"]["version"] for run in runs(row)) < today else ""


def _epsilon(number: str, unit: str) -> str:
    if not unit:
        return "none"
    value = float(number)
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if value > 100 else f"{value:.3g}"


def claimed(row: Row) -> str:
    """The claim, with its unit where that is not a private record."""
    unit = {"query": " per answer", "label": " per label"}.get(row["claim_unit"], "")
    return _epsilon(row["epsilon_claimed"], row["claim_unit"]) + unit


def accounted(row: Row) -> str:
    """The account, with its unit where that is not a private record, and whether its noise was drawn in float32."""
    unit = {"label": " per label", "client": " per client"}.get(row["unit"], "")
    value = _epsilon(row["epsilon_accounted"], row["unit"])
    coarse = value not in ("none", "infinite") and "float32-noise" in row["flags"].split()
    return value + unit + (", float32 noise" if coarse else "")


def typed(options: Changed) -> str:
    """Options as the command takes them; that nothing is solved for goes without saying."""
    words = []
    for group, held in options.items():
        for name, value in sorted(held.items(), key=lambda item: BUDGET.index(item[0]) if group == "budget" else 0):
            if (name, value) != ("solve", "none"):
                flag = name if group == "budget" else f"{group}.{name}"
                text = str(value).lower() if value is None or isinstance(value, bool) else str(value).removesuffix(".0")
                words.append(f"--{flag} {text}")
    return "`" + " ".join(words) + "`" if words else ""


def sized(row: Row) -> str:
    """The options of a row as the command takes them, with the tier, the teacher and the student that are not usual."""
    named = "" if row["tier"] == "quick" else f"`--tier {row['tier']}`"
    taught = "" if row["teacher"] == TEACHERS.get(row["tier"]) else f"`--teacher {row['teacher']}`"
    other = row["student"] != STUDENT and (taught or row["student"] != row["teacher"]) and _converts(row["method"])
    student = f"`--student {row['student']}`" if other else ""
    return " ".join(filter(None, (named, taught, student, typed(own(row)))))


@cache
def _converts(method: str) -> bool:
    """Whether the student of a row is the run's `--student`, and no network of the method's own or the teacher's."""
    builds = getattr(registry.load("method", method), "trains_student", True) is not False
    return builds and any((row["method"], row["student"]) == (method, STUDENT) for row in published())


def control(mine: list[Record]) -> str:
    """The accuracy of the control that asks no teacher, where there is one."""
    found = [value for run in mine if (value := run.metrics.get("control_accuracy")) is not None]
    return f" (control {100 * mean(found):.1f})" if len(found) == len(mine) else ""


def minutes(mine: list[Record]) -> str:
    """Duration of the release: the median of the runs on a CPU; if there is none, of those on a GPU, which is said."""
    here = [run for run in mine if run.provenance["device"].startswith("cpu")]
    took = median(run.provenance["seconds"]["release"] for run in here or mine) / 60
    return f"{took:.1f}" + ("" if here else ", GPU")


def printed(row: Row) -> str:
    """The number that a paper prints."""
    value = row["reported_accuracy"]
    return f"{100 * float(value):.1f} ({row['reported_source']})" if value else ""


def spread(accuracies: list[float]) -> str:
    """Mean and deviation in percent, with the number of seeds if that is not three; "" of none."""
    if not accuracies:
        return ""
    count = "" if len(accuracies) == 3 else f" ({len(accuracies)} seeds)" if len(accuracies) > 1 else " (1 seed)"
    deviation = f" ± {100 * stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.1f}{deviation} %{count}"


def percent(value: float | str | None) -> str:
    """A share in percent, or that there is none."""
    return "-" if value in (None, "") else f"{100 * float(value):.1f} %"  # type: ignore[arg-type]


def interval(metrics: dict[str, Any], key: str) -> str:
    """A metric with its 95 % interval."""
    return f"{metrics[key]:.3f} [{metrics[f'{key}.lo']:.2f}, {metrics[f'{key}.hi']:.2f}]"


def gain(metrics: dict[str, Any], key: str) -> str:
    """How far a metric is above its floor, with the interval, in points."""
    value, low, high = (100 * metrics[f"{key}above_floor{end}"] for end in ("", ".lo", ".hi"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def joined(values: Iterable[float | None], places: int) -> str:
    """Numbers with slashes between them."""
    return " / ".join("-" if value is None else f"{value:.{places}f}" for value in values)


def power(mine: Iterable[Record]) -> str:
    """Whether the attack proved its power in every run."""
    return " / ".join(sorted({standing(run) or run.status for run in mine}))


FILTERS = (
    accuracy, with_seeds, of_version, of_method, claimed, accounted, typed, sized, control, minutes, printed, spread,
    percent, interval, gain, joined, power,
)  # fmt: skip
