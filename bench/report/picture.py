"""One PNG of a data set for a README: accuracy against accounted epsilon, and against an attack's success."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.core.epsilon import format_epsilon
from bench.errors import BenchError
from bench.report import points
from bench.report.charts import Styles, styles
from bench.report.glossary import UNITS
from bench.report.points import Point
from bench.storage.records import Record

COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "X",
    "wedge": "v",
    "star": "*",
    "pentagon": "p",
    "pointer": "<",
}
PANEL, ABOVE_PANELS, UNDER_PANELS, LEGEND_ROW = 4.0, 0.7, 0.65, 0.185
"""Inches: height of the panels, position of the title, the axes' labels, and a row of the legend."""
LEGEND_COLUMNS = 7
BEYOND, WIDE = 10.0, 3.0
"""Position of infinity, and end of its strip, as multiples of the largest finite epsilon."""


def draw(path: Path, title: str, records: Sequence[Record], attack: str, unit: str = "example") -> None:
    """Write the picture to a PNG file, the same bytes for the same records; arguments as in `compose`."""
    figure = compose(title, records, attack, unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def compose(title: str, records: Sequence[Record], attack: str, unit: str = "example") -> Figure:
    """Draw two panels side by side: accuracy against accounted epsilon, and against the success of an attack.

    Args:
        title: one line above the panels.
        records: records of one data set, tier and split.
        attack: the attack of the right panel.
        unit: unit of the accounted epsilon in the left panel.

    Raises:
        BenchError: no run has an account for that unit, or no run has that attack.
    """
    left = [panel for panel in points.epsilons(records) if (panel.what, panel.unit) == ("accounted", unit)]
    right = [panel for panel in points.attacks(records) if panel.attack == attack]
    if not left or not right:
        missing = f"accounted epsilon per {unit}" if not left else f"attack '{attack}'"
        raise BenchError(f"--picture: {title} have no {missing}; run one and publish it")
    look = styles(point.method for point in (*left[0].points, *right[0].points))
    below = UNDER_PANELS + LEGEND_ROW * math.ceil(len(look) / LEGEND_COLUMNS)
    height = below + PANEL + ABOVE_PANELS
    figure = Figure(figsize=(11, height), dpi=130, facecolor="white")
    figure.text(0.06, 1 - ABOVE_PANELS / 3 / height, title, fontsize=13, weight="bold", va="center")
    one, other = (figure.add_axes((left, below / height, 0.43, PANEL / height)) for left in (0.06, 0.55))
    _epsilons(one, left[0].points, look, unit)
    _attacked(other, right[0], look)
    handles = [
        Line2D([], [], linestyle="none", marker=MARKERS[shape], color=COLOURS[colour], markersize=6.5, label=name)
        for name, (colour, shape) in look.items()
    ]
    figure.legend(
        handles=handles, loc="lower center", ncols=LEGEND_COLUMNS, fontsize=8.5, frameon=False, bbox_to_anchor=(0.5, 0)
    )
    return figure


def _epsilons(axes: Axes, found: Sequence[Point], look: Styles, unit: str) -> None:
    finite = [point.x for point in found if math.isfinite(point.x) and point.x > 0] or [1.0]
    end = max(finite) * BEYOND
    endless = sorted((point for point in found if math.isinf(point.x)), key=lambda point: point.y)
    share = {id(point): (index + 0.5) / len(endless) for index, point in enumerate(endless)}
    places = [end * WIDE ** (2 * share[id(point)] - 1) if math.isinf(point.x) else point.x for point in found]
    axes.set_xscale("log")
    axes.axvspan(end / WIDE, end * WIDE, color="0.94", zorder=0)
    bottom = axes.get_xaxis_transform()
    axes.text(end, 0.015, format_epsilon(math.inf), ha="center", fontsize=8, color="0.35", transform=bottom)
    axes.set_xlim(min(finite) / 2, end * WIDE)
    axes.set_xticks([tick for tick in axes.get_xticks() if min(finite) / 2 <= tick < end / WIDE])
    axes.set_title("What can be proved (left is safer, up is more useful)", fontsize=10, loc="left")
    axes.set_xlabel(f"accounted epsilon, {UNITS[unit]}", fontsize=9)
    _scatter(axes, found, places, look)


def _attacked(axes: Axes, panel: points.Panel, look: Styles) -> None:
    for label, level in panel.lines.items():
        axes.axvline(level, color="0.5", linestyle=":", linewidth=1, zorder=0)
        axes.text(
            level, 0.015, label, rotation=90, fontsize=8, color="0.35", ha="right", transform=axes.get_xaxis_transform()
        )
    axes.set_title("What an attack finds (left is safer, up is more useful)", fontsize=10, loc="left")
    axes.set_xlabel(f"{panel.what} of {panel.attack} on the student; hollow: its power is not proved", fontsize=9)
    _scatter(axes, panel.points, [point.x for point in panel.points], look)


def _scatter(axes: Axes, found: Iterable[Point], places: Iterable[float], look: Styles) -> None:
    for point, x in zip(found, places, strict=True):
        colour, shape = look[point.method]
        face = COLOURS[colour] if point.proven else "none"
        axes.errorbar(
            x, point.y, yerr=point.spread, fmt=MARKERS[shape], markersize=6.5, color=COLOURS[colour],
            markerfacecolor=face, alpha=0.85, elinewidth=1,
        )  # fmt: skip
    axes.set_ylabel("accuracy of the student", fontsize=9)
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=8)
