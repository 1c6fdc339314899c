"""Charts of the papers' figures and tables: print and ours in one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.boards.attacked import percent
from bench.papers.figures.sweep_points import OTHERS, Picture
from bench.report.charts import Chart, Kind, Scale, Styles, account, legend, level_of_the_commonest, styles, tag
from bench.report.points import Point, largest, reach

SIDES = {"epsilon": "ε claimed", "inception_e6": "(IS-1) 10⁶"}
"""What is drawn upwards, where it is no accuracy."""
CLOSE = 0.02
PRINTED_COLOUR = 7


def sweep_figure(picture: Picture, look: Styles | None = None) -> str:
    """One picture with a legend of its lines, which look as `look` has it: as in all pictures of the figure."""
    look = look_of(picture.points) if look is None else look
    sweep, points, names = picture.sweep, picture.points, picture.names
    commonest = _commonest(picture)
    across = [*(point.x for point in points), *picture.uprights.values()]
    upwards = [*reach(points), *picture.levels.values(), *([] if commonest is None else [commonest])]
    if not names and not across:
        names = ("nothing was run",)
    kind: Kind = "names" if names else "log" if picture.axis == "log" else "number"
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
    """From where to where the accounted epsilons of our points go, unit by unit; "" without any."""
    found: dict[str, set[float]] = defaultdict(set)
    for point in points:
        if point.account:
            found[point.account[1]].add(point.account[0])
    return "; ".join(f"ε accounted {_range(sorted(values), unit)} per {unit}" for unit, values in sorted(found.items()))


def _range(values: Sequence[float], unit: str) -> str:
    least, most = (account(value, unit).partition(" ")[0] for value in (values[0], values[-1]))
    return least if least == most else f"from {least} to {most}"


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


def agreement(lines: Sequence[Mapping[str, Any]]) -> str:
    """Ours against print for a table's numbers, with a band of two points on either side of equality; "" without any.

    Args:
        lines: of `bench.papers.tables`.
    """
    points = [_agreement_point(line, line["ours"]) for line in lines if line["ours"] is not None]
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


def _agreement_point(line: Mapping[str, Any], ours: Mapping[str, Any]) -> Point:
    budget = "" if line["epsilon"] is None else f", ε {line['epsilon']:g}"
    setting = f"{ours['variant']}, {line['dataset']}{budget}"
    return Point(
        line["method"], setting, line["printed"], ours["accuracy"], ours["std"], ours["run"], seeds=ours["seeds"],
        proven=ours["usual"],
    )  # fmt: skip
