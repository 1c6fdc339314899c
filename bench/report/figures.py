"""The charts of one data set: a section per tier and split, which are never mixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from html import escape

from bench.report import points
from bench.report.charts.marks import Styles, legend
from bench.report.charts.panels import alone, attack_panel, epsilon_panel
from bench.report.charts.svg import tag
from bench.report.glossary import TIERS
from bench.report.points import Panel
from bench.storage.records import Record

EPSILON = (
    "Every point is a setting, the mean over its seeds; the bar is one standard deviation. Epsilons of different units "
    "are different things: each unit has a panel of its own, and so have what papers claim and what can be proved. "
    "The strip at ∞ holds releases for which nothing is promised or proved. Marks that would lie on one another stand "
    "side by side."
)
CURVE = (
    "Settings that were run at several budgets and differ in nothing else. Hollow points are published accuracies, at "
    "the epsilon they name."
)
ATTACK = (
    "The student's accuracy against the attack's success on it. Every unit that releases promise something for "
    "has a Pareto front of its own, a staircase: nothing else of the unit is as safe and as accurate. Hollow points "
    "stand outside: their attack did not prove its power."
)

Published = Callable[[Collection[str]], list[Panel]]
"""Methods with runs -> panels of published accuracies."""


def section(records: Iterable[Record], published: Published, look: Styles) -> str:
    """All charts of one data set as markup, tier by tier and split by split."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.spec["tier"], record.spec["release"]["teacher"]["data"]["split"]].append(record)
    order = sorted(groups, key=lambda where: (list(TIERS).index(where[0]), where[1]))
    of_split: dict[str, list[Record]] = defaultdict(list)
    for (_, split), found in groups.items():
        of_split[split] += found
    share = {split: points.commonest(found) for split, found in of_split.items()}
    return "".join(_part(*where, groups[where], published, look, share[where[1]]) for where in order)


def _part(
    tier: str,
    split: str,
    records: list[Record],
    published: Published,
    look: Styles,
    commonest: float | None = None,
) -> str:
    methods = {record.spec["release"]["method"] for record in records}
    panels = [replace(panel, commonest=commonest) for panel in points.epsilons(records)]
    lines = points.curves(panels)
    content = tag("h2", escape(f"Tier {tier}, split {split}"))
    content += tag("p", escape(f"{TIERS[tier]}."), class_="smoke" if tier == "smoke" else "note")
    content += legend(sorted(methods), look)
    content += _block("Accuracy against epsilon", EPSILON, panels, lambda panel: epsilon_panel(panel, look))
    if lines:
        lines += published(methods)
        content += _block("Privacy-accuracy curve", CURVE, lines, lambda panel: epsilon_panel(panel, look, True))
    attacked = [replace(panel, commonest=commonest) for panel in points.attacks(records)]
    content += _block("Accuracy against attack success", ATTACK, attacked, lambda panel: attack_panel(panel, look))
    return tag("section", content, class_="tier")


def _block(title: str, note: str, panels: list[Panel], draw: Callable[[Panel], str]) -> str:
    """Panels of several points drawn, and those of one told."""
    if not panels:
        return ""
    drawn = "".join(draw(panel) for panel in panels if len(panel.points) > 1)
    told = "".join(alone(panel) for panel in panels if len(panel.points) == 1)
    content = tag("h3", escape(title))
    if drawn:
        content += tag("p", escape(note), class_="note") + tag("div", drawn, class_="panels")
    return content + (tag("ul", told, class_="plain") if told else "")
