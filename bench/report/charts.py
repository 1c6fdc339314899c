"""Charts of points that link to their runs, as SVG coloured by the page, each with a table of its points.

Ticks, boxes and paths are matplotlib's; docs/decisions.md says why it does not write the SVG.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Literal

import numpy as np
from matplotlib.path import Path
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Bbox

from bench import registry
from bench.boards.flags import nothing_below
from bench.core.epsilon import format_epsilon
from bench.report.points import Point

WIDTH, HEIGHT = 460, 340
LEFT, TOP, BOTTOM = 64.0, 14.0, 288.0
"""Size of a chart's view box, and the left, upper and lower ends of its axes in it."""
BAND = 50.0
"""Width of the strip for infinite values, at the far end of an axis."""
LETTER, LINE = 7.0, 14.0
"""Width of a letter of a name, and height of a line of text."""
STEPS = (0.0, 8.0, -8.0, 16.0, -16.0)
"""Largest shift of a mark that would otherwise cover another one."""
COLOURS = 7
"""Number of colours that the page has for methods, c0 to c6 (web/style.css)."""
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "wedge", "star", "pentagon", "pointer")
"""Shapes of marks, which the page defines (web/page.html)."""
SHIFTS = {"start": 0.0, "middle": 0.5, "end": 1.0}
"""Share of a text's width that is left of its position, by anchor."""
POWERLESS = "the attack did not prove its power"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Kind = Literal["log", "share", "number", "names"]
"""Kinds of axis: positive numbers, shares of 1, plain numbers, or names."""
Styles = Mapping[str, tuple[int, str]]
"""Colour and shape of each method."""


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """Return an element of SVG or HTML; attribute values are escaped, `content` is already markup.

    In names of attributes, a final underscore is dropped and others become hyphens: `class_`, `data_x`.
    """
    pairs = ""
    for key, value in attributes.items():
        text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
        pairs += f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
    return f"<{name}{pairs}>{content}</{name}>"


@dataclass(frozen=True)
class Scale:
    """An axis: its label, all its values, infinity included, and its kind of numbers.

    Attributes:
        names: labels of the positions 0, 1, ..., where the kind is "names".
        beyond: the name of the strip for infinite values.
    """

    label: str
    values: Sequence[float]
    kind: Kind = "share"
    names: tuple[str, ...] = ()
    beyond: str = "∞"

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis: all finite values with a margin, rounded to tenths for shares."""
        if self.kind == "names":
            return -0.5, len(self.names) - 0.5
        finite = [v for v in self.values if math.isfinite(v) and (v > 0 or self.kind != "log")] or [1.0]
        low, high = min(finite), max(finite)
        if self.kind == "share":
            low, high = max(0.0, math.floor(low * 10 - 0.4) / 10), min(1.0, math.ceil(high * 10 + 0.2) / 10)
            return (min(low, max(0.0, high - 0.2)), high) if high > 0.5 else (low, max(high, low + 0.2))
        if self.kind == "number":
            air = 0.08 * (high - low) or max(1.0, 0.1 * abs(high))
            return 0.0 if 0 <= low < air else low - air, high + air  # no value here is below zero
        low, high = math.log10(low), math.log10(high)
        air = max(0.06 * (high - low), (1.2 - (high - low)) / 2)
        return 10.0 ** (low - air), 10.0 ** (high + air)

    def part(self, value: float) -> float:
        """Return the position of a finite value, from 0 at the start of the axis to 1 at its end. On a logarithmic axis
        a value of 0, such as the claim of a tiny budget, is at the start."""
        low, high, value = (
            math.log10(max(v, self.limits[0])) if self.kind == "log" else v for v in (*self.limits, value)
        )
        return (value - low) / (high - low)

    def ticks(self) -> dict[float, str]:
        """Return tick labels: powers of ten, with their multiples by 2 and 5 if these are few; else round steps, or
        names."""
        if self.kind == "names":
            return {float(at): name for at, name in enumerate(self.names)}
        low, high = self.limits
        if self.kind == "log":
            is_short = math.floor(math.log10(high)) - math.ceil(math.log10(low)) < 2
            values = LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,), numticks=8).tick_values(low, high)
            write = _power
        else:
            values = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
            write = ("{:.2f}" if self.label.startswith("AUC") else "{:.0%}" if self.kind == "share" else "{:g}").format
        inside = [value for value in map(float, values) if low - 1e-9 <= value <= high + 1e-9]
        return {value: write(value).replace("%", " %") for value in inside}


def _power(value: float) -> str:
    """Format a tick of a logarithmic axis: 0.01, 200, 10⁴, 2·10⁴."""
    if 0.001 <= value < 9999:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    ahead = round(value / 10.0**exponent)
    return ("" if ahead == 1 else f"{ahead}·") + "10" + str(exponent).translate(RAISED)


class Chart:
    """A chart of points; lines and names are added to it, and names are placed where they cover least.

    Attributes:
        hollow: the meaning of a hollow mark with a run.
        edge: right end of the axes, in units of the view box.
        places: positions of the marks, in the same units.
    """

    def __init__(
        self, x: Scale, y: Scale, points: Sequence[Point], look: Styles, margin: float = 24.0, hollow: str = POWERLESS
    ) -> None:
        self.x, self.y, self.points, self.look, self.hollow = x, y, points, look, hollow
        self.edge = WIDTH - margin
        self._end = self.edge - (BAND + 8 if any(map(math.isinf, x.values)) else 0)
        self.places = self._places()
        self._taken = [(across - 6, down - 6, across + 6, down + 6) for across, down in self.places]
        self._lines: list[Path] = []
        self._content = self._axes()

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of finite values."""
        return LEFT + (self._end - LEFT) * self.x.part(x), BOTTOM - (BOTTOM - TOP) * self.y.part(y)

    def _axes(self) -> list[str]:
        """Draw rules, labels of ticks and axes, and the strip for infinite values."""
        height, centre = self.height, (LEFT + self.edge) / 2
        parts = [tag("text", escape(self.x.label), x=centre, y=height - 8, text_anchor="middle", class_="axis")]
        turned = f"translate(12 {(TOP + BOTTOM) / 2}) rotate(-90)"
        parts.append(tag("text", escape(self.y.label), transform=turned, text_anchor="middle"))
        for value, label in self.y.ticks().items():
            _, down = self.at(self.x.limits[0], value)
            parts.append(tag("path", d=f"M{LEFT} {down:.1f}H{self.edge}", class_="rule"))
            parts.append(tag("text", label, x=LEFT - 6, y=down + 4, text_anchor="end"))
        for value, label in self.x.ticks().items():
            across, _ = self.at(value, self.y.limits[0])
            parts.append(tag("path", d=f"M{across:.1f} {TOP}V{BOTTOM}", class_="rule"))
            turned = f"translate({across:.1f} {BOTTOM + 18}) rotate({-35 if self.x.names else 0})"
            anchor = "end" if self.x.names else "middle"
            parts.append(tag("text", escape(label), transform=turned, text_anchor=anchor))
        if self._end < self.edge:
            box = {"x": self.edge - BAND, "y": TOP, "width": BAND, "height": BOTTOM - TOP}
            parts.append(tag("rect", **box, class_="band"))
            middle = self.edge - BAND / 2
            parts.append(tag("text", escape(self.x.beyond), x=middle, y=BOTTOM + 18, text_anchor="middle"))
        return parts

    @property
    def height(self) -> int:
        """Height of the view box: names on an axis are rotated, and the longest one needs room."""
        return HEIGHT + int(4 * max(map(len, self.x.names), default=0))

    def _places(self) -> list[tuple[float, float]]:
        """Return positions of the marks: marks at infinity are spread over their strip. A mark that would cover another
        one is shifted, except on an axis of shares, where points are compared with lines; the last marks are not
        shifted, as they are drawn on top."""
        count, seen, places = sum(math.isinf(point.x) for point in self.points), 0, []
        for point in self.points:
            is_far = math.isinf(point.x)
            seen += is_far
            across, down = self.at(self.x.limits[0] if is_far else point.x, point.y)
            places.append((self.edge - BAND * (1 - seen / (count + 1)) if is_far else across, down))
        for at in reversed(range(len(places) if self.x.kind != "share" else 0)):
            across, down = places[at]
            near = [other for other, level in places[at + 1 :] if abs(level - down) < 6]
            offered = (across + step for step in STEPS if LEFT <= across + step <= self.edge)
            places[at] = next((to for to in offered if all(abs(to - a) >= 7 for a in near)), across), down
        return places

    def add(self, markup: str) -> None:
        """Add markup below the marks."""
        self._content.append(markup)

    def line(self, places: Sequence[tuple[float, float]], kind: str, **attributes: str) -> None:
        """Draw a line of a CSS class through positions of the view box; names avoid it where they can."""
        path = "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
        self.add(tag("path", d=path, class_=kind, **attributes))
        self._lines.append(Path(places))

    def level(self, value: float, name: str = "", upright: bool = False) -> None:
        """Draw a dashed line across the chart, with its name at an end."""
        across, down = self.at(value if upright else self.x.limits[0], self.y.limits[0] if upright else value)
        if upright:
            self.line([(across, TOP), (across, BOTTOM)], "level")
            rows = [BOTTOM - 12 - LINE * row for row in range(int((BOTTOM - TOP) / LINE))]
            offers = [(across + gap, row, side) for row in rows for gap, side in ((5.0, "start"), (-5.0, "end"))]
        else:
            self.line([(LEFT, down), (self.edge, down)], "level")
            ends = ((self.edge - 4, "end"), (LEFT + 6, "start"), ((LEFT + self.edge) / 2, "middle"))
            rows = [down - 9, down + 10, down - 9 - LINE, down + 10 + LINE]
            offers = [(end, row, side) for row in rows for end, side in ends]
        if name:
            self.write(name, offers)

    def write(
        self, text: str, offers: Iterable[tuple[float, float, str]], kind: str = "quiet name", needed: bool = True
    ) -> None:
        """Write a text inside the chart, at the position that covers the fewest marks and texts, then the fewest lines.

        Args:
            offers: candidate positions: x, y, and the anchor (start, middle or end).
            needed: write it in any case; otherwise it is left out if it would cover a mark or a text.
        """
        width, found = LETTER * len(text), []
        taken, lines = np.array(self._taken or np.zeros((0, 4))), Path.make_compound_path(*self._lines)
        for order, (across, down, anchor) in enumerate(offers):
            left = across - SHIFTS[anchor] * width
            box = (left - 2, down - LINE / 2, left + width + 2, down + LINE / 2)
            is_out = left < LEFT or box[2] > WIDTH or box[1] < TOP - LINE / 2 or box[3] > BOTTOM + LINE / 2
            covers = (taken[:, :2] < box[2:]).all(axis=1) & (taken[:, 2:] > box[:2]).all(axis=1)
            crosses = not is_out and lines.intersects_bbox(Bbox.from_extents(*box), filled=False)
            found.append((is_out, int(covers.sum()), crosses, order, box, across, down, anchor))
        is_out, covered, _, _, box, across, down, anchor = min(found)
        if needed or not (is_out or covered):
            self._taken.append(box)
            self.add(tag("text", escape(text), x=across, y=down + 4.5, text_anchor=anchor, class_=kind))

    def join(self) -> None:
        """Draw a line through the finite points of each series."""
        series: dict[str, list[Point]] = defaultdict(list)
        for point in sorted(self.points, key=lambda point: (point.x, point.y)):
            if math.isfinite(point.x):
                series[point.series].append(point)
        for found in series.values():
            method = found[0].method
            kind = f"curve c{self.look[method][0]}"
            self.line([self.at(point.x, point.y) for point in found], kind, data_method=method)

    def name_methods(self, above: bool = False) -> None:
        """Write the name of each method next to one of its points, or `above` or below one; the legend has all
        names."""
        offers: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for point, (across, down) in zip(self.points, self.places, strict=True):
            offers[point.method] += [(across + 11, down, "start"), (across - 11, down, "end")]
            offers[point.method] += [(across, down + way * LINE, "middle") for way in (-1, 1)] if above else []
        for method, offered in offers.items():
            self.write(method, offered, "name", needed=False)

    def markup(self, title: str, meaning: str, label: str, legend: str = "") -> str:
        """Return the chart as a figure: title, meaning, drawing, legend, and the table of its points. A single point
        becomes a sentence, as axes would add nothing.

        Args:
            label: the content in a few words, for screen readers.
        """
        caption = tag("figcaption", tag("strong", escape(title)) + " " + tag("span", escape(meaning)))
        if len(self.points) == 1 and not legend:
            (point,) = self.points
            return tag("figure", caption + _name(point) + escape(self._words(point)), class_="panel")
        marks = [self._mark(point, *place) for point, place in zip(self.points, self.places, strict=True)]
        content = tag("desc", escape(meaning)) + "".join([*self._content, *marks])
        drawn = tag("svg", content, viewBox=f"0 0 {WIDTH} {self.height}", role="group", aria_label=label)
        heads = ("name", self.y.label, self.x.label, "seeds", "notes", "setting")
        rows = ["".join(tag("th", escape(head), scope="col") for head in heads)]
        for point in self.points:
            rows.append("".join(tag("td", cell) for cell in (_name(point), *map(escape, self._cells(point)))))
        table = tag("div", tag("table", "".join(tag("tr", row) for row in rows)), class_="box fit")
        folded = tag("details", tag("summary", "as a table") + table)
        return tag("figure", caption + drawn + legend + folded, class_="panel")

    def _mark(self, point: Point, across: float, down: float) -> str:
        """Draw a point's mark, with a bar for its spread, linked to its run if it has one."""
        colour, shape = self.look[point.method]
        body = tag("title", escape(point.method + self._words(point)))
        if point.spread:
            low, high = self.y.limits
            ends = (min(high, max(low, point.y + way * point.spread)) for way in (-1, 1))
            reach = "V".join(f"{self.at(self.x.limits[0], end)[1]:.1f}" for end in ends)
            body += tag("path", d=f"M{across:.1f} {reach}", class_="spread")
        kind = "mark" if point.proven and point.run else "mark hollow"
        body += tag("use", href=f"#mark-{shape}", x=across, y=down, class_=kind)
        attributes = {"class_": f"point c{colour}", "data_method": point.method}
        return tag("a", body, href=f"#run-{point.run}", **attributes) if point.run else tag("g", body, **attributes)

    def _words(self, point: Point) -> str:
        """Return the rest of a sentence about a point that begins with its method."""
        reached, where, *rest, setting = self._cells(point)
        return (f", {setting}" if setting else "") + f": {reached} at {where}" + "".join(f", {w}" for w in rest if w)

    def _cells(self, point: Point) -> list[str]:
        """Return a point's table cells: its two numbers, its seeds, notes, and its setting."""
        x = self.x
        where = x.beyond if math.isinf(point.x) else x.names[int(point.x)] if x.names else f"{point.x:.4g}"
        notes = [name_unit(point.unit)] if point.unit else []
        notes += [f"ε accounted {account(*point.account)}"] if point.account else []
        notes += [] if point.proven else [self.hollow]
        return [point.format_y(self.y.kind == "share"), where, seeds(point), ", ".join(notes), point.setting]


def _name(point: Point) -> str:
    """Return a point's method, linked to its run if it has one."""
    return tag("a", escape(point.method), href=f"#run-{point.run}") if point.run else escape(point.method)


def styles(methods: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Assign a colour and a shape to each method, the same in every chart of a page: neighbours differ in both, for
    readers who do not distinguish colours; grey is reserved for published numbers and points outside of a
    comparison."""
    papers = registry.entries("method", "methods")
    names = sorted(set(methods), key=lambda name: (name.split(" ")[0] not in papers, name))
    return {
        name: (index % COLOURS, SHAPES[(index % COLOURS + index // COLOURS) % len(SHAPES)])
        for index, name in enumerate(names)
    }


def legend(methods: Iterable[str], look: Styles) -> str:
    """Return one button per method, in their order, which highlights its points."""
    items = []
    for name in methods:
        colour, shape = look[name]
        kind = "mark hollow" if name.startswith("printed") else "mark"
        mark = tag("use", href=f"#mark-{shape}", x=8, y=8, class_=kind)
        swatch = tag("svg", mark, viewBox="0 0 16 16", aria_hidden="true")
        state = {"type": "button", "class_": f"c{colour}", "data_method": name, "aria_pressed": "false"}
        items.append(tag("button", swatch + escape(name), **state))
    return tag("div", "".join(items), class_="legend", role="group", aria_label="bring out one method")


def account(epsilon: float, unit: str) -> str:
    """Format an accounted epsilon in words."""
    return f"{format_epsilon(epsilon)} per {unit}"


def seeds(point: Point) -> str:
    """Return the number of seeds that a point averages over; "" for a published number."""
    return "" if not point.run else "1 seed" if point.seeds == 1 else f"{point.seeds} seeds"


def name_unit(unit: str) -> str:
    """Return the protected unit of a release in words."""
    return "no guarantee" if unit == "none" else f"per {unit}"


def level_of_the_commonest(points: Iterable[Point], share: float | None) -> float | None:
    """Return the accuracy of always predicting the largest class, if some point is close enough to it to be
    compared."""
    lowest = min((point.y for point in points), default=math.inf)
    return share if share is not None and lowest < nothing_below(share) else None
