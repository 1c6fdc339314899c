"""How a number stands in a cell, and cells in a table of Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from itertools import compress
from statistics import mean, stdev
from typing import Any

from bench import registry
from bench.boards.flags import standing
from bench.config import STUDENT
from bench.escape import visible
from bench.storage.options import BUDGET, Changed
from bench.storage.records import Record
from docs.tables.boards import TEACHERS, Row, own, published


def accuracy(row: Row | None) -> str:
    """Mean and standard deviation of a row, in percent."""
    if row is None:
        return ""
    spread = f" ± {100 * float(row['accuracy_std']):.1f}" if row["accuracy_std"] else ""
    return f"{100 * float(row['accuracy_mean']):.1f}{spread} %"


def with_seeds(row: Row | None) -> str:
    """Accuracy, and how many seeds where they are not three."""
    if row is None:
        return ""
    count = len(row["seeds"].split())
    return accuracy(row) + ("" if count == 3 else f" ({count} seed{'s' * (count > 1)})")


def epsilon(row: Row, number: str, unit: str) -> str:
    """A claimed or accounted epsilon of a row."""
    if not row[unit]:
        return "none"
    if math.isinf(float(row[number])):
        return "infinite"
    value = float(row[number])
    return f"{value:,.0f}" if value > 100 else f"{value:.3g}"


def claimed(row: Row) -> str:
    """The claim, with its unit where that is not a private record."""
    unit = {"query": " per answer", "label": " per label"}.get(row["claim_unit"], "")
    return epsilon(row, "epsilon_claimed", "claim_unit") + unit


def accounted(row: Row) -> str:
    """The account, with its unit where that is not a private record, and whether its noise was drawn in float32."""
    unit = {"label": " per label", "client": " per client"}.get(row["unit"], "")
    value = epsilon(row, "epsilon_accounted", "unit")
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
    other = row["student"] != STUDENT and (taught or row["student"] != row["teacher"]) and converts(row["method"])
    student = f"`--student {row['student']}`" if other else ""
    return " ".join(filter(None, (named, taught, student, typed(own(row)))))


@cache
def converts(method: str) -> bool:
    """Whether the student of a row is the run's `--student`, and no network of the method's own or the teacher's."""
    builds = getattr(registry.load("method", method), "trains_student", True) is not False
    return builds and any((row["method"], row["student"]) == (method, STUDENT) for row in published())


def control(mine: list[Record]) -> str:
    """The accuracy of the control that asks no teacher, where there is one."""
    found = [value for r in mine if (value := r.metrics.get("control_accuracy")) is not None]
    return f" (control {100 * mean(found):.1f})" if len(found) == len(mine) else ""


def printed(row: Row) -> str:
    """What a paper prints."""
    value = row["reported_accuracy"]
    return f"{100 * float(value):.1f} ({row['reported_source']})" if value else ""


def spread(accuracies: list[float]) -> str:
    """Mean and deviation in percent, with the number of seeds if that is not three; "" of none."""
    if not accuracies:
        return ""
    seeds = "" if len(accuracies) == 3 else f" ({len(accuracies)} seeds)" if len(accuracies) > 1 else " (1 seed)"
    deviation = f" ± {100 * stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.1f}{deviation} %{seeds}"


def over_seeds(values: list[float | None], sign: str = "") -> str:
    """Mean and standard deviation of a number that every one of several seeds has."""
    held = [value for value in values if value is not None]
    if not len(held) == len(values) > 1:
        raise ValueError(f"{values}: expected numbers of two or more seeds")
    return f"{mean(held):{sign}.3f} ± {stdev(held):.3f}"


def percent(value: float | None) -> str:
    """A share in percent, or that there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(metrics: dict[str, Any], key: str) -> str:
    """A metric with its 95 % interval."""
    return f"{metrics[key]:.3f} [{metrics[f'{key}.lo']:.2f}, {metrics[f'{key}.hi']:.2f}]"


def joined(values: Iterable[float | None], places: int) -> str:
    """Numbers with slashes between them."""
    return " / ".join("-" if value is None else f"{value:.{places}f}" for value in values)


def power(runs: Iterable[Record]) -> str:
    """Whether the attack proved its power in every run."""
    return " / ".join(sorted({standing(run) or run.status for run in runs}))


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown. Cells have markup of this project, so that only what ends a cell or hides in it is escaped."""
    rows = [[visible(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)


def without_empty(heads: list[str], rows: list[list[str]]) -> str:
    """The same, without the columns of which no row says anything."""
    said = [any(cells) for cells in zip(*rows, strict=True)] or [True] * len(heads)
    return table(list(compress(heads, said)), [list(compress(row, said)) for row in rows])
