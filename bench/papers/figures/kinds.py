"""Read the descriptions of the papers' figures (`figures.toml`): pictures with their runs and published numbers.

The papers print few of their figures' points. A number that they do print, in a sentence or in a table of the same
experiment, is drawn with ours: as a point; as a horizontal level if its x is not given; as a vertical line if only its
x is given.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.papers.figures.claims import Says
from bench.papers.printed_numbers import PrintedNumber

FILE = Path(__file__).with_name("figures.toml")
Axis = Literal["log", "linear", "names"]
CLAIMED = "epsilon"
"""The claimed epsilon, as an axis; any other axis is an option of the method."""
WHICH = "method"
"""As an axis: the method, with its values of the options in `Sweep.series`."""
TEACHER = "teacher"


@dataclass(frozen=True)
class Printed:
    """A rule that selects published numbers and their position in a picture.

    Attributes:
        table: the beginning of the table's or the sentence's name.
        method: name of the method in the papers; "" for any.
        metric: metric of the number.
        at: its x: "epsilon", a key of the number's setting, "value" (the number itself is an x) or "" (no x: a level).
        epsilon: epsilon of the number; None for any.
        unit: the unit that the paper protects; "" for any.
    """

    table: str
    method: str = ""
    metric: str = "accuracy"
    at: str = CLAIMED
    epsilon: float | None = None
    unit: str = ""

    def selects(self, number: PrintedNumber, paper: str) -> bool:
        """Whether the rule draws a published number in a figure of `paper`."""
        is_sentence = self.table.startswith("text") and number.table.startswith(self.table)
        return (
            (number.table == self.table or is_sentence)
            and number.paper == paper
            and number.metric == self.metric
            and self.method in ("", number.named)
            and self.unit in ("", number.unit)
            and self.epsilon in (None, number.epsilon)
            and (self.at in ("", "value", CLAIMED) or self.at in dict(number.setting))
            and (self.at != CLAIMED or number.epsilon is not None)
        )


@dataclass(frozen=True)
class Sweep:
    """One picture of a figure, drawn for every data set that has runs or published numbers of it.

    Attributes:
        x: `CLAIMED`, `WHICH`, `TEACHER` or an option of the methods.
        label: label of that axis.
        y: "accuracy", `CLAIMED`, or another number of a record.
        series: options whose values distinguish lines.
        where: options that a run must have, with their values.
        epsilon: the budget that a run must have; None for any.
        attack: the attack that a run must have, if y is a number of an attack; "" for any.
        endless: values of x from here on are drawn at the end of the axis, with the label `beyond`.
        datasets: only these of the papers' data sets; () for all.
        says: the paper's sentences about it.
    """

    title: str
    methods: tuple[str, ...]
    x: str
    label: str
    axis: Axis = "linear"
    y: str = "accuracy"
    series: tuple[str, ...] = ()
    where: Mapping[str, object] = field(default_factory=dict)
    epsilon: float | None = None
    attack: str = ""
    endless: float = math.inf
    beyond: str = "∞"
    datasets: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()
    says: tuple[Says, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of a paper; it may also show images of runs of `methods`, of the kind `pictures`."""

    paper: str
    name: str
    sweeps: tuple[Sweep, ...] = ()
    pictures: str = ""
    methods: tuple[str, ...] = ()
    note: str = ""


def read_figures(path: Path = FILE) -> tuple[Figure, ...]:
    """Read the figures. Raises pydantic's ValidationError, which names the key, for a wrong file."""
    from pydantic import ConfigDict, TypeAdapter, with_config

    for kind in (Printed, Sweep, Says, Figure):
        with_config(ConfigDict(extra="forbid"))(kind)
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return TypeAdapter(tuple[Figure, ...]).validate_python(content["figures"])
