"""Assess a model by files of its scores, without the model and without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.assess.assembly import Material, accuracies, accuracy_line, require_above_chance
from bench.assess.limits import limit_lines, limits_of
from bench.assess.numbers import Scored
from bench.assess.policy import INVERSION
from bench.assess.schema import Copies, ModelFreeBaseline, Skipped
from bench.assess.scores import FEWEST, ScoredRecords, read_pair
from bench.errors import BenchError
from bench.membership import blind as baseline
from bench.membership.blind import Facts
from bench.progress import notify, track

LOSS = "Yeom et al., CSF 2018, arXiv 1709.01604"
ENTROPY = "Song and Mittal, USENIX Security 2021, arXiv 2003.10595"
MOST_COPIES = 3
"""Equal outputs in both sets count as copies only if at most this many records of each set have them: saturated
outputs are equal for many different records."""
NO_CONTROL = "a scores file has no model, so that no unprotected control can be trained: no attack has shown its power"


def material_of_scores(members: Path, others: Path, delta: float, seed: int, match: bool = False) -> Material:
    """Read two scores files, look for copies, run the baseline without the model and the attacks on scores.

    Detection limits and accuracy are printed first.

    Args:
        delta: delta of the lower bound on epsilon.
        seed: seed of samples and folds.
        match: assess matched pairs of records if the sets differ without the model.

    Raises:
        BenchError: bad input, or outputs at chance level.
    """
    start = time.perf_counter()
    inside, outside = read_pair(members, others)
    units = [len(each) if each.groups is None else len(np.unique(each.groups)) for each in (inside, outside)]
    for line in limit_lines(limits_of(units[0], units[1], delta), "record" if inside.groups is None else "group"):
        notify(line)
    hashes = {"members": inside.digest, "nonmembers": outside.digest}
    material = material_of_sides(inside, outside, seed, match)
    material.hashes = hashes
    material.seconds["all"] = time.perf_counter() - start
    return material


def material_of_sides(inside: ScoredRecords, outside: ScoredRecords, seed: int, match: bool = False) -> Material:
    """Build the material from scores in memory, as `material_of_scores`."""
    material = Material("scores", [])
    if inside.correct is not None and outside.correct is not None and inside.labels is not None:
        material.accuracy = accuracies(inside.correct, outside.correct)
        notify(accuracy_line(material.accuracy))
        require_above_chance(inside.correct, inside.labels, "the model of these scores")
    material.copies, outside = without_copies(inside, outside)
    if inside.groups is not None and outside.groups is not None:
        material.groups = (inside.groups, outside.groups)
    chosen = compare_without_model(material, _facts(inside), _facts(outside), seed, match)
    if chosen is not None:
        inside, outside = inside.take(chosen[0]), outside.take(chosen[1])
        material.names = chosen[0].astype(np.str_)
    material.labels = inside.labels
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
        Skipped(name=INVERSION, reason="needs the model with gradients"),
        Skipped(name="reconstruction of single records", reason="it needs the model"),
    ]
    material.scored = attacks_on(inside, outside)
    return material


def compare_without_model(
    material: Material, members: Facts, others: Facts, seed: int, match: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Run the baseline without the model; if the sets differ, look for matched pairs.

    Args:
        material: receives the result of the baseline, and a note on the pairs.
        match: assess only the pairs.

    Returns:
        The members and the non-members to assess; None = all.

    Raises:
        BenchError: `match` with groups, or with fewer than 30 pairs.
    """
    with track("baseline without the model", 2 * baseline.FOLDS) as advance:
        material.blind = model_free_baseline(members, others, seed, advance)
    if material.blind is None or not material.blind.differs:
        return None
    if members.groups is not None:
        if match:
            raise BenchError("--match with groups: pairs of records would tear groups apart; give sets of one source")
        return None
    chosen = baseline.matched(members, others, seed)
    pairs = f"{len(chosen[0])} members and as many non-members have the same class and similar facts"
    if not match:
        material.notes.append(f"{pairs}; --match assesses only these.")
        return None
    if len(chosen[0]) < FEWEST:
        raise BenchError(
            f"--match: only {pairs}; expected at least {FEWEST}; draw non-members from the members' source"
        )
    found = material.blind
    material.notes.append(
        f"The sets differ without the model (AUC {found.auc:.3f}, mostly by {', '.join(found.clues)}). {pairs}; "
        "all numbers are of these."
    )
    material.blind = model_free_baseline(_taken(members, chosen[0]), _taken(others, chosen[1]), seed)
    return chosen


def model_free_baseline(
    members: Facts, others: Facts, seed: int, step: Callable[[int], object] = lambda _: None
) -> ModelFreeBaseline | None:
    """Return the result of `bench.membership.blind.compare` in the form of an assessment; None without facts."""
    found = baseline.compare(members, others, seed, step)
    if found is None:
        return None
    names = ("auc", "p", "differs", "clues", "features", "method")
    return ModelFreeBaseline.model_validate({name: getattr(found, name) for name in names})


def _taken(facts: Facts, rows: NDArray[np.int64]) -> Facts:
    labels = None if facts.labels is None else facts.labels[rows]
    return Facts(facts.names, facts.values[rows], labels)


def attacks_on(inside: ScoredRecords, outside: ScoredRecords) -> list[Scored]:
    """Run the attacks that need only the model's outputs on the records: loss, modified entropy, gap."""
    reads = "losses" if inside.entropy is None else "all outputs"
    found = [Scored("loss", LOSS, "loss", inside.confidence, outside.confidence)]
    if inside.entropy is not None and outside.entropy is not None:
        found.append(Scored("modified-entropy", ENTROPY, reads, inside.entropy, outside.entropy))
    if inside.correct is not None and outside.correct is not None:
        found.append(Scored("gap", LOSS, "predicted class", inside.correct, outside.correct))
    return found


def without_copies(inside: ScoredRecords, outside: ScoredRecords) -> tuple[Copies | None, ScoredRecords]:
    """Find copies by equal label and outputs; return their counts, and the non-members without the copies.

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


def _facts(side: ScoredRecords) -> Facts:
    return Facts(side.layout.features, side.features, side.labels, side.groups)
