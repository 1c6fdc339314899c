"""Which printed numbers belong beside a row of a board, and what a reader must know of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from bench import data
from bench.boards.board_cells import Row, blank, number, options
from bench.data.canaries import SPLIT as CANARIES
from bench.papers.ablations import ablation
from bench.papers.printed_numbers import Reported, beside, load
from bench.storage.options import Changed

OWN_PAPER = {"dgd": "dgd", "dp-dfd": "dp-dfd", "dpdfd": "dpdfd", "dpsd": "dpsd", "fed-dpsd": "dpsd"}
MODES = ("dpsd", "fed-dpsd")
"""Methods with a mode for data and one for labels; the papers' numbers of one are not compared with the other's."""
CLOSE = 3.5e-3
"""A claim is of a printed epsilon if it is less by at most this share: a search for noise meets a budget from below.
The nearest two that the papers print, 7.5 and 7.53, are 4e-3 apart."""
EXACT = 1e-9
"""What rounding may add to a number that is asked for exactly, as a share."""
ONE_OF_TWO = "eps-uncertain"
"""The issue of a number that belongs to one of a table's epsilons, of which one is not known."""


def find(
    dataset: str,
    method: str,
    epsilon: float | None,
    given: Changed | None = None,
    teacher: str = "",
    split: str = "iid",
    unsure: bool = False,
) -> tuple[Reported, ...]:
    """The printed accuracies of a board's row, best source first.

    Same data set, same method, same claimed epsilon (compared as numbers; none and infinity match methods alone that
    promise nothing), same ablation, and for methods with two modes the same mode. The method's own paper comes first,
    tables before sentences, then the file's order.

    Args:
        dataset: a board's name.
        epsilon: claimed; None where nothing is.
        given: what differs from the defaults, group to option to value.
        teacher: network, which matters where a table compares teachers.
        split: only rows of all classes, of their own labels and of as many records have a printed counterpart.
        unsure: also those that may be for this epsilon, or for another one of their table.
    """
    if split.startswith("disjoint") or split in ("few", CANARIES):
        return ()
    given = given or {}
    label = method in MODES and given.get("method", {}).get("mode") == "label"
    return _printed(_paper_name(dataset), method, ablation(method, given), label, teacher, epsilon, unsure)


@cache
def _paper_name(dataset: str) -> str:
    """Data set of a board to data set of the papers; kept, as every row of a board asks."""
    return data.base_name(dataset)


@lru_cache
def _printed(
    dataset: str, method: str, ablation: str, label: bool, teacher: str, epsilon: float | None, unsure: bool
) -> tuple[Reported, ...]:
    return tuple(
        entry
        for entry in _accuracies().get((method, dataset, ablation), ())
        if (not entry.teacher or entry.teacher == teacher)
        and (method not in MODES or label == (entry.unit == "label"))
        and (_same_epsilon(entry, epsilon) or (unsure and epsilon is not None and _may_be(entry, epsilon)))
    )


def of_row(row: Row, dataset: str = "", unsure: bool = False) -> tuple[Reported, ...]:
    """`find`, for a row with a board's columns; empty cells are None, NaN or ""."""
    return find(
        dataset or str(row.get("dataset") or ""),
        str(row["method"]),
        number(row.get("epsilon_claimed")),
        options(str(blank(row.get("options")))),
        str(row.get("teacher") or ""),
        str(row.get("split") or "iid"),
        unsure,
    )


@cache
def _accuracies() -> dict[tuple[str, str, str], tuple[Reported, ...]]:
    """Printed accuracies by method, data set and ablation, best source first."""
    found: dict[tuple[str, str, str], list[Reported]] = defaultdict(list)
    for entry in load():
        if entry.metric == "accuracy":
            found[entry.method, entry.dataset, entry.ablation].append(entry)
    return {key: tuple(sorted(entries, key=_rank)) for key, entries in found.items()}


def _rank(entry: Reported) -> tuple[bool, bool]:
    """The method's own paper first, tables before sentences."""
    return entry.paper != OWN_PAPER.get(entry.method, ""), entry.table.startswith("text")


def _same_epsilon(entry: Reported, claimed: float | None) -> bool:
    if entry.unit == "none":
        return claimed is None or math.isinf(claimed)
    if entry.epsilon is None:
        return names_noise(entry)
    return are_close(entry.epsilon, claimed)


def names_noise(entry: Reported) -> bool:
    """Whether a number of private training says how much noise there was: by an epsilon, or by sigma."""
    return entry.epsilon is not None or "sigma=" in entry.ablation


def _may_be(entry: Reported, claimed: float) -> bool:
    """Whether a number whose row is not known may stand in the one of this epsilon."""
    return ONE_OF_TWO in entry.issues and any(are_close(each, claimed) for each in beside(entry))


def are_close(epsilon: float, claimed: float | None) -> bool:
    if claimed is None:
        return False
    return math.isclose(epsilon, claimed, rel_tol=CLOSE) and claimed <= epsilon * (1 + EXACT)


def join(row: Row, dataset: str = "") -> dict[str, Any]:
    """What the papers print, as columns for a board's row.

    Args:
        row: of a board, with its columns; empty cells are None, NaN or "".
        dataset: the board's name; default: the row's own "dataset".

    Returns:
        reported_accuracy, reported_source and reported_difference (ours less theirs), None where nothing matches, and
        flags: the row's own with `reported:ISSUE` for every contradiction that touches the number, and
        `reported-differs` where sources of the same rank disagree.
    """
    found = of_row(row, dataset)
    flags = set(str(blank(row.get("flags"))).split())
    if not found:
        return {
            "reported_accuracy": None, "reported_source": None, "reported_difference": None,
            "flags": " ".join(sorted(flags)),
        }  # fmt: skip
    first = found[0]
    flags |= flags_of(found)
    return {
        "reported_accuracy": first.value,
        "reported_source": first.source,
        "reported_difference": difference(number(row.get("accuracy_mean")), first),
        "flags": " ".join(sorted(flags)),
    }


@lru_cache
def flags_of(found: tuple[Reported, ...]) -> frozenset[str]:
    """The flags of the first of the numbers that `find` gave."""
    first = found[0]
    ranked = [entry for entry in found if entry.paper == first.paper] if first.paper == _own(first) else found
    return frozenset(f"reported:{issue}" for issue in first.issues) | (
        {"reported-differs"} if disagree(ranked) else set()
    )


def disagree(entries: Iterable[Reported]) -> bool:
    """Whether two printed numbers differ by a unit of the coarser one's last digit, or more."""
    known = list(entries)
    return any(
        abs(a.value - b.value) > 10.0 ** -min(_places(a), _places(b)) - 1e-9 for a in known for b in known if a is not b
    )


def difference(ours: float | None, entry: Reported) -> float | None:
    """Our accuracy less the printed one."""
    return None if ours is None else round(ours - entry.value, 6)


def _own(entry: Reported) -> str:
    return OWN_PAPER.get(entry.method, "")


def _places(entry: Reported) -> int:
    return len(entry.printed.partition(".")[2])
