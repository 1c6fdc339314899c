"""Which published numbers belong next to a result of ours, and what a reader must know of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from bench import data
from bench.boards.results import Result
from bench.data.canaries import SPLIT as CANARIES
from bench.papers.printed_numbers import PrintedNumber, ablation, epsilons_of_table, load
from bench.storage.options import Changed

OWN_PAPER = {"dgd": "dgd", "dp-dfd": "dp-dfd", "dpdfd": "dpdfd", "dpsd": "dpsd", "fed-dpsd": "dpsd"}
MODES = ("dpsd", "fed-dpsd")
"""Methods with a mode for data and one for labels; published numbers of one are not compared with the other."""
CLOSE = 3.5e-3
"""Share by which a claim may be below a published epsilon: a search for noise meets a budget from below. The nearest
two published epsilons, 7.5 and 7.53, are 4e-3 apart."""
EXACT = 1e-9
"""Share that rounding may add to a claim."""
ONE_OF_TWO = "eps-uncertain"
"""The issue of a number that belongs to one of the epsilons of its table, and it is not known to which."""


def find(
    dataset: str,
    method: str,
    epsilon: float | None,
    given: Changed | None = None,
    teacher: str = "",
    split: str = "iid",
    unsure: bool = False,
) -> tuple[PrintedNumber, ...]:
    """The published accuracies of some settings, best source first.

    They have the same data set, method, ablation and claimed epsilon (no claim and an infinite one match methods that
    promise nothing), and for methods with two modes the same mode. The method's own paper comes first, then tables
    before sentences, then the file's order.

    Args:
        dataset: a board's name.
        epsilon: claimed; None for no claim.
        given: options that differ from the defaults, group to option to value.
        teacher: network; it matters where a table compares teachers.
        split: only splits with all classes, true labels and all records have published numbers.
        unsure: also find numbers that belong either to this epsilon or to another one of their table.
    """
    if split.startswith("disjoint") or split in ("few", CANARIES):
        return ()
    given = given or {}
    is_label = method in MODES and given.get("method", {}).get("mode") == "label"
    return _find(_paper_dataset(dataset), method, ablation(method, given), is_label, teacher, epsilon, unsure)


def find_for(result: Result, unsure: bool = False) -> tuple[PrintedNumber, ...]:
    """`find`, for a result."""
    release = result.release
    return find(release.dataset, release.method, result.claimed, result.options, release.teacher, release.split, unsure)


@cache
def _paper_dataset(dataset: str) -> str:
    """Data set of a board to data set of the papers; cached, since every row of a board needs it."""
    return data.base_name(dataset)


@lru_cache
def _find(
    dataset: str, method: str, ablation: str, is_label: bool, teacher: str, epsilon: float | None, unsure: bool
) -> tuple[PrintedNumber, ...]:
    return tuple(
        entry
        for entry in _accuracies().get((method, dataset, ablation), ())
        if (not entry.teacher or entry.teacher == teacher)
        and (method not in MODES or is_label == (entry.unit == "label"))
        and (_is_at(entry, epsilon) or (unsure and epsilon is not None and bool(possible_epsilons(entry, epsilon))))
    )


@cache
def _accuracies() -> dict[tuple[str, str, str], tuple[PrintedNumber, ...]]:
    """Published accuracies by method, data set and ablation, best source first."""
    found: dict[tuple[str, str, str], list[PrintedNumber]] = defaultdict(list)
    for entry in load():
        if entry.metric == "accuracy":
            found[entry.method, entry.dataset, entry.ablation].append(entry)

    def rank(entry: PrintedNumber) -> tuple[bool, bool]:
        return entry.paper != OWN_PAPER.get(entry.method, ""), entry.table.startswith("text")

    return {key: tuple(sorted(entries, key=rank)) for key, entries in found.items()}


def _is_at(entry: PrintedNumber, claimed: float | None) -> bool:
    """Whether a number is of a claimed epsilon."""
    if entry.unit == "none":
        return claimed is None or math.isinf(claimed)
    return names_noise(entry) if entry.epsilon is None else are_close(entry.epsilon, claimed)


def names_noise(entry: PrintedNumber) -> bool:
    """Whether the paper says how much noise a private number had: by an epsilon or by sigma."""
    return entry.epsilon is not None or "sigma=" in entry.ablation


def possible_epsilons(entry: PrintedNumber, claimed: float | None) -> list[float]:
    """The epsilons of its table, close to a claim, that a number of one of two epsilons may belong to."""
    known = epsilons_of_table(entry) if ONE_OF_TWO in entry.issues else ()
    return [each for each in known if are_close(each, claimed)]


def are_close(epsilon: float, claimed: float | None) -> bool:
    """Whether a claim meets a published epsilon, from below by a share of at most `CLOSE`."""
    if claimed is None:
        return False
    return math.isclose(epsilon, claimed, rel_tol=CLOSE) and claimed <= epsilon * (1 + EXACT)


@lru_cache
def flags_of(found: tuple[PrintedNumber, ...]) -> frozenset[str]:
    """The flags of the first of the numbers that `find` gave."""
    if not found:
        return frozenset()
    first = found[0]
    is_own = first.paper == OWN_PAPER.get(first.method, "")
    ranked = [entry for entry in found if entry.paper == first.paper] if is_own else found
    issues = {f"reported:{issue}" for issue in first.issues}
    return frozenset(issues | ({"reported-differs"} if disagree(ranked) else set()))


def disagree(entries: Iterable[PrintedNumber]) -> bool:
    """Whether two published numbers differ by a unit of the coarser one's last digit, or more."""
    known = [(entry.value, len(entry.printed.partition(".")[2])) for entry in entries]
    return any(abs(a - b) > 10.0 ** -min(m, n) - 1e-9 for a, m in known for b, n in known)


def difference(ours: float | None, entry: PrintedNumber) -> float | None:
    """Our accuracy minus the published one."""
    return None if ours is None else round(ours - entry.value, 6)
