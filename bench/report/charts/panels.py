"""A data set's charts: accuracy against epsilon, and against the success of an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.boards.selection import percent
from bench.report.axes import Scale, logarithmic, share
from bench.report.charts.levels import dashed, largest_class, level_names, level_of_the_commonest
from bench.report.charts.marks import Styles, joined, mark, promise, seeds
from bench.report.charts.names import method_names
from bench.report.charts.places import Place, along, placed, stacked
from bench.report.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, grid, tag
from bench.report.glossary import UNITS
from bench.report.points import Panel, fronts, reach

MARGIN = 66
"""Room right of a chart for the names of fronts."""


def epsilon_panel(panel: Panel, look: Styles, lines: bool = False) -> str:
    """A figure of accuracy against epsilon on a logarithmic scale; with `lines`, points of a series are joined."""
    x = logarithmic([point.x for point in panel.points], LEFT, RIGHT)
    marks = joined(panel.points, x, upward(panel), look) if lines else ""
    kind = {"claimed": "claimed by the paper", "accounted": "accounted: what can be proved", "reported": "as printed"}
    label = f"ε {panel.what}, per {panel.unit}"
    meaning = "in the paper's own words" if panel.what == "reported" else UNITS[panel.unit]
    meaning += "".join(f"; dashed: {label}, {percent(value)}" for label, value in panel.lines.items())
    meaning += _of_the_commonest(panel)
    title = f"{kind[panel.what]}, per {panel.unit}"
    return _figure(panel, look, x, label, title, meaning, marks, curves=lines)


def attack_panel(panel: Panel, look: Styles) -> str:
    """A figure of accuracy against the success of an attack, with the Pareto front of every unit."""
    values = [*(point.x for point in panel.points), *panel.lines.values()]
    x, y = share(values, LEFT, RIGHT - MARGIN), upward(panel)
    marks, counts = "", []
    found = sorted(fronts(panel.points, _coin(panel)).items(), key=lambda item: item[1][-1].y)
    stand = dict(zip(panel.points, placed(panel.points, x, y), strict=True))
    heights = stacked([y.at(best[-1].y) + 4 for _, best in found])
    for (unit, best), height in zip(found, heights, strict=True):
        places = [(x.at(point.x), y.at(point.y)) for point in best]
        marks += "".join(tag("circle", cx=a, cy=b, r=9, class_="best") for a, b in (stand[point] for point in best))
        marks += _steps(places, unit, x.edge) + tag("text", promise(unit), x=x.edge + 11, y=height, class_="quiet name")
        counts.append(f"{len(best)} of {sum(point.unit == unit for point in panel.points)} {promise(unit)}")
    meaning = "left is safer, up is more useful; ringed: no other release of its unit is as safe and as accurate"
    meaning += f" ({', '.join(counts) or 'none'})" + ("; below 0.5 is as safe as 0.5" if _coin(panel) else "")
    meaning += _of_the_commonest(panel)
    return _figure(panel, look, x, f"{panel.what} of {panel.attack} on the student", panel.attack, meaning, marks)


def _steps(places: Sequence[Place], unit: str, end: float) -> str:
    """A staircase through the front of a unit: what is reached at no more than so much success."""
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    return tag("path", d=f"{path}H{end}", class_=f"front {unit}")


def alone(panel: Panel) -> str:
    """The only point of a panel in words, with a link to its run: a chart of it would have axes that say nothing."""
    (point,) = panel.points
    kind = f"{panel.what} of {panel.attack}" if panel.attack else f"ε {panel.what} per {panel.unit}"
    at = "∞" if math.isinf(point.x) else f"{point.x:.4g}"
    levels = "".join(f", {label} {_level(panel, value)}" for label, value in panel.lines.items())
    told = f", {point.setting}: {point.reached(is_share=True)} at {kind} {at}{seeds(point)}"
    near = level_of_the_commonest(panel.points, panel.commonest) is not None
    told += levels + (_of_the_commonest(panel) if near else "")
    name = tag("a", escape(point.method), href=f"#run-{point.run}") if point.run else escape(point.method)
    return tag("li", name + escape(told))


def _level(panel: Panel, value: float) -> str:
    return f"{value:.4g}" if panel.attack else percent(value)


def _coin(panel: Panel) -> float:
    """The success of an attack that tosses a coin, where that is the same for all; else 0."""
    return 0.5 if panel.what == "AUC" else 0.0


def _of_the_commonest(panel: Panel) -> str:
    share = panel.commonest
    return "" if share is None else f"; the largest class is {percent(share)}"


def _figure(
    panel: Panel, look: Styles, x: Scale, label: str, title: str, meaning: str, marks: str, curves: bool = False
) -> str:
    y = upward(panel)
    places = placed(panel.points, x, y)
    content = grid(x, y, label) + dashed(panel, x, y) + marks
    content += "".join(mark(point, place, x, y, look) for point, place in zip(panel.points, places, strict=True))
    levels = [] if panel.attack else [y.at(value) for value in panel.lines.values()]
    lines = [(float(LEFT), at - 1, x.edge, at + 1) for at in levels]
    taken = [box for *_, box in level_names(panel, x)]
    taken += along(panel.points, x, y) if curves else []
    share = level_of_the_commonest(panel.points, panel.commonest)
    if share is not None:
        covered = [(a - 6, b - 6, a + 6, b + 6) for a, b in places]
        drawn, box = largest_class(share, x, y, [*covered, *taken])
        content, taken = content + drawn, [*taken, box]
        lines.append((float(LEFT), y.at(share) - 1, x.edge, y.at(share) + 1))
    content += method_names(panel.points, places, x.edge, taken, lines, above=curves)
    drawn = tag(
        "svg", content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="group", aria_label=f"{title}: accuracy against {label}"
    )
    caption = tag("strong", escape(title)) + " " + tag("span", escape(meaning))
    return tag("figure", tag("figcaption", caption) + drawn, class_="panel")


def upward(panel: Panel) -> Scale:
    """The scale of accuracy: what holds all points and levels."""
    levels = [] if panel.attack else list(panel.lines.values())
    share_of = level_of_the_commonest(panel.points, panel.commonest)
    levels += [] if share_of is None else [share_of]
    return share([*reach(panel.points), *levels], BOTTOM, TOP)
