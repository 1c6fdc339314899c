"""Panels as inline SVG: points that lead to their runs, with a legend; colours are the page's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from bench import registry
from bench.report.axes import BAND, Scale, logarithmic, share
from bench.report.glossary import UNITS
from bench.report.points import Panel, Point, fronts

WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 436, 14, 288
COLOURS, LETTER, LINE, GAP, APART, MARGIN = 8, 7.0, 14.0, 11.0, 3.0, 66
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "wedge", "star")
NAME_HEIGHT = 4.0
"""What a letter of the longest name of an axis of names adds to the height; names are turned by 35 degrees."""
Place = tuple[float, float]
Box = tuple[float, float, float, float]
Styles = Mapping[str, tuple[int, str]]


def styles(methods: Iterable[str]) -> dict[str, tuple[int, str]]:
    """A colour and a shape per method, the same in every chart of a page; those of the papers have one each."""
    papers = registry.entries("method", "methods")
    return {
        name: (index % COLOURS, SHAPES[index // COLOURS % len(SHAPES)])
        for index, name in enumerate(sorted(set(methods), key=lambda name: (name.split(" ")[0] not in papers, name)))
    }


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; attribute values are escaped, `content` is markup already. `class_` is class, `data_x` is data-x."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def epsilon_panel(panel: Panel, look: Styles, lines: bool = False) -> str:
    """A figure of accuracy against epsilon on a logarithmic scale; with `lines`, points of a series are joined."""
    x = logarithmic([point.x for point in panel.points], LEFT, RIGHT)
    marks = joined(panel.points, x, _height(panel), look) if lines else ""
    kind = {"claimed": "claimed by the paper", "accounted": "accounted: what can be proved", "reported": "as printed"}
    label = f"ε {panel.what}, per {panel.unit}"
    meaning = "in the paper's own words" if panel.what == "reported" else UNITS[panel.unit]
    meaning += "".join(f"; dashed: {label}, {100 * value:.1f} %" for label, value in panel.lines.items())
    title = f"{kind[panel.what]}, per {panel.unit}"
    return _figure(panel, look, x, label, title, meaning, marks)


def attack_panel(panel: Panel, look: Styles) -> str:
    """A figure of accuracy against the success of an attack, with the Pareto front of every unit."""
    values = [*(point.x for point in panel.points), *panel.lines.values()]
    x, y = share(values, LEFT, RIGHT - MARGIN), _height(panel)
    marks, counts = "", []
    found = sorted(fronts(panel.points).items(), key=lambda item: item[1][-1].y)
    heights = _stacked([y.at(best[-1].y) + 4 for _, best in found])
    for (unit, best), height in zip(found, heights, strict=True):
        places = [(x.at(point.x), y.at(point.y)) for point in best]
        marks += "".join(tag("circle", cx=a, cy=b, r=9, class_="best") for a, b in places)
        marks += _steps(places, unit, x.edge) + tag(
            "text", _promise(unit), x=x.edge + 11, y=height, class_="quiet name"
        )
        counts.append(f"{len(best)} of {sum(point.unit == unit for point in panel.points)} {_promise(unit)}")
    meaning = "left is safer, up is more useful; ringed, nothing else is both: " + (", ".join(counts) or "none")
    return _figure(panel, look, x, f"{panel.what} of {panel.attack} on the student", panel.attack, meaning, marks)


def _stacked(wanted: Sequence[float]) -> list[float]:
    """Heights of lines of text near the wanted ones, which go up, apart from each other and below the top's edge."""
    last, found = math.inf, []
    for height in wanted:
        last = min(height, last - LINE)
        found.append(last)
    least = float(TOP)
    for index in reversed(range(len(found))):
        found[index] = max(found[index], least)
        least = found[index] + LINE
    return found


def _promise(unit: str) -> str:
    return "no promise" if unit == "none" else f"per {unit}"


def _figure(panel: Panel, look: Styles, x: Scale, label: str, title: str, meaning: str, marks: str) -> str:
    y = _height(panel)
    places = placed(panel.points, x, y)
    content = grid(x, y, label) + _levels(panel, x, y) + marks
    content += "".join(mark(point, place, x, y, look) for point, place in zip(panel.points, places, strict=True))
    levels = [] if panel.attack else [y.at(value) for value in panel.lines.values()]
    lines = [(float(LEFT), at - 1, x.edge, at + 1) for at in levels]
    content += _names(panel.points, places, x.edge, [box for *_, box in _level_names(panel, x)], lines)
    drawn = tag(
        "svg", content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="group", aria_label=f"{title}: accuracy against {label}"
    )
    caption = tag("strong", escape(title)) + " " + tag("span", escape(meaning))
    return tag("figure", tag("figcaption", caption) + drawn, class_="panel")


def _height(panel: Panel) -> Scale:
    levels = [] if panel.attack else list(panel.lines.values())
    return share([*(point.y for point in panel.points), *levels], BOTTOM, TOP)


def grid(x: Scale, y: Scale, label: str, side: str = "accuracy", height: int = HEIGHT) -> str:
    """Rules, tick labels and the names of the axes."""
    parts = []
    for value in y.ticks():
        place = y.at(value)
        parts.append(tag("path", d=f"M{LEFT} {place:.1f}H{x.edge}", class_="rule"))
        parts.append(tag("text", _tick(y, value), x=LEFT - 6, y=place + 4, text_anchor="end"))
    for value in x.ticks():
        place = x.at(value)
        parts.append(tag("path", d=f"M{place:.1f} {TOP}V{BOTTOM}", class_="rule"))
        if x.names:
            turned = f"translate({place + 4:.1f} {BOTTOM + 14}) rotate(-35)"
            parts.append(tag("text", escape(x.names[int(value)]), transform=turned, text_anchor="end"))
            continue
        shown = f"{value:.2f}" if label.startswith("AUC") else _tick(x, value)
        parts.append(tag("text", shown, x=place, y=BOTTOM + 18, text_anchor="middle"))
    if x.band:
        parts.append(tag("rect", x=x.edge - BAND + 8, y=TOP, width=BAND - 8, height=BOTTOM - TOP, class_="band"))
        parts.append(tag("text", "∞", x=x.edge - (BAND - 8) / 2, y=BOTTOM + 18, text_anchor="middle"))
    parts.append(tag("text", escape(label), x=(LEFT + x.edge) / 2, y=height - 8, text_anchor="middle", class_="axis"))
    turned = f"translate(12 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts.append(tag("text", escape(side), transform=turned, text_anchor="middle"))
    return "".join(parts)


def _tick(scale: Scale, value: float) -> str:
    if scale.log:
        return _power(value)
    return f"{value:.0%}".replace("%", " %") if scale.percent else f"{value:g}"


def _power(value: float) -> str:
    """A tick of a logarithmic scale: 0.01, 200, 10⁴, 2·10⁴."""
    if 0.001 <= value < 9999:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    ahead = round(value / 10.0**power)
    return ("" if ahead == 1 else f"{ahead}·") + "10" + str(power).translate(RAISED)


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _levels(panel: Panel, x: Scale, y: Scale) -> str:
    """Dashed lines; those of an attack are named, that of accuracy is named above the chart."""
    if not panel.attack:
        return "".join(
            tag("path", d=f"M{LEFT} {y.at(value):.1f}H{x.edge}", class_="level") for value in panel.lines.values()
        )
    parts = [tag("path", d=f"M{x.at(value):.1f} {TOP}V{BOTTOM}", class_="level") for value in panel.lines.values()]
    for label, across, anchor, box in _level_names(panel, x):
        height = (box[1] + box[3]) / 2 + 4
        parts.append(tag("text", escape(label), x=across, y=height, text_anchor=anchor, class_="quiet name"))
    return "".join(parts)


def _level_names(panel: Panel, x: Scale) -> list[tuple[str, float, str, Box]]:
    """The name of each upright level, where it begins or ends, which of both, and its box; that of the smallest value
    stands left of its line and the others right of theirs, where there is room."""
    found = []
    for row, (label, value) in enumerate(sorted(panel.lines.items(), key=lambda one: one[1]) if panel.attack else ()):
        place, width = x.at(value), LETTER * len(label)
        fits = {"end": place - 5 - width >= LEFT, "start": place + 5 + width <= x.edge}
        wanted, other = ("end", "start") if row == 0 else ("start", "end")
        anchor = wanted if fits[wanted] or not fits[other] else other
        across = place - 5 if anchor == "end" else place + 5
        left, height = across - width if anchor == "end" else across, BOTTOM - 12 - LINE * row
        found.append((label, across, anchor, (left, height - LINE / 2, left + width, height + LINE / 2)))
    return found


def placed(points: Sequence[Point], x: Scale, y: Scale) -> list[Place]:
    """Where points go; those at infinity are spread over the strip, which has no scale."""
    endless = sum(math.isinf(point.x) for point in points)
    seen, places = 0, []
    for point in points:
        if math.isinf(point.x):
            seen += 1
            across = x.edge - BAND + 8 + (BAND - 8) * seen / (endless + 1)
        else:
            across = x.at(point.x) if point.x > 0 or not x.log else float(LEFT)
        places.append((across, y.at(point.y)))
    return places


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
    body += tag("path", d=_shape(shape, across, height), class_=f"mark{hollow}")
    kind = {"class_": f"point c{colour}", "data_method": point.method}
    if not point.run:
        return tag("g", body, **kind)
    return tag("a", body, href=f"#run-{point.run}", aria_label=told, **kind)


def _told(point: Point, x: Scale, y: Scale) -> str:
    """A mark in words, for whoever points at it or hears it."""
    where = "∞" if math.isinf(point.x) else x.names[int(point.x)] if x.names else f"{point.x:.4g}"
    seeds = "" if not point.run else ", 1 seed" if point.seeds == 1 else f", {point.seeds} seeds"
    power = "" if point.proven else ", the attack did not prove its power"
    unit = f", {_promise(point.unit)}" if point.unit else ""
    name = f"{point.method}, {point.setting}" if point.setting else point.method
    return f"{name}: {point.reached(y.percent and not y.log)} at {where}{seeds}{unit}{power}"


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
            "star": "m0-6.5l1.7 4.4h4.6l-3.6 2.9l1.3 4.6l-4-2.6l-4 2.6l1.3-4.6l-3.6-2.9h4.6z",
        }[name]
    )


def _steps(places: Sequence[Place], unit: str, end: float) -> str:
    """A staircase through the front of a unit: what is reached at no more than so much success."""
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    return tag("path", d=f"{path}H{end}", class_=f"front {unit}")


def joined(points: Sequence[Point], x: Scale, y: Scale, look: Styles) -> str:
    """A line through the finite points of each series."""
    series: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if math.isfinite(point.x):
            series[point.series].append(point)
    parts = []
    for found in series.values():
        path = "L".join(f"{x.at(p.x):.1f} {y.at(p.y):.1f}" for p in sorted(found, key=lambda p: (p.x, p.y)))
        method = found[0].method
        parts.append(tag("path", d=f"M{path}", class_=f"curve c{look[method][0]}", data_method=method))
    return "".join(parts)


def _names(
    points: Sequence[Point], places: Sequence[Place], end: float, others: Iterable[Box] = (), lines: Iterable[Box] = ()
) -> str:
    """The name of each method beside one of its points, where it covers nothing, and no line of `lines` if it can be;
    other names are in the legend."""
    taken: list[Box] = [*((x - 7, y - 7, x + 7, y + 7) for x, y in places), *others]
    parts, done = [], set()
    for avoided in (list(lines), []):
        for point, (x, y) in zip(points, places, strict=True):
            width = LETTER * len(point.method)
            for left, anchor in ((x + GAP, "start"), (x - GAP - width, "end")):
                box = (left - APART, y - LINE / 2, left + width + APART, y + LINE / 2)
                inside = left >= LEFT and left + width <= end
                free = not any(overlap(box, other) for other in (*taken, *avoided))
                if point.method not in done and inside and free:
                    done.add(point.method)
                    taken.append(box)
                    across = x + GAP if anchor == "start" else x - GAP
                    named = {"x": across, "y": y + 4.5, "text_anchor": anchor, "class_": "name"}
                    parts.append(tag("text", escape(point.method), **named))
    return "".join(parts)


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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
