"""The charts of one data set: one section per tier and split, which are never mixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from html import escape
from itertools import pairwise

from bench.boards.attacked import percent
from bench.report import points
from bench.report.charts import LINE, Chart, Scale, Styles, legend, level_of_the_commonest, name_unit, tag
from bench.report.glossary import TIERS, UNITS
from bench.report.points import Panel, fronts, reach
from bench.storage.records import Record

EPSILON = (
    "Every point is a setting, the mean over its seeds; the bar is one standard deviation. Epsilons of different units "
    "cannot be compared: each unit has its own panel, and so have claimed and accounted epsilons. The strip at ∞ holds "
    "releases without a finite epsilon. Marks that would cover each other are drawn side by side."
)
CURVE = (
    "Settings that were run at several budgets and are otherwise equal. Hollow points are published accuracies, at "
    "the epsilon they name."
)
ATTACK = (
    "The student's accuracy against the attack's success on it. Each protected unit has its own Pareto front: no other "
    "release of the unit is as safe and as accurate. Hollow points are left out of it: their attack did not prove its "
    "power."
)

Published = Callable[[Collection[str]], list[Panel]]
"""Function of the methods with runs that returns panels of published accuracies."""

MARGIN = 90.0
"""Room right of a chart for the names of Pareto fronts."""
EPSILONS = {"claimed": "claimed by the paper", "accounted": "accounted: what can be proved", "reported": "as printed"}


def epsilon_panel(panel: Panel, look: Styles, lines: bool = False) -> str:
    """Draw accuracy against epsilon on a logarithmic scale; with `lines`, points of a series are joined."""
    label = f"ε {panel.what}, per {panel.unit}"
    chart = Chart(Scale(label, [point.x for point in panel.points], "log"), _accuracy(panel), panel.points, look)
    if lines:
        chart.join()
    for value in panel.lines.values():
        chart.level(value)
    meaning = "in the paper's own words" if panel.what == "reported" else UNITS[panel.unit]
    return _figure(chart, panel, f"{EPSILONS[panel.what]}, per {panel.unit}", meaning, above=lines)


def attack_panel(panel: Panel, look: Styles) -> str:
    """Draw accuracy against the success of an attack, with the Pareto front of every unit."""
    values = [*(point.x for point in panel.points), *panel.lines.values()]
    scale = Scale(f"{panel.what} of {panel.attack} on the student", values)
    chart = Chart(scale, _accuracy(panel), panel.points, look, MARGIN)
    coin = 0.5 if panel.what == "AUC" else 0.0  # the success of random guessing, if it is the same for all
    counts = []
    for unit, best in sorted(fronts(panel.points, coin).items(), key=lambda item: -item[1][-1].y):
        places = [chart.at(point.x, point.y) for point in best]
        corners = [(right, up) for (_, up), (right, _) in pairwise([*places, (chart.edge, 0.0)])]
        chart.line([each for pair in zip(places, corners, strict=True) for each in pair], f"front {unit}")
        for x, y in places:
            chart.add(tag("circle", cx=x, cy=y, r=9, class_="best"))
        rows = [places[-1][1] + step * LINE / 2 for step in (0, 1, -1, 2, -2, 3, -3, 4, -4)]
        chart.write(name_unit(unit), [(chart.edge + 11, row, "start") for row in rows])
        counts.append(f"{len(best)} of {sum(point.unit == unit for point in panel.points)} {name_unit(unit)}")
    for name, value in panel.lines.items():
        chart.level(value, name, upright=True)
    meaning = "left is safer, up is more useful; ringed: no other release of its unit is as safe and as accurate"
    meaning += f" ({', '.join(counts) or 'none'})" + ("; below 0.5 is as safe as 0.5" if coin else "")
    return _figure(chart, panel, panel.attack, meaning)


def _accuracy(panel: Panel) -> Scale:
    """Return the scale of accuracy that contains all points and levels."""
    levels = [] if panel.attack else list(panel.lines.values())
    commonest = level_of_the_commonest(panel.points, panel.commonest)
    return Scale("accuracy", [*reach(panel.points), *levels, *([] if commonest is None else [commonest])])


def _figure(chart: Chart, panel: Panel, title: str, meaning: str, above: bool = False) -> str:
    """Draw the level of the largest class and the names; return the figure, whose caption has the levels' values."""
    commonest = level_of_the_commonest(panel.points, panel.commonest)
    if commonest is not None:
        chart.level(commonest, "largest class")
    chart.name_methods(above)
    write = "{:.4g}".format if panel.attack else percent
    is_drawn = len(panel.points) > 1
    notes = [meaning] if is_drawn or not panel.attack else []
    levels = ", ".join(f"{name} {write(value)}" for name, value in panel.lines.items())
    notes += [f"dashed: {levels}" if is_drawn else levels] if levels else []
    notes += [] if panel.commonest is None else [f"the largest class is {percent(panel.commonest)}"]
    return chart.markup(title, "; ".join(notes), f"{title}: accuracy against {chart.x.label}")


def section(records: Iterable[Record], published: Published, look: Styles) -> str:
    """Draw all charts of one data set as markup, by tier and split."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    of_split: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        split = record.spec["release"]["teacher"]["data"]["split"]
        groups[record.spec["tier"], split].append(record)
        of_split[split].append(record)
    share = {split: points.commonest(found) for split, found in of_split.items()}
    sections = []
    for tier, split in sorted(groups, key=lambda place: (list(TIERS).index(place[0]), place[1])):
        mine, commonest = groups[tier, split], share[split]
        methods = {record.spec["release"]["method"] for record in mine}
        panels = [replace(panel, commonest=commonest) for panel in points.epsilons(mine)]
        lines = points.curves(panels)
        content = tag("h2", escape(f"Tier {tier}, split {split}"))
        content += tag("p", escape(f"{TIERS[tier]}."), class_="smoke" if tier == "smoke" else "note")
        content += legend(sorted(methods), look)
        content += _block("Accuracy against epsilon", EPSILON, [epsilon_panel(panel, look) for panel in panels])
        if lines:
            curves = [epsilon_panel(panel, look, True) for panel in (*lines, *published(methods))]
            content += _block("Privacy-accuracy curve", CURVE, curves)
        attacked = [replace(panel, commonest=commonest) for panel in points.attacks(mine)]
        content += _block("Accuracy against attack success", ATTACK, [attack_panel(panel, look) for panel in attacked])
        sections.append(tag("section", content, class_="tier"))
    return "".join(sections)


def _block(title: str, note: str, drawn: list[str]) -> str:
    if not drawn:
        return ""
    return (
        tag("h3", escape(title)) + tag("p", escape(note), class_="note") + tag("div", "".join(drawn), class_="panels")
    )
