"""The charts of one data set: a section per tier and split, which are never mixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape

from bench.report import charts, points
from bench.report.charts import Styles, tag
from bench.report.glossary import TIERS
from bench.storage.records import Record

EPSILON = (
    "Every point is a setting, the mean over its seeds; the bar is one standard deviation. Epsilons of different units "
    "are different things: each unit has a panel of its own, and so have what papers claim and what can be proved. "
    "The strip at ∞ holds releases for which nothing is promised or proved."
)
CURVE = (
    "Settings that were run at several budgets and differ in nothing else, as in figure 9 of the DPSD paper. Hollow "
    "points are accuracies printed by the papers, at the epsilon they name."
)
ATTACK = (
    "The student's accuracy against the attack's success on it. Every unit that releases promise something for "
    "has a Pareto front of its own, a staircase: nothing else of the unit is as safe and as accurate. Hollow points "
    "stand outside: their attack did not prove its power."
)


def section(records: Iterable[Record], reported: list[dict[str, str]], look: Styles) -> str:
    """All charts of one data set as markup, tier by tier and split by split."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.spec["tier"], record.spec["release"]["teacher"]["data"]["split"]].append(record)
    order = sorted(groups, key=lambda where: (list(TIERS).index(where[0]), where[1]))
    return "".join(_part(tier, split, groups[tier, split], reported, look) for tier, split in order)


def _part(tier: str, split: str, records: list[Record], reported: list[dict[str, str]], look: Styles) -> str:
    methods = {record.spec["release"]["method"] for record in records}
    panels = points.epsilons(records)
    lines = points.curves(panels)
    content = tag("h2", escape(f"Tier {tier}, split {split}"))
    content += tag("p", escape(f"{TIERS[tier]}."), class_="smoke" if tier == "smoke" else "note")
    content += charts.legend(sorted(methods), look)
    content += _block("Accuracy against epsilon", EPSILON, [charts.epsilon_panel(p, look) for p in panels])
    if lines:
        lines += points.reported(reported, methods)
        drawn = [charts.epsilon_panel(panel, look, lines=True) for panel in lines]
        content += _block("Privacy-accuracy curve", CURVE, drawn)
    attacked = points.attacks(records)
    drawn = [charts.attack_panel(panel, look) for panel in attacked]
    content += _block("Accuracy against attack success", ATTACK, drawn)
    return tag("section", content, class_="tier")


def _block(title: str, note: str, figures: list[str]) -> str:
    if not figures:
        return ""
    return (
        tag("h3", escape(title)) + tag("p", escape(note), class_="note") + tag("div", "".join(figures), class_="panels")
    )
