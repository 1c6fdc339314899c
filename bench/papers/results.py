"""Rank our results for the comparison with published numbers, and match results that differ only in the noise."""

from __future__ import annotations

import math
from functools import cache

from bench import registry
from bench.boards.flags import UNTRUE
from bench.boards.installed import needs
from bench.boards.results import Result
from bench.config import STUDENT, TIERS
from bench.errors import BenchError
from bench.storage.records import GROUPS

Preference = tuple[int | bool | str, ...]


def preference(result: Result) -> Preference:
    """Return the sort key of the results of one variant: the smallest is compared with the published number.

    Preferred are, in this order: a larger tier, fewer options, the installed version, a valid account, the default
    student, more seeds, no attack. The accuracy does not count.
    """
    changed = sum(len(result.options[group]) for group in GROUPS if group != "attack")
    return (
        -TIERS.index(result.release.tier), changed, result.is_older, not result.flags.isdisjoint(UNTRUE),
        result.release.student != STUDENT, -len(result.finished), result.attack is not None, str(result.options),
        " ".join(run.run for run in result.runs),
    )  # fmt: skip


def has_no_noise(result: Result) -> bool:
    """Whether it was run with `--epsilon inf`."""
    epsilon = result.options["budget"].get("epsilon")
    return epsilon is not None and math.isinf(float(epsilon))


def never_has_noise(result: Result) -> bool:
    """Whether it was run with `--epsilon none`, by a method without an option that a budget decides."""
    budget, release = result.options["budget"], result.release
    is_free = "epsilon" in budget and budget["epsilon"] is None
    return is_free and not noise_options(release.method, release.variant)


def queries_teacher(result: Result) -> bool:
    """Whether the method queries the unprotected teacher; False for a method that is not installed."""
    release = result.release
    return "teacher" in (needs(release.method, release.variant, release.tier, result.options["method"]) or ())


Conditions = tuple[str, ...]


def conditions(result: Result, any_size: bool = False) -> Conditions:
    """Return all settings that the accuracy depends on, except the budget, noise options, and the attack.

    Args:
        any_size: leave out the tier and the teacher's network too.
    """
    release = result.release
    noise = noise_options(release.method, release.variant)
    own = {
        group: sorted((name, value) for name, value in given.items() if group != "method" or name not in noise)
        for group, given in result.options.items()
        if group in ("method", "teacher")
    }
    size = () if any_size else (release.tier, release.teacher)
    fixed = (release.dataset, release.method, release.variant, release.split, release.student)
    return (*fixed, *size, str(sorted(own.items())))


@cache
def noise_options(method: str, variant: str) -> frozenset[str]:
    """Return the options that a budget decides, such as sigma; none for a method that is not installed."""
    try:
        return frozenset(o.name for o in registry.describe("method", method, variant).options if o.solved)
    except BenchError:
        return frozenset()
