"""Charts of the papers' figures and tables: print and ours in one picture, as SVG.

Why no plotting library in the browser: Vega-Lite and Observable Plot draw no mark that these charts need and lack here,
and each page would first have to load one of them, hundreds of kilobytes of a third party's script that the repository
may not hold and that would have to be fetched whenever a report is made. What is drawn here is markup of a few
kilobytes, the same bytes for the same records, whose marks are links that a keyboard reaches and a screen reader says,
and it follows the page's colours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from bench.boards.selection import percent
from bench.papers.figures.sweep_points import OTHERS, Picture
from bench.report.axes import Scale, linear, logarithmic, named, share
from bench.report.charts.levels import largest_class, level_of_the_commonest
from bench.report.charts.marks import Styles, account, joined, legend, mark, styles
from bench.report.charts.places import Box, along, overlap, placed
from bench.report.charts.svg import BOTTOM, HEIGHT, LEFT, LETTER, LINE, NAME_HEIGHT, RIGHT, TOP, WIDTH, grid, tag
from bench.report.points import Point, largest, reach

SIDES = {"epsilon": "ε claimed", "inception_e6": "(IS-1) 10⁶"}
"""What is drawn upwards, where it is no accuracy."""
CLOSE = 0.02
PRINTED_COLOUR = 7


def sweep_figure(picture: Picture, look: Styles | None = None) -> str:
    """One picture with a legend of its lines, which look as `look` has it: as in all pictures of the figure."""
    look = look_of(picture.points) if look is None else look
    x = _across(picture)
    y = _upwards(picture)
    height = HEIGHT + int(NAME_HEIGHT * max(map(len, x.names), default=0))
    sweep = picture.sweep
    content = grid(x, y, sweep.label, SIDES.get(sweep.y, "accuracy"), height) + _printed_lines(picture, x, y)
    if not x.names:
        content += joined(picture.points, x, y, look)
    places = placed(picture.points, x, y)
    content += "".join(mark(point, at, x, y, look) for point, at in zip(picture.points, places, strict=True))
    share = _commonest(picture)
    if share is not None:
        covered = [(a - 6, b - 6, a + 6, b + 6) for a, b in places] + along(picture.points, x, y)
        covered += _level_lines(picture, x, y)
        content += largest_class(share, x, y, covered)[0]
    title = f"{picture.dataset}: {sweep.title}"
    drawn = tag("svg", content, viewBox=f"0 0 {WIDTH} {height}", role="group", aria_label=title)
    names = sorted({point.method for point in picture.points}, key=lambda name: (name == OTHERS, name))
    below = legend(names, look) if names else ""
    told = tag("span", escape(accounts(picture.points)))
    return tag("figure", tag("figcaption", tag("strong", escape(title)) + told) + drawn + below, class_="panel")


def accounts(points: Sequence[Point]) -> str:
    """From where to where the accounted epsilons of our points go, unit by unit; "" without any."""
    found: dict[str, set[float]] = defaultdict(set)
    for point in points:
        if point.account:
            found[point.account[1]].add(point.account[0])
    return "; ".join(_range(min(values), max(values), unit) for unit, values in sorted(found.items()))


def _range(least: float, most: float, unit: str) -> str:
    one, other = (account(value, unit).partition(" ")[0] for value in (least, most))
    return f"ε accounted {one} per {unit}" if one == other else f"ε accounted from {one} to {other} per {unit}"


def _commonest(picture: Picture) -> float | None:
    if picture.sweep.y != "accuracy":
        return None
    share_of = largest(point.commonest for point in picture.points)
    return level_of_the_commonest([point for point in picture.points if point.run], share_of)


def look_of(points: Iterable[Point]) -> Styles:
    """Lines in the order of their names; printed ones are grey, and so is what is beside them."""
    points = list(points)
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
    scale = (logarithmic if picture.axis == "log" else linear)(values, LEFT, RIGHT)
    return replace(scale, beyond=picture.sweep.beyond)


def _upwards(picture: Picture) -> Scale:
    share_of = _commonest(picture)
    values = [*reach(picture.points), *picture.levels.values(), *([] if share_of is None else [share_of])]
    if picture.sweep.y not in SIDES:
        return share(values or [0.0, 1.0], BOTTOM, TOP)
    return logarithmic(values or [1.0], BOTTOM, TOP)


def _printed_lines(picture: Picture, x: Scale, y: Scale) -> str:
    """Dashed lines where the paper names a place on one axis alone, with names that cover neither points nor each
    other, and no line where there is room."""
    lines = _level_lines(picture, x, y)
    drawn = "".join(
        tag("path", d=f"M{LEFT} {y.at(value):.1f}H{x.edge}", class_="level") for value in picture.levels.values()
    )
    drawn += "".join(
        tag("path", d=f"M{x.at(value):.1f} {TOP}V{BOTTOM}", class_="level") for value in picture.uprights.values()
    )
    taken: list[Box] = [(a - 5, b - 5, a + 5, b + 5) for a, b in placed(picture.points, x, y)]
    for label, value in picture.levels.items():
        place = y.at(value)
        near = (place - 7, place + LINE, place - 7 - LINE, place + 2 * LINE + 2)
        heights = [at for at in near if TOP + 9 <= at < BOTTOM]
        told, ends = f"{percent(value)}: {label}", [(LEFT + 6.0, "start"), (x.edge - 6, "end")]
        drawn += _name(told, ends, heights, taken, lines)
    for label, value in picture.uprights.items():
        place = x.at(value)
        sides = [(place - 5, "end"), (place + 5, "start")]
        heights = [float(at) for at in range(BOTTOM - 8, int(TOP + LINE), -int(LINE))]
        told = f"{value:,.6g}: {label}"
        drawn += _name(told, sides if place > (LEFT + x.edge) / 2 else sides[::-1], heights, taken, lines)
    return drawn


def _level_lines(picture: Picture, x: Scale, y: Scale) -> list[Box]:
    """The dashed lines' boxes."""
    found = [(x.at(value) - 1, float(TOP), x.at(value) + 1, float(BOTTOM)) for value in picture.uprights.values()]
    return found + [(float(LEFT), y.at(value) - 1, x.edge, y.at(value) + 1) for value in picture.levels.values()]


def _name(
    told: str, sides: Sequence[tuple[float, str]], heights: Sequence[float], taken: list[Box], lines: Sequence[Box]
) -> str:
    """A name at the first side and height where it is inside of the picture and covers nothing; else no more than
    lines; one that is too long for either side begins where the picture does."""
    offered = [(across, at, anchor) for across, anchor in sides for at in heights]
    fits = [each for each in offered if _is_inside(_beside(told, *each))]
    fits = fits or [(LEFT + 6.0, at, "start") for at in heights]
    free = [each for each in fits if not any(overlap(_beside(told, *each), box) for box in taken)]
    clear = [each for each in free if not any(overlap(_beside(told, *each), box) for box in lines)]
    across, at, anchor = (clear or free or fits)[0]
    taken.append(_beside(told, across, at, anchor))
    return tag("text", escape(told), x=across, y=at, text_anchor=anchor, class_="quiet name")


def _is_inside(box: Box) -> bool:
    return box[0] >= LEFT and box[2] <= WIDTH


def _beside(told: str, across: float, at: float, anchor: str) -> Box:
    """The box of a line of text that begins or ends at a place."""
    start = across - LETTER * len(told) if anchor == "end" else across
    return (start, at - LINE + 4, start + LETTER * len(told), at + 4)


def agreement(lines: Sequence[Mapping[str, Any]]) -> str:
    """Ours against print for a table's numbers, with a band of two points on either side of equality; "" without any.

    Args:
        lines: of `bench.papers.tables`.
    """
    points = [_agreement_point(line, line["ours"]) for line in lines if line["ours"] is not None]
    if not points:
        return ""
    values = [*(point.x for point in points), *reach(points)]
    x, y = share(values, LEFT, RIGHT), share(values, BOTTOM, TOP)  # one scale, or equality is no diagonal
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
    """The line of equality and the band around it, which is cut off where the two equal scales end."""
    low, high = x.low, x.high
    corners = [(low, low), (low, low + CLOSE), (high - CLOSE, high), (high, high), (high, high - CLOSE)]
    corners.append((low + CLOSE, low))
    band = "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in corners) + "z"
    line = f"M{x.at(low):.1f} {y.at(low):.1f}L{x.at(high):.1f} {y.at(high):.1f}"
    return tag("path", d=band, fill="currentColor", fill_opacity="0.16") + tag("path", d=line, class_="level")
