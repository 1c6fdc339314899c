"""Why a number of ours is behind the paper's: a code, and the experiment or the page that it stands on.

A code names what is known to set the two numbers apart, the surest first. Only `information` is a proof; `noise` and
`learns-less` are measured, by the same run without noise; of the others the sentence says what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench import data, registry
from bench.boards.board_cells import Row, options
from bench.boards.printed_information import ISSUE
from bench.boards.reported import Line
from bench.boards.wide import needs
from bench.config import TIERS
from bench.errors import BenchError
from bench.storage.options import BUDGET, Changed

CLOSE = 0.02
"""Shortfalls of accuracy up to this need no reason: two points."""
WITH_INGREDIENT = {"dgd": "recipes/dgd-ablations.toml", "dp-dfd": "recipes/ingredients.toml"}
"""Methods whose generator, as their papers print it, learns from the unprotected teacher, to what shows ours with it
(docs/methods.md)."""


@dataclass(frozen=True)
class Reason:
    """A code of `CODES`, and what a reader can look up or run.

    Attributes:
        experiment: a page of docs/ or a command.
    """

    code: str
    experiment: str


CODES = {
    "information": "The settings that the paper prints let through less information than its printed number needs, "
    "whatever the algorithm. This is proved.",
    "noise": "The same run of ours without noise, at its size or a smaller one, is as good as the printed number: the "
    "difference is what the noise of the claimed epsilon costs. The paper's noise may be less for the same claim "
    "(docs/baselines.md).",
    "teacher": "The undefended teacher that ours was made of is itself behind the printed number of a student, by more "
    "than two points and by half of the difference at least: better teachers of the same data are in "
    "recipes/teachers.toml, where there are any.",
    "data-subset": "Ours had other data than the paper: fewer images, another size, or decoded from JPEG.",
    "unprotected-generator": "The paper's generator learns from the unprotected teacher, which no epsilon covers; ours "
    "learns from protected answers alone. At tier quick the unprotected one did not help either.",
    "learns-less": "The same run of ours without noise is more than two points behind as well: at its size ours does "
    "not learn what the paper's does, with or without privacy.",
    "size": "Ours was run at a smaller size than the paper's. Whether size explains the difference was not tried.",
    "unknown": "Ours was run at the paper's size and is still behind, and was not run without noise at that size: what "
    "explains it is not known.",
}
"""Code to what it means; the first that fits is given."""


def without_noise(rows: Iterable[Row]) -> dict[object, Row]:
    """The rows of `--epsilon inf`, by what they are besides: the controls of the rows with noise."""
    return {
        _but_noise(row): row
        for row in rows
        if _is_without_noise(row) and not _is_older(row) and str(row.get("accuracy_mean") or "")
    }


def reason(line: Line, controls: Mapping[object, Row] | None = None) -> Reason | None:
    """What sets a number of ours apart from the printed one, where it is more than `CLOSE` behind; else None.

    Args:
        controls: of the boards that the line's row is of, by `without_noise`.
    """
    if line.row is None or line.difference is None or line.difference >= -CLOSE:
        return None
    entry, row = line.entry, line.row
    if ISSUE in entry.issues:
        return Reason("information", "docs/information.md")
    is_noisy = not (_is_without_noise(row) or _never_has_noise(row) or _is_older(row))  # or it is its own control
    control = (controls or {}).get(_but_noise(row)) if is_noisy else None
    smaller = _of_smaller_size(row, controls or {}) if is_noisy else []
    for found in ([] if control is None else [control]) + smaller:
        if float(found["accuracy_mean"]) >= entry.value - CLOSE:
            return Reason("noise", _reached(found, entry.dataset))
    if _is_behind(row.get("teacher_accuracy"), entry.value, -line.difference / 2) and _asks_teacher(row):
        return Reason("teacher", "docs/data.md")
    if _is_other_data(str(row["dataset"]), entry.dataset):
        return Reason("data-subset", "docs/data.md")
    if entry.method in WITH_INGREDIENT and row["variant"] == "working":
        return Reason("unprotected-generator", f"bench sweep {WITH_INGREDIENT[entry.method]}")
    if control is not None:
        return Reason("learns-less", _reached(control, entry.dataset))
    if row["tier"] == "paper":
        return Reason("unknown", command(row, entry.dataset, {"epsilon": "inf"}))
    return Reason("size", command({**row, "tier": "paper"}, entry.dataset, _options(row)["budget"]))


def _is_behind(accuracy: Any, printed: float, least: float) -> bool:
    """Whether an accuracy, empty or NaN where there is none, is more than `CLOSE` and `least` below what is printed."""
    return str(accuracy or "") not in ("", "nan") and float(accuracy) < printed - max(CLOSE, least)


def _asks_teacher(row: Row) -> bool:
    """Whether the method of a row asks the undefended teacher, at its options; of one that is not installed, no."""
    return "teacher" in (needs(row) or ())


def _of_smaller_size(row: Row, controls: Mapping[object, Row]) -> list[Row]:
    """The controls of smaller tiers, whatever their teachers: what reaches print there needs no size."""
    size, alike = TIERS.index(str(row["tier"])), _but_noise({**row, "tier": "", "teacher": ""})
    return [
        each
        for each in controls.values()
        if TIERS.index(str(each["tier"])) < size and _but_noise({**each, "tier": "", "teacher": ""}) == alike
    ]


def _is_other_data(ours: str, theirs: str) -> bool:
    return ours != theirs and data.base_name(ours) == theirs


def _is_older(row: Row) -> bool:
    return "older-version" in str(row.get("flags")).split()


def _is_without_noise(row: Row) -> bool:
    epsilon = _options(row)["budget"].get("epsilon")
    return epsilon is not None and math.isinf(float(epsilon))


def _never_has_noise(row: Row) -> bool:
    """Of `--epsilon none`, of a method that has no noise for a budget to decide."""
    budget = _options(row)["budget"]
    promised_nothing = "epsilon" in budget and budget["epsilon"] is None
    return promised_nothing and not _noises(str(row.get("method")), str(row.get("variant")))


def _options(row: Row) -> Changed:
    cell = row.get("options")
    return options(cell if isinstance(cell, str) else "")


def _but_noise(row: Row) -> object:
    """All of a row that its accuracy comes of, but for the budget and a noise that was given instead of one; the attack
    looks at what is released."""
    same = ("dataset", "method", "variant", "tier", "split", "teacher", "student")
    noise = _noises(str(row.get("method")), str(row.get("variant")))
    own = {
        group: sorted((name, value) for name, value in held.items() if group != "method" or name not in noise)
        for group, held in _options(row).items()
        if group not in ("budget", "attack", "evaluator")
    }
    return (*(str(row.get(name)) for name in same), str(sorted(own.items())))


@cache
def _noises(method: str, variant: str) -> frozenset[str]:
    """The options of a method that a budget decides, such as sigma; none of one that is not installed."""
    try:
        return frozenset(o.name for o in registry.describe("method", method, variant).options if o.solved)
    except BenchError:
        return frozenset()


def _reached(control: Row, dataset: str) -> str:
    """The command of a control, and what it reaches."""
    return f"{command(control, dataset, {'epsilon': 'inf'})} # {100 * float(control['accuracy_mean']):.1f} %"


def command(row: Row, dataset: str, budget: Mapping[str, Any]) -> str:
    """What makes the release of a row again, on the data set of a paper, with these options of the budget and its unit.

    >>> options = '{"budget": {"epsilon": 1.0}, "method": {"mode": "label"}}'
    >>> row = {"method": "dpsd", "variant": "working", "tier": "paper", "teacher": "resnet34", "options": options}
    >>> command(row, "mnist", {"epsilon": "inf"}).removeprefix("bench run --method dpsd --variant working ")
    '--dataset mnist --teacher resnet34 --tier paper --epsilon inf --method.mode label'
    """
    own = _options(row)
    limits = {"unit": own["budget"].get("unit", "example"), **budget}
    usual = {"teacher": "resnet18", "tier": "quick", "unit": "example", "solve": "none"}
    named = {"teacher": row.get("teacher", ""), "tier": row["tier"]} | {
        name: limits[name] for name in BUDGET if name in limits
    }
    words = [f"bench run --method {row['method']} --variant {row['variant']} --dataset {dataset}"]
    given = {name: typed(value) for name, value in named.items()}
    words += [f"--{name} {value}" for name, value in given.items() if value not in ("", "nan", usual.get(name))]
    for group in ("method", "teacher"):
        words += [f"--{group}.{name} {typed(value)}" for name, value in own[group].items()]
    return " ".join(words)


def typed(value: Any) -> str:
    """An option's value as the command takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
