"""Charts of the papers' figures and tables: print and ours in one picture, as SVG.

Why no plotting library in the browser: Vega-Lite and Observable Plot draw no mark that these charts need and lack here,
and each page would first have to load one of them, hundreds of kilobytes of a third party's script that the repository
may not hold and that would have to be fetched whenever a report is made. What is drawn here is markup of a few
kilobytes, the same bytes for the same records, whose marks are links that a keyboard reaches and a screen reader says,
and it follows the page's colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bench.report.axes import Scale, linear, logarithmic, named, share
from bench.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    LINE,
    NAME_HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Box,
    Styles,
    grid,
    joined,
    legend,
    mark,
    overlap,
    placed,
    styles,
    tag,
)  # fmt: skip
from bench.report.points import Point
from bench.report.sweep_points import OTHERS, Picture

SIDES = {"epsilon": "ε claimed", "inception_e6": "(IS-1) 10⁶"}
"""What is drawn upwards, where it is no accuracy."""
CLOSE = 0.02
PRINTED_COLOUR = 7


def sweep_figure(picture: Picture) -> str:
    """One picture of a figure with a legend of its lines."""
    x = _across(picture)
    y = _upwards(picture)
    height = HEIGHT + int(NAME_HEIGHT * max(map(len, x.names), default=0))
    look = _look(picture.points)
    sweep = picture.sweep
    content = grid(x, y, sweep.label, SIDES.get(sweep.y, "accuracy"), height) + _printed_lines(picture, x, y)
    if not x.names:
        content += joined(picture.points, x, y, look)
    places = placed(picture.points, x, y)
    content += "".join(mark(point, at, x, y, look) for point, at in zip(picture.points, places, strict=True))
    title = f"{picture.dataset}: {sweep.title}"
    drawn = tag("svg", content, viewBox=f"0 0 {WIDTH} {height}", role="group", aria_label=title)
    names = sorted({point.method for point in picture.points}, key=lambda name: (name == OTHERS, name))
    below = legend(names, look) if names else ""
    return tag("figure", tag("figcaption", tag("strong", escape(title))) + drawn + below, class_="panel")


def _look(points: Sequence[Point]) -> Styles:
    """Lines in the order of their names; printed ones are grey, and so is what is beside them."""
    ours = styles(point.method for point in points if point.run and point.method != OTHERS)
    return (
        ours
        | {OTHERS: (PRINTED_COLOUR, "circle")}
        | {point.method: (PRINTED_COLOUR, "diamond") for point in points if not point.run}
    )


def _across(picture: Picture) -> Scale:
    values = [*(point.x for point in picture.points), *picture.uprights.values()]
    if picture.names or not values:
        return named(picture.names or ("nothing was run",), LEFT, RIGHT)
    return (logarithmic if picture.axis == "log" else linear)(values, LEFT, RIGHT)


def _upwards(picture: Picture) -> Scale:
    values = [*(point.y for point in picture.points), *picture.levels.values()]
    if picture.sweep.y not in SIDES:
        return share(values or [0.0, 1.0], BOTTOM, TOP)
    return logarithmic(values or [1.0], BOTTOM, TOP)


def _printed_lines(picture: Picture, x: Scale, y: Scale) -> str:
    """Dashed lines where the paper names a place on one axis alone, with names; those of uprights cover nothing."""
    parts = []
    taken: list[Box] = [(a - 5, b - 5, a + 5, b + 5) for a, b in placed(picture.points, x, y)]
    taken += [(x.at(value) - 1, TOP, x.at(value) + 1, BOTTOM) for value in picture.uprights.values()]
    for label, value in picture.levels.items():
        place = y.at(value)
        told = f"{100 * value:.1f} %: {label}"
        at = place - 5 if place - 5 - LINE >= TOP else place + LINE
        parts.append(tag("path", d=f"M{LEFT} {place:.1f}H{x.edge}", class_="level"))
        parts.append(tag("text", escape(told), x=LEFT + 6, y=at, text_anchor="start", class_="quiet name"))
        taken += [(LEFT, place - 1, x.edge, place + 1), _beside(LEFT + 6, at, told, "start")]
    for label, value in picture.uprights.items():
        place = x.at(value)
        told = f"{value:,.6g}: {label}"
        across, anchor = (place - 5, "end") if place > (LEFT + x.edge) / 2 else (place + 5, "start")
        heights = range(BOTTOM - 8, int(TOP + LINE), -int(LINE))
        free = (at for at in heights if not any(overlap(_beside(across, at, told, anchor), box) for box in taken))
        at = next(free, heights[0])
        taken.append(_beside(across, at, told, anchor))
        parts.append(tag("path", d=f"M{place:.1f} {TOP}V{BOTTOM}", class_="level"))
        parts.append(tag("text", escape(told), x=across, y=at, text_anchor=anchor, class_="quiet name"))
    return "".join(parts)


def _beside(across: float, at: float, told: str, anchor: str) -> Box:
    """The box of a line of text that begins or ends at a place."""
    start = across - LETTER * len(told) if anchor == "end" else across
    return (start, at - LINE + 4, start + LETTER * len(told), at + 4)


def agreement(lines: Sequence[Mapping[str, Any]]) -> str:
    """Ours against print for a table's numbers, with a band of two points on either side of equality; "" without any.

    Args:
        lines: of `bench.report.paper_tables`.
    """
    points = [_agreement_point(line, line["ours"]) for line in lines if line["ours"] is not None]
    if not points:
        return ""
    x = share([point.x for point in points], LEFT, RIGHT)
    y = share([point.y for point in points], BOTTOM, TOP)
    look = styles(point.method for point in points)
    content = grid(x, y, "printed", "ours") + _equality(x, y)
    content += "".join(mark(point, at, x, y, look) for point, at in zip(points, placed(points, x, y), strict=True))
    label = "ours against print"
    drawn = tag("svg", content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="group", aria_label=label)
    told = "on the line they are equal; the band is two points; hollow is the variant that is not run by default"
    caption = tag("figcaption", tag("strong", "Ours against print") + " " + tag("span", told))
    return tag("figure", caption + drawn + legend(sorted({point.method for point in points}), look), class_="panel")


def _agreement_point(line: Mapping[str, Any], ours: Mapping[str, Any]) -> Point:
    budget = "" if line["epsilon"] is None else f", ε {line['epsilon']:g}"
    setting = f"{ours['variant']}, {line['dataset']}{budget}"
    return Point(
        line["method"], setting, line["printed"], ours["accuracy"], ours["std"], ours["run"], seeds=ours["seeds"],
        proven=ours["usual"],
    )  # fmt: skip


def _equality(x: Scale, y: Scale) -> str:
    """The line of equality, cut to the chart, and the band around it."""
    low, high = max(x.low, y.low), min(x.high, y.high)
    if low >= high:
        return ""
    corners = [(low, low - CLOSE), (high, high - CLOSE), (high, high + CLOSE), (low, low + CLOSE)]
    inside = [(x.at(a), min(max(y.at(b), TOP), BOTTOM)) for a, b in corners]
    band = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in inside) + "z"
    line = f"M{x.at(low):.1f} {y.at(low):.1f}L{x.at(high):.1f} {y.at(high):.1f}"
    return tag("path", d=band, class_="band") + tag("path", d=line, class_="level")
