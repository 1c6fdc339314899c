"""Find the published numbers that a result of ours is compared with, and their flags."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from bench import data
from bench.boards.results import Result
from bench.data.splits import CANARIES
from bench.papers.printed_numbers import PrintedNumber, ablation, epsilons_of_table, load
from bench.storage.records import Changed

OWN_PAPER = {"dgd": "dgd", "dp-dfd": "dp-dfd", "dpdfd": "dpdfd", "dpsd": "dpsd", "fed-dpsd": "dpsd"}
MODES = ("dpsd", "fed-dpsd")
"""Methods with a mode for data and one for labels; published numbers of one are not compared with the other."""
CLOSE = 3.5e-3
"""Relative difference by which a claim may be below a published epsilon, since the search for noise stops below the
budget. The nearest two published epsilons, 7.5 and 7.53, differ by 4e-3."""
EXACT = 1e-9
"""Relative difference by which rounding may put a claim above a published epsilon."""
base_name = cache(data.base_name)
ONE_OF_TWO = "eps-uncertain"
"""The issue of a number that belongs to one of the epsilons of its table, but the paper does not say to which."""


def find(
    dataset: str,
    method: str,
    epsilon: float | None,
    given: Changed | None = None,
    teacher: str = "",
    split: str = "iid",
    unsure: bool = False,
) -> tuple[PrintedNumber, ...]:
    """Return the published accuracies for the settings of a result, best source first.

    They have the same data set, method, ablation and claimed epsilon (no claim and an infinite one match methods that
    promise nothing), and for methods with two modes the same mode. The method's own paper comes first, then tables
    before sentences, then the file's order.

    Args:
        dataset: a board's name.
        epsilon: claimed epsilon; None without a claim.
        given: options that differ from the defaults, group to option to value.
        teacher: the teacher's network, for tables that compare teachers.
        split: only splits with all classes, true labels and all records have published numbers.
        unsure: also find numbers that belong to this epsilon or to another one of their table.
    """
    if split.startswith("disjoint") or split in ("few", CANARIES):
        return ()
    given = given or {}
    is_label = method in MODES and given.get("method", {}).get("mode") == "label"
    return _find(base_name(dataset), method, ablation(method, given), is_label, teacher, epsilon, unsure)


def find_for(result: Result, unsure: bool = False) -> tuple[PrintedNumber, ...]:
    """Find the published accuracies of a result, as `find`."""
    release = result.release
    return find(release.dataset, release.method, result.claimed, result.options, release.teacher, release.split, unsure)


@lru_cache
def _find(
    dataset: str, method: str, ablation: str, is_label: bool, teacher: str, epsilon: float | None, unsure: bool
) -> tuple[PrintedNumber, ...]:
    found = []
    for entry in _accuracies().get((method, dataset, ablation), ()):
        if (entry.teacher and entry.teacher != teacher) or (method in MODES and is_label != (entry.unit == "label")):
            continue
        if entry.unit == "none":
            is_at = epsilon is None or math.isinf(epsilon)
        elif entry.epsilon is None:
            is_at = names_noise(entry)
        else:
            is_at = are_close(entry.epsilon, epsilon)
        if is_at or (unsure and possible_epsilons(entry, epsilon)):
            found.append(entry)
    return tuple(found)


@cache
def _accuracies() -> dict[tuple[str, str, str], tuple[PrintedNumber, ...]]:
    """Return the published accuracies by method, data set and ablation, best source first."""
    found: dict[tuple[str, str, str], list[PrintedNumber]] = defaultdict(list)
    for entry in load():
        if entry.metric == "accuracy":
            found[entry.method, entry.dataset, entry.ablation].append(entry)

    def rank(entry: PrintedNumber) -> tuple[bool, bool]:
        return entry.paper != OWN_PAPER.get(entry.method, ""), entry.table.startswith("text")

    return {key: tuple(sorted(entries, key=rank)) for key, entries in found.items()}


def names_noise(entry: PrintedNumber) -> bool:
    """Whether the paper says how much noise a private number had: by an epsilon or by sigma."""
    return entry.epsilon is not None or "sigma=" in entry.ablation


def possible_epsilons(entry: PrintedNumber, claimed: float | None) -> list[float]:
    """Return the epsilons, close to a claim, to which a number of one of two epsilons may belong."""
    known = epsilons_of_table(entry) if ONE_OF_TWO in entry.issues else ()
    return [each for each in known if are_close(each, claimed)]


def are_close(epsilon: float, claimed: float | None) -> bool:
    """Whether a claim counts as a published epsilon: at most a share `CLOSE` below it, and not above."""
    if claimed is None:
        return False
    return math.isclose(epsilon, claimed, rel_tol=CLOSE) and claimed <= epsilon * (1 + EXACT)


@lru_cache
def flags_of(found: tuple[PrintedNumber, ...]) -> frozenset[str]:
    """Return the flags of the first of the numbers that `find` returned."""
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
    """Return our accuracy minus the published one."""
    return None if ours is None else round(ours - entry.value, 6)
