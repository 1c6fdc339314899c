"""Names of methods beside their points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from bench.report.charts.places import Box, Place, overlap
from bench.report.charts.svg import BOTTOM, LEFT, LETTER, LINE, TOP, tag
from bench.report.points import Point

GAP, APART = 11.0, 3.0
"""Between a mark and its name, and around each name."""


def method_names(
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
