"""Panels as inline SVG: points that lead to their runs, with a legend; colours are the page's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from bench import registry
from bench.leaderboard.flags import nothing_below
from bench.report.axes import BAND, Scale, logarithmic, share
from bench.report.glossary import UNITS
from bench.report.points import Panel, Point, fronts, reach

WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 436, 14, 288
COLOURS, LETTER, LINE, GAP, APART, MARGIN = 7, 7.0, 14.0, 11.0, 3.0, 66
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "wedge", "star", "pentagon")
NAME_HEIGHT = 4.0
"""What a letter of the longest name of an axis of names adds to the height; names are turned by 35 degrees."""
BESIDE = (0.0, 8.0, -8.0, 16.0, -16.0)
"""How far a mark may step aside, so that it does not lie on another one."""
Place = tuple[float, float]
Box = tuple[float, float, float, float]
Styles = Mapping[str, tuple[int, str]]


def styles(methods: Iterable[str]) -> dict[str, tuple[int, str]]:
    """A colour and a shape per method, the same in every chart of a page: neighbours differ in both, as not everybody
    tells colours apart, and none is grey, which is for print and for what stands beside a comparison."""
    papers = registry.entries("method", "methods")
    return {
        name: (index % COLOURS, SHAPES[(index % COLOURS + index // COLOURS) % len(SHAPES)])
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
    meaning += _of_the_commonest(panel)
    title = f"{kind[panel.what]}, per {panel.unit}"
    return _figure(panel, look, x, label, title, meaning, marks, curves=lines)


def attack_panel(panel: Panel, look: Styles) -> str:
    """A figure of accuracy against the success of an attack, with the Pareto front of every unit."""
    values = [*(point.x for point in panel.points), *panel.lines.values()]
    x, y = share(values, LEFT, RIGHT - MARGIN), _height(panel)
    marks, counts = "", []
    found = sorted(fronts(panel.points, _coin(panel)).items(), key=lambda item: item[1][-1].y)
    stand = dict(zip(panel.points, placed(panel.points, x, y), strict=True))
    heights = _stacked([y.at(best[-1].y) + 4 for _, best in found])
    for (unit, best), height in zip(found, heights, strict=True):
        places = [(x.at(point.x), y.at(point.y)) for point in best]
        marks += "".join(tag("circle", cx=a, cy=b, r=9, class_="best") for a, b in (stand[point] for point in best))
        marks += _steps(places, unit, x.edge) + tag(
            "text", _promise(unit), x=x.edge + 11, y=height, class_="quiet name"
        )
        counts.append(f"{len(best)} of {sum(point.unit == unit for point in panel.points)} {_promise(unit)}")
    meaning = "left is safer, up is more useful; ringed: no other release of its unit is as safe and as accurate"
    meaning += f" ({', '.join(counts) or 'none'})" + ("; below 0.5 is as safe as 0.5" if _coin(panel) else "")
    meaning += _of_the_commonest(panel)
    return _figure(panel, look, x, f"{panel.what} of {panel.attack} on the student", panel.attack, meaning, marks)


def alone(panel: Panel) -> str:
    """The only point of a panel in words, with a link to its run: a chart of it would have axes that say nothing."""
    (point,) = panel.points
    kind = f"{panel.what} of {panel.attack}" if panel.attack else f"ε {panel.what} per {panel.unit}"
    at = "∞" if math.isinf(point.x) else f"{point.x:.4g}"
    levels = "".join(f", {label} {_level(panel, value)}" for label, value in panel.lines.items())
    told = f", {point.setting}: {point.reached(is_share=True)} at {kind} {at}{_seeds(point)}"
    near = level_of_the_commonest(panel.points, panel.commonest) is not None
    told += levels + (_of_the_commonest(panel) if near else "")
    name = tag("a", escape(point.method), href=f"#run-{point.run}") if point.run else escape(point.method)
    return tag("li", name + escape(told))


def _level(panel: Panel, value: float) -> str:
    return f"{value:.4g}" if panel.attack else f"{100 * value:.1f} %"


def _coin(panel: Panel) -> float:
    """The success of an attack that tosses a coin, where that is the same for all; else 0."""
    return 0.5 if panel.what == "AUC" else 0.0


def _of_the_commonest(panel: Panel) -> str:
    share = panel.commonest
    return "" if share is None else f"; the largest class is {100 * share:.1f} %"


def level_of_the_commonest(points: Sequence[Point], share: float | None) -> float | None:
    """The accuracy of whoever names the largest class, where some point is so near to it that it must be seen."""
    lowest = min((point.y for point in points), default=math.inf)
    return share if share is not None and lowest < nothing_below(share) else None


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


def _figure(
    panel: Panel, look: Styles, x: Scale, label: str, title: str, meaning: str, marks: str, curves: bool = False
) -> str:
    y = _height(panel)
    places = placed(panel.points, x, y)
    content = grid(x, y, label) + _levels(panel, x, y) + marks
    content += "".join(mark(point, place, x, y, look) for point, place in zip(panel.points, places, strict=True))
    levels = [] if panel.attack else [y.at(value) for value in panel.lines.values()]
    lines = [(float(LEFT), at - 1, x.edge, at + 1) for at in levels]
    taken = [box for *_, box in _level_names(panel, x)]
    taken += along(panel.points, x, y) if curves else []
    share = level_of_the_commonest(panel.points, panel.commonest)
    if share is not None:
        covered = [(a - 6, b - 6, a + 6, b + 6) for a, b in places]
        drawn, box = largest_class(share, x, y, [*covered, *taken])
        content, taken = content + drawn, [*taken, box]
        lines.append((float(LEFT), y.at(share) - 1, x.edge, y.at(share) + 1))
    content += _names(panel.points, places, x.edge, taken, lines, above=curves)
    drawn = tag(
        "svg", content, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="group", aria_label=f"{title}: accuracy against {label}"
    )
    caption = tag("strong", escape(title)) + " " + tag("span", escape(meaning))
    return tag("figure", tag("figcaption", caption) + drawn, class_="panel")


def largest_class(level: float, x: Scale, y: Scale, covered: Sequence[Box]) -> tuple[str, Box]:
    """A dashed line at the accuracy of whoever names the largest class, with its name where it covers the least of
    what is there, and the name's box."""
    told, place = "largest class", y.at(level)
    width, line = LETTER * len(told), tag("path", d=f"M{LEFT} {place:.1f}H{x.edge}", class_="level")
    boxes = [
        (left, at - LINE + 4, left + width, at + 4)
        for at in (place - 5, place + LINE)
        for left in (x.edge - 4 - width, LEFT + 6.0, (LEFT + x.edge - width) / 2)
        if at - LINE >= TOP and at <= BOTTOM
    ]
    box = min(boxes, key=lambda each: sum(overlap(each, other) for other in covered))
    return line + tag("text", told, x=box[0], y=box[3] - 4, text_anchor="start", class_="quiet name"), box


def _height(panel: Panel) -> Scale:
    levels = [] if panel.attack else list(panel.lines.values())
    share_of = level_of_the_commonest(panel.points, panel.commonest)
    levels += [] if share_of is None else [share_of]
    return share([*reach(panel.points), *levels], BOTTOM, TOP)


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
        parts.append(tag("text", escape(x.beyond), x=x.edge - (BAND - 8) / 2, y=BOTTOM + 18, text_anchor="middle"))
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
    """Where points go: those at infinity are spread over the strip, which has no scale. A mark that would lie on
    another one steps aside, but not on an axis of shares, along which points are compared with lines."""
    endless = sum(math.isinf(point.x) for point in points)
    seen: int = 0
    exact: list[Place] = []
    for point in points:
        if math.isinf(point.x):
            seen += 1
            across = x.edge - BAND + 8 + (BAND - 8) * seen / (endless + 1)
        else:
            across = x.at(point.x) if point.x > 0 or not x.log else float(LEFT)
        exact.append((across, y.at(point.y)))
    if x.percent and not x.log:
        return exact
    places: list[Place] = []
    for place in reversed(exact):  # the last ones are drawn on top, and are those that a picture is about
        places.append(_aside(place, places, x.edge))
    return places[::-1]


def _aside(place: Place, others: Sequence[Place], end: float) -> Place:
    """The nearest place at the same height that no other mark covers; the place itself where there is none."""
    across, height = place
    near = [a for a, b in others if abs(b - height) < 6]
    free = (
        across + step
        for step in BESIDE
        if LEFT <= across + step <= end and not any(abs(across + step - a) < 7 for a in near)
    )
    return next(free, across), height


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
    unit = f", {_promise(point.unit)}" if point.unit else ""
    proved = f", ε accounted {account(*point.account)}" if point.account else ""
    return f"{_whose(point)}: {point.reached(y.percent and not y.log)} at {where}{_seeds(point)}{unit}{proved}{power}"


def account(epsilon: float, unit: str) -> str:
    """An accounted epsilon in words."""
    told = "∞" if math.isinf(epsilon) else f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.4g}"
    return f"{told} per {unit}"


def _whose(point: Point) -> str:
    return f"{point.method}, {point.setting}" if point.setting else point.method


def _seeds(point: Point) -> str:
    return "" if not point.run else ", 1 seed" if point.seeds == 1 else f", {point.seeds} seeds"


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


def _steps(places: Sequence[Place], unit: str, end: float) -> str:
    """A staircase through the front of a unit: what is reached at no more than so much success."""
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    return tag("path", d=f"{path}H{end}", class_=f"front {unit}")


def joined(points: Sequence[Point], x: Scale, y: Scale, look: Styles) -> str:
    """A line through the finite points of each series."""
    parts = []
    for method, places in _curves(points, x, y):
        path = "L".join(f"{across:.1f} {height:.1f}" for across, height in places)
        parts.append(tag("path", d=f"M{path}", class_=f"curve c{look[method][0]}", data_method=method))
    return "".join(parts)


def _curves(points: Sequence[Point], x: Scale, y: Scale) -> list[tuple[str, list[Place]]]:
    series: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if math.isfinite(point.x):
            series[point.series].append(point)
    return [
        (found[0].method, [(x.at(p.x), y.at(p.y)) for p in sorted(found, key=lambda p: (p.x, p.y))])
        for found in series.values()
    ]


def along(points: Sequence[Point], x: Scale, y: Scale) -> list[Box]:
    """Small boxes along the line of each series, for names to keep off."""
    boxes = []
    for _, places in _curves(points, x, y):
        for (a, b), (c, d) in pairwise(places):
            steps = max(1, math.ceil(math.hypot(c - a, d - b) / 4))
            middle = [(a + (c - a) * n / steps, b + (d - b) * n / steps) for n in range(steps + 1)]
            boxes += [(across - 1, height - 1, across + 1, height + 1) for across, height in middle]
    return boxes


def _names(
    points: Sequence[Point],
    places: Sequence[Place],
    end: float,
    others: Iterable[Box] = (),
    lines: Iterable[Box] = (),
    above: bool = False,
) -> str:
    """The name of each method beside one of its points, or `above` or below one, where it covers nothing, and no line
    of `lines` if it can be; other names are in the legend."""
    taken: list[Box] = [*((x - 7, y - 7, x + 7, y + 7) for x, y in places), *others]
    parts, done = [], set()
    for avoided in (list(lines), []):
        for point, (x, y) in zip(points, places, strict=True):
            width = LETTER * len(point.method)
            offered = [(x + GAP, y, "start"), (x - GAP - width, y, "end")]
            offered += [(x - width / 2, y - LINE, "start"), (x - width / 2, y + LINE, "start")] if above else []
            for left, height, anchor in offered:
                box = (left - APART, height - LINE / 2, left + width + APART, height + LINE / 2)
                inside = (
                    left >= LEFT and left + width <= end and box[1] >= TOP - LINE / 2 and box[3] <= BOTTOM + LINE / 2
                )
                free = not any(overlap(box, other) for other in (*taken, *avoided))
                if point.method not in done and inside and free:
                    done.add(point.method)
                    taken.append(box)
                    across = left if anchor == "start" else left + width
                    named = {"x": across, "y": height + 4.5, "text_anchor": anchor, "class_": "name"}
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
