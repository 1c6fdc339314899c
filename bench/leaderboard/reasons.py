"""Why a number of ours is behind the paper's: a code, and the experiment or the page that it stands on.

A code names what is known to set the two numbers apart, the surest first. Only `information` is a proof; of the others
the sentence says what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench import data
from bench.leaderboard.printed_information import ISSUE
from bench.leaderboard.reported import Line

CLOSE = 0.02
"""Shortfalls of accuracy up to this need no reason: two points."""
UNPROTECTED = ("dgd", "dp-dfd")
"""Methods whose generator, as their papers print it, learns from the unprotected teacher (docs/methods.md)."""


@dataclass(frozen=True)
class Reason:
    """A code of `CODES`, and what a reader can look up or run.

    Attributes:
        experiment: a page of docs/ or a command.
    """

    code: str
    experiment: str


CODES = {
    "information": "The settings that the paper prints let through less information than its printed number needs, "
    "whatever the algorithm. This is proved.",
    "data-subset": "Ours had other data than the paper: fewer images, another size, or decoded from JPEG.",
    "unprotected-generator": "The paper's generator learns from the unprotected teacher, which no epsilon covers; ours "
    "learns from protected answers alone. At tier quick the unprotected one did not help either.",
    "size": "Ours was run at a smaller size than the paper's. Whether size explains the difference was not tried.",
    "unknown": "Ours was run at the paper's size and is still behind. Nothing that was tried explains it.",
}
"""Code to what it means; the first that fits is given."""


def reason(line: Line) -> Reason | None:
    """What sets a number of ours apart from the printed one, where it is more than `CLOSE` behind; else None."""
    if line.row is None or line.difference is None or line.difference >= -CLOSE:
        return None
    entry, row = line.entry, line.row
    if ISSUE in entry.issues:
        return Reason("information", "docs/information.md")
    if _is_other_data(str(row["dataset"]), entry.dataset):
        return Reason("data-subset", "docs/data.md")
    if entry.method in UNPROTECTED and row["variant"] == "working":
        return Reason("unprotected-generator", "bench sweep recipes/ingredients.toml")
    if row["tier"] != "paper":
        return Reason("size", _at_paper_size(row, entry.dataset))
    return Reason("unknown", _at_paper_size(row, entry.dataset))


def _is_other_data(ours: str, theirs: str) -> bool:
    return ours != theirs and data.base_name(ours) == theirs


def _at_paper_size(row: Any, dataset: str) -> str:
    return f"bench run --method {row['method']} --variant {row['variant']} --dataset {dataset} --tier paper"
