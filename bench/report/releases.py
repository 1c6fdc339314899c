"""Releases of the boards as data for the pages: guarantees, costs, risks, and the best of each board."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.boards.results import Result
from bench.boards.selection import (
    Candidate,
    Constraints,
    candidates,
    choose,
    missing_measurements,
    queries_teachers,
)
from bench.boards.tables import ACCURACY, Board
from bench.report.glossary import UNITS

EPSILON = 10.0
"""Largest accounted epsilon of the releases on the front page."""
NUMBER = 3
"""Number of releases on the front page, for each unit, tier and split."""


@dataclass(frozen=True)
class ReleaseLine:
    """A release, as the pages list it; an unknown number is None.

    Attributes:
        name: method, variant and setting.
        apart: fields that distinguish it from other releases of its name on the data set, such as "teacher=resnet34".
        std: standard deviation of the accuracy over seeds.
        claimed, claim_unit: epsilon and unit of the paper's claim.
        epsilon, unit, relation, delta: the accounted epsilon, with unit, relation of neighbours and delta.
        audited: empirical lower bound on epsilon per example.
        runs: hashes of the runs behind the numbers.
        attacks: each attack in words, with the hash of one of its runs.
        strongest: the strongest inversion in words.
        older: a phrase if the method has changed since; "" if not.
        missing: phrases for everything that was not measured.
    """

    dataset: str
    tier: str
    split: str
    method: str
    variant: str
    name: str
    setting: str
    apart: str
    accuracy: float | None
    std: float | None
    seeds: int
    claimed: float | None
    claim_unit: str
    epsilon: float | None
    unit: str
    relation: str
    delta: float | None
    audited: float | None
    information: float | None
    seconds: float | None
    device: str
    runs: list[str]
    attacks: list[tuple[str, str]]
    strongest: str | None
    flags: list[str]
    older: str
    missing: list[str]


def lines(boards: Iterable[Board]) -> list[ReleaseLine]:
    """Return one line per release of boards, in their order."""
    found = candidates(boards)
    omitted = []
    for each in found:
        row = each.row
        omitted.append({
            "teacher": f"teacher={row.teacher}" if queries_teachers(row) else "",
            "student": f"student={row.student}",
            "version": f"version {row.version:g}" if each.older else "",
            "delta": f"delta={'' if row.delta is None else row.delta}",
            "unit": f"accounted per {row.unit}",
            "noise": "float32 noise" if "float32-noise" in each.flags else "",
        })  # fmt: skip
    words = distinguish([(each.place, each.name) for each in found], omitted)
    return [_line(each, apart) for each, apart in zip(found, words, strict=True)]


def _line(candidate: Candidate, apart: str) -> ReleaseLine:
    row, strongest = candidate.row, candidate.strongest
    return ReleaseLine(
        dataset=row.dataset,
        tier=row.tier,
        split=row.split,
        method=row.method,
        variant=row.variant,
        name=candidate.name,
        setting=candidate.name.partition(") ")[2],
        apart=apart,
        accuracy=candidate.accuracy,
        std=candidate.measured[ACCURACY].deviation if ACCURACY in candidate.measured else None,
        seeds=candidate.finished,
        claimed=row.epsilon_claimed,
        claim_unit=row.claimed_unit,
        epsilon=candidate.epsilon,
        unit=row.unit,
        relation=row.relation,
        delta=row.delta,
        audited=row.epsilon_lower,
        information=row.information,
        seconds=candidate.seconds,
        device=candidate.device,
        runs=[run.run for run in candidate.counted],
        attacks=[(str(each), each.runs[0]) for each in candidate.attacked],
        strongest=None if strongest is None else str(strongest),
        flags=sorted(candidate.flags),
        older=candidate.older,
        missing=missing_measurements(candidate),
    )


@dataclass(frozen=True)
class Highlight:
    """One of the most accurate releases of a board, in the first table of the front page.

    Attributes:
        run: hash of one of its runs.
        attack, success, public, on_teacher: the strongest inversion, and the same success of public images and on the
            unprotected teacher; None where they were not measured.
        membership: the strongest membership attack, its AUC, and its AUC on the teacher.
        attacks: number of attacks that made queries.
    """

    unit: str
    tier: str
    split: str
    method: str
    variant: str
    name: str
    run: str
    accuracy: float | None
    seeds: int
    epsilon: float | None
    attack: str | None
    success: float | None
    public: float | None
    on_teacher: float | None
    membership: tuple[str, float | None, float | None] | None
    attacks: int


def highlights(board: Board) -> list[Highlight]:
    """Return the `NUMBER` most accurate releases of a board for every unit, tier and split.

    Only releases with an accounted epsilon of at most `EPSILON` are ranked; claimed epsilons are ignored.
    """
    found = []
    for unit in UNITS:
        taken = choose([board], Constraints(unit, EPSILON, 0.0)).taken
        for (_, tier, split), ranked in sorted(taken.items(), key=lambda each: each[0][2] != "iid"):
            for each in ranked[:NUMBER]:
                strongest, member = each.strongest, each.best_membership
                found.append(Highlight(
                    unit, tier, split, each.row.method, each.row.variant, each.name, each.counted[0].run,
                    each.accuracy, each.finished, each.epsilon,
                    attack=None if strongest is None else strongest.attack,
                    success=None if strongest is None else strongest.success,
                    public=None if strongest is None else strongest.public,
                    on_teacher=None if strongest is None else strongest.on_teacher,
                    membership=None
                    if member is None
                    else (member.any.attack, member.value("auc"), member.on_teacher("auc")),
                    attacks=len({one.any.attack for one in each.attacked if one.value("queries") != 0}),
                ))  # fmt: skip
    return found


def attacks_in(results: Iterable[Result]) -> list[str]:
    """Return the names of the attacks on results; attacks without queries are left out, as they are baselines."""
    return sorted({each.attack.attack for each in results if each.attack is not None and each.value("queries") != 0})


def distinguish(names: Sequence[Hashable], fields: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each item the fields in which it differs from others of its name; "" if its name is unique.

    Args:
        fields: the fields of each item, in display order; empty ones are not shown.

    >>> distinguish(["a", "a", "b"], [{"teacher": "teacher=x"}, {"teacher": "teacher=y"}, {"teacher": "teacher=z"}])
    ['teacher=x', 'teacher=y', '']
    """
    others: dict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
    for name, own in zip(names, fields, strict=True):
        others[name].append(own)
    return [
        ", ".join(text for field, text in own.items() if text and len({other[field] for other in others[name]}) > 1)
        for name, own in zip(names, fields, strict=True)
    ]
