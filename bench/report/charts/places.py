"""Where marks, curves and lines of text go, so that none lies on another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from bench.report.axes import BAND, Scale
from bench.report.charts.svg import LEFT, LINE, TOP
from bench.report.points import Point

BESIDE = (0.0, 8.0, -8.0, 16.0, -16.0)
"""How far a mark may step aside, so that it does not lie on another one."""
Place = tuple[float, float]
Box = tuple[float, float, float, float]


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


def curves(points: Sequence[Point], x: Scale, y: Scale) -> list[tuple[str, list[Place]]]:
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
    for _, places in curves(points, x, y):
        for (a, b), (c, d) in pairwise(places):
            steps = max(1, math.ceil(math.hypot(c - a, d - b) / 4))
            middle = [(a + (c - a) * n / steps, b + (d - b) * n / steps) for n in range(steps + 1)]
            boxes += [(across - 1, height - 1, across + 1, height + 1) for across, height in middle]
    return boxes


def stacked(wanted: Sequence[float]) -> list[float]:
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


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
