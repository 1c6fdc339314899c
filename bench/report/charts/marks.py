"""Points of a chart as marks that lead to their runs, curves through them, and the legend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from bench import registry
from bench.report.axes import Scale
from bench.report.charts.places import Place, curves
from bench.report.charts.svg import tag
from bench.report.points import Point

COLOURS = 7
"""How many colours the page has for methods, c0 to c6 (web/style.css)."""
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "wedge", "star", "pentagon")
Styles = Mapping[str, tuple[int, str]]


def styles(methods: Iterable[str]) -> dict[str, tuple[int, str]]:
    """A colour and a shape per method, the same in every chart of a page: neighbours differ in both, as not everybody
    tells colours apart, and none is grey, which is for print and for what stands beside a comparison."""
    papers = registry.entries("method", "methods")
    return {
        name: (index % COLOURS, SHAPES[(index % COLOURS + index // COLOURS) % len(SHAPES)])
        for index, name in enumerate(sorted(set(methods), key=lambda name: (name.split(" ")[0] not in papers, name)))
    }


def mark(point: Point, place: Place, x: Scale, y: Scale, look: Styles) -> str:
    """A point's mark, with a bar for its spread; a link to its run where it has one."""
    colour, shape = look[point.method]
    across, height = place
    told = _told(point, x, y)
    body = tag("title", escape(told))
    if point.spread:
        low, high = (y.at(min(y.high, max(y.low, point.y + way * point.spread))) for way in (-1, 1))
        body += tag("path", d=f"M{across:.1f} {low:.1f}V{high:.1f}", class_="spread")
    hollow = "" if point.proven and point.run else " hollow"
    body += tag("path", d=_shape(shape, across, height), class_=f"mark{hollow}", fill_opacity="0.8")
    kind = {"class_": f"point c{colour}", "data_method": point.method}
    if not point.run:
        return tag("g", body, **kind)
    return tag("a", body, href=f"#run-{point.run}", aria_label=told, **kind)


def _told(point: Point, x: Scale, y: Scale) -> str:
    """A mark in words, for whoever points at it or hears it."""
    where = x.beyond if math.isinf(point.x) else x.names[int(point.x)] if x.names else f"{point.x:.4g}"
    power = "" if point.proven else ", the attack did not prove its power"
    unit = f", {promise(point.unit)}" if point.unit else ""
    proved = f", ε accounted {account(*point.account)}" if point.account else ""
    return f"{_whose(point)}: {point.reached(y.percent and not y.log)} at {where}{seeds(point)}{unit}{proved}{power}"


def account(epsilon: float, unit: str) -> str:
    """An accounted epsilon in words."""
    told = "∞" if math.isinf(epsilon) else f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.4g}"
    return f"{told} per {unit}"


def _whose(point: Point) -> str:
    return f"{point.method}, {point.setting}" if point.setting else point.method


def seeds(point: Point) -> str:
    return "" if not point.run else ", 1 seed" if point.seeds == 1 else f", {point.seeds} seeds"


def promise(unit: str) -> str:
    return "no promise" if unit == "none" else f"per {unit}"


def _shape(name: str, x: float, y: float) -> str:
    """The outline of a mark around a place."""
    start = f"M{x:.1f} {y:.1f}"
    return (
        start
        + {
            "circle": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
            "square": "m-4.5-4.5h9v9h-9z",
            "triangle": "m0-6l5.5 10h-11z",
            "diamond": "m0-6.5l5.5 6.5l-5.5 6.5l-5.5-6.5z",
            "cross": "m-2-5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z",
            "wedge": "m0 6l5.5-10h-11z",
            "pentagon": "m0-6l5.7 4.1l-2.2 6.8h-7l-2.2-6.8z",
            "star": "m0-6.5l1.7 4.4h4.6l-3.6 2.9l1.3 4.6l-4-2.6l-4 2.6l1.3-4.6l-3.6-2.9h4.6z",
        }[name]
    )


def joined(points: Sequence[Point], x: Scale, y: Scale, look: Styles) -> str:
    """A line through the finite points of each series."""
    parts = []
    for method, places in curves(points, x, y):
        path = "L".join(f"{across:.1f} {height:.1f}" for across, height in places)
        parts.append(tag("path", d=f"M{path}", class_=f"curve c{look[method][0]}", data_method=method))
    return "".join(parts)


def legend(methods: Iterable[str], look: Styles) -> str:
    """A button per method, in their order, which brings its points out."""
    items = []
    for name in methods:
        colour, shape = look[name]
        kind = "mark hollow" if name.startswith("printed") else "mark"
        swatch = tag("svg", tag("path", d=_shape(shape, 8, 8), class_=kind), viewBox="0 0 16 16", aria_hidden="true")
        items.append(
            tag(
                "button",
                swatch + escape(name),
                type="button",
                class_=f"c{colour}",
                data_method=name,
                aria_pressed="false",
            )
        )
    return tag("div", "".join(items), class_="legend", role="group", aria_label="bring out one method")
