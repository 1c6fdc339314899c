"""Assess the scores of a model that is not here: needs no torch."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bench.assess import blind as baseline
from bench.assess.assembly import Material, accuracies, accuracy_line, refuse_chance
from bench.assess.blind import Facts
from bench.assess.limits import limit_lines, limits_of
from bench.assess.numbers import Scored
from bench.assess.schema import Copies, Skipped
from bench.assess.scores import Side, read_pair
from bench.errors import BenchError
from bench.progress import notify, track

LOSS = "Yeom et al., CSF 2018, arXiv 1709.01604"
ENTROPY = "Song and Mittal, USENIX Security 2021, arXiv 2003.10595"
MOST_COPIES = 3
"""Records of one set with the same outputs up to which equal outputs in the other set count as copies: saturated
outputs are equal for many different records."""
NO_CONTROL = "a scores file has no model, so that no unprotected control can be trained: no attack has shown its power"


def material_of_scores(members: Path, others: Path, delta: float, seed: int) -> Material:
    """Read two scores files, look for copies, run the baseline without the model and the attacks on scores.

    What can be seen with that many records, and the accuracy, are printed first.

    Raises:
        BenchError: bad input, or outputs at chance level.
    """
    start = time.perf_counter()
    inside, outside = read_pair(members, others)
    units = [len(each) if each.groups is None else len(np.unique(each.groups)) for each in (inside, outside)]
    for line in limit_lines(limits_of(units[0], units[1], delta), "record" if inside.groups is None else "group"):
        notify(line)
    hashes = {"members": inside.digest, "nonmembers": outside.digest}
    material = material_of_sides(inside, outside, seed)
    material.hashes = hashes
    material.seconds["all"] = time.perf_counter() - start
    return material


def material_of_sides(inside: Side, outside: Side, seed: int) -> Material:
    """As `material_of_scores`, of scores that are in memory."""
    material = Material("scores", [])
    if inside.correct is not None and outside.correct is not None and inside.labels is not None:
        material.accuracy = accuracies(inside.correct, outside.correct)
        notify(accuracy_line(material.accuracy))
        refuse_chance(inside.correct, inside.labels, "the model of these scores")
    material.copies, outside = without_copies(inside, outside)
    if inside.groups is not None and outside.groups is not None:
        material.groups = (inside.groups, outside.groups)
    with track("baseline without the model", 2 * baseline.FOLDS) as advance:
        material.blind = baseline.compare(_facts(inside), _facts(outside), seed, advance)
    if not inside.layout.features:
        if material.blind is None:
            reason = "the scores files have neither labels nor feature_NAME columns"
            material.not_tested.append(Skipped(name="blind-baseline", reason=reason))
        else:
            material.notes.append(
                "The baseline without the model saw the labels only; columns feature_NAME with facts about the records "
                "(dates, sizes, sources) make it meaningful."
            )
            material.not_tested.append(
                Skipped(name="blind-baseline", reason="beyond labels: no feature_NAME columns were given")
            )
            if not material.blind.differs:
                material.blind = None
    material.not_tested += [
        Skipped(name="power", reason=NO_CONTROL),
        Skipped(name="lira, rmia, quantile, label-only", reason="they need the model and the records"),
        Skipped(name="reconstruction of records or classes", reason="it needs the model"),
    ]
    material.scored = attacks_on(inside, outside)
    return material


def attacks_on(inside: Side, outside: Side) -> list[Scored]:
    """The attacks that read one model's outputs on the records."""
    reads = "losses" if inside.entropy is None else "all outputs"
    found = [Scored("loss", LOSS, "loss", inside.confidence, outside.confidence)]
    if inside.entropy is not None and outside.entropy is not None:
        found.append(Scored("modified-entropy", ENTROPY, reads, inside.entropy, outside.entropy))
    if inside.correct is not None and outside.correct is not None:
        found.append(Scored("gap", LOSS, "predicted class", inside.correct, outside.correct))
    return found


def without_copies(inside: Side, outside: Side) -> tuple[Copies | None, Side]:
    """The copies found by equal label and outputs, and the non-members without them; a copy of a member is no
    non-member.

    Raises:
        BenchError: fewer than 2 non-members are left.
    """
    if inside.keys is None or outside.keys is None:
        return None, outside
    keys, counts = np.unique(inside.keys, return_counts=True)
    theirs, theirs_counts = np.unique(outside.keys, return_counts=True)
    rare = np.intersect1d(keys[counts <= MOST_COPIES], theirs[theirs_counts <= MOST_COPIES])
    is_copy = np.isin(outside.keys, rare)
    count = int(is_copy.sum())
    found = Copies(exact=count, near=0, removed=count, method="equal label and outputs")
    if count == 0:
        return found, outside
    if int((~is_copy).sum()) < 30:
        raise BenchError(f"{count} of {len(outside)} non-members have the outputs of members; give real non-members")
    return found, outside.take(~is_copy)


def _facts(side: Side) -> Facts:
    return Facts(side.layout.features, side.features, side.labels, side.groups)
