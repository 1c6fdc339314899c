"""Draw charts of the papers' figures and tables: published numbers and ours in one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bench.boards.attacked import percent
from bench.papers.figures.sweep_points import OTHERS, Picture
from bench.papers.tables import TableLine
from bench.report.charts import Chart, Kind, Scale, Styles, account, legend, level_of_the_commonest, styles, tag
from bench.report.points import Point, largest, reach

SIDES = {"epsilon": "ε claimed", "inception_e6": "(IS-1) 10⁶"}
"""Labels of vertical axes that are not an accuracy."""
CLOSE = 0.02
PRINTED_COLOUR = 7


def sweep_figure(picture: Picture, look: Styles | None = None) -> str:
    """Draw one picture with a legend of its lines; `look` has the styles of all pictures of the figure."""
    look = look_of(picture.points) if look is None else look
    sweep, points, names = picture.sweep, picture.points, picture.names
    commonest = None
    if sweep.y == "accuracy":
        share = largest(point.commonest for point in points)
        commonest = level_of_the_commonest([point for point in points if point.run], share)
    across = [*(point.x for point in points), *picture.uprights.values()]
    upwards = [*reach(points), *picture.levels.values(), *([] if commonest is None else [commonest])]
    if not names and not across:
        names = ("nothing was run",)
    kind: Kind = "names" if names else "log" if sweep.axis == "log" else "number"
    x = Scale(sweep.label, across, kind, names, sweep.beyond)
    y = Scale(SIDES.get(sweep.y, "accuracy"), upwards or [0.0, 1.0], "log" if sweep.y in SIDES else "share")
    chart = Chart(x, y, points, look)
    if not names:
        chart.join()
    for label, value in picture.levels.items():
        chart.level(value, f"{percent(value)}: {label}")
    for label, value in picture.uprights.items():
        chart.level(value, f"{value:,.6g}: {label}", upright=True)
    if commonest is not None:
        chart.level(commonest, "largest class")
    lines = sorted({point.method for point in points}, key=lambda name: (name == OTHERS, name))
    title = f"{picture.dataset}: {sweep.title}"
    return chart.markup(title, accounts(points), title, legend(lines, look) if lines else "")


def accounts(points: Sequence[Point]) -> str:
    """Format the range of the accounted epsilons of our points, for each unit; "" without any."""
    found: dict[str, set[float]] = defaultdict(set)
    for point in points:
        if point.account:
            found[point.account[1]].add(point.account[0])
    ranges = []
    for unit, values in sorted(found.items()):
        least, most = (account(value, unit).partition(" ")[0] for value in (min(values), max(values)))
        ranges.append(f"ε accounted {least if least == most else f'from {least} to {most}'} per {unit}")
    return "; ".join(ranges)


def look_of(points: Iterable[Point]) -> Styles:
    """Return the styles of lines, in the order of their names; published ones and `OTHERS` are grey."""
    points = list(points)
    ours = styles(point.method for point in points if point.run and point.method != OTHERS)
    return (
        ours
        | {OTHERS: (PRINTED_COLOUR, "circle")}
        | {point.method: (PRINTED_COLOUR, "diamond") for point in points if not point.run}
    )


def agreement(lines: Sequence[TableLine]) -> str:
    """Draw our accuracies against the published ones of a table, with a band of two points; "" without any of ours."""
    points = []
    for line in lines:
        if (ours := line.ours) is not None:
            budget = "" if line.epsilon is None else f", ε {line.epsilon:g}"
            setting = f"{ours.variant}, {line.dataset}{budget}"
            points.append(Point(
                line.method, setting, line.printed, ours.accuracy, ours.std, ours.run, seeds=ours.seeds,
                proven=ours.usual,
            ))  # fmt: skip
    if not points:
        return ""
    values = [*(point.x for point in points), *reach(points)]  # the same scale, so that equality is a diagonal
    look = styles(point.method for point in points)
    chart = Chart(
        Scale("printed", values), Scale("ours", values), points, look, hollow="a variant that is not run by default"
    )
    low, high = chart.x.limits
    band = [
        (low, low),
        (low, low + CLOSE),
        (high - CLOSE, high),
        (high, high),
        (high, high - CLOSE),
        (low + CLOSE, low),
    ]
    corners = "L".join(f"{across:.1f} {down:.1f}" for across, down in (chart.at(*corner) for corner in band))
    chart.add(tag("path", d=f"M{corners}z", class_="near"))
    chart.line([chart.at(low, low), chart.at(high, high)], "level")
    meaning = "on the line they are equal; the band is two points; hollow is the variant that is not run by default"
    below = legend(sorted({point.method for point in points}), look)
    return chart.markup("Ours against print", meaning, "ours against print", below)
