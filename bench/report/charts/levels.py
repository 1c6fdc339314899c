"""Dashed lines of a chart, which points are compared with, and their names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.boards.flags import nothing_below
from bench.report.axes import Scale
from bench.report.charts.places import Box, overlap
from bench.report.charts.svg import BOTTOM, LEFT, LETTER, LINE, TOP, tag
from bench.report.points import Panel, Point


def dashed(panel: Panel, x: Scale, y: Scale) -> str:
    """Dashed lines; those of an attack are named, that of accuracy is named above the chart."""
    if not panel.attack:
        return "".join(
            tag("path", d=f"M{LEFT} {y.at(value):.1f}H{x.edge}", class_="level") for value in panel.lines.values()
        )
    parts = [tag("path", d=f"M{x.at(value):.1f} {TOP}V{BOTTOM}", class_="level") for value in panel.lines.values()]
    for label, across, anchor, box in level_names(panel, x):
        height = (box[1] + box[3]) / 2 + 4
        parts.append(tag("text", escape(label), x=across, y=height, text_anchor=anchor, class_="quiet name"))
    return "".join(parts)


def level_names(panel: Panel, x: Scale) -> list[tuple[str, float, str, Box]]:
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


def level_of_the_commonest(points: Sequence[Point], share: float | None) -> float | None:
    """The accuracy of whoever names the largest class, where some point is so near to it that it must be seen."""
    lowest = min((point.y for point in points), default=math.inf)
    return share if share is not None and lowest < nothing_below(share) else None


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
