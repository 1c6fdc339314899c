"""What a figure of a paper is: its pictures, the runs that each is of, what is printed of it, and what the text says.

The papers print few of their figures' points. What they do print, in a sentence or in a table of the same experiment,
is drawn beside ours: a point, a level where they give no place on the axis, an upright line where they name a place
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.papers.figures.claims import Says

Axis = Literal["log", "linear", "names"]
CLAIMED = "epsilon"
"""The claimed epsilon, as an axis; any other axis is an option of the method."""
WHICH = "method"
"""As an axis: which method it is, and which of `Sweep.series` it has."""
TEACHER = "teacher"


@dataclass(frozen=True)
class Printed:
    """Which rows of reported.csv are drawn, and where.

    Attributes:
        table: the beginning of the table's or the sentence's name.
        method: in the papers' own names; "" for any.
        metric: of the row.
        at: "epsilon", a key of the row's setting, "value" (the number is a place on the axis) or "" (a level).
        epsilon: the row's own, as a number; None for any.
        unit: what the paper says is protected; "" for any.
    """

    table: str
    method: str = ""
    metric: str = "accuracy"
    at: str = CLAIMED
    epsilon: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Sweep:
    """One picture of a figure, drawn for every data set that has runs or printed numbers of it.

    Attributes:
        x: `CLAIMED`, `WHICH`, `TEACHER` or an option of the methods.
        label: of that axis.
        y: "accuracy", `CLAIMED`, or another number of a record.
        series: options whose value tells lines apart.
        where: options that a run must have, by their values.
        epsilon: the budget that it must have, where the figure is of one; None for any.
        attack: whose runs are meant, where the number is the attack's.
        endless: from where on a place is as good as infinite, and what the axis calls it.
        datasets: only these of the papers' data sets; () for all.
        says: what the paper's text says of it.
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
    """A figure of a paper; `pictures` names the kind of images of runs of `methods` that it shows besides."""

    paper: str
    name: str
    sweeps: tuple[Sweep, ...] = ()
    pictures: str = ""
    methods: tuple[str, ...] = ()
    note: str = ""


SATURATION = "synthetic_samples_at_convergence"
"""What the papers call the place on an axis from which accuracy is flat."""
