"""Build an assessment from the scores of attacks, in the same way for a scores file, a model and released images."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench import __version__
from bench.assess.claim import Stated, check_claim
from bench.assess.limits import limits_of
from bench.assess.numbers import COMBINE, Scored, combine, group_bootstrap, levels_for, measure, share
from bench.assess.policy import Policy
from bench.assess.roc import curve
from bench.assess.schema import (
    Accuracy,
    Assessment,
    AttackResult,
    Canaries,
    Copies,
    Inversion,
    ModelFreeBaseline,
    Skipped,
)
from bench.assess.verdict import Evidence, decide, excesses, gate_inversion
from bench.errors import BenchError
from bench.seeds import LARGEST_SEED

Groups = tuple[NDArray[np.str_], NDArray[np.str_]]


@dataclass(frozen=True)
class Options:
    """Settings of an assessment, the same for scores, models and released images.

    Attributes:
        policy: the limits.
        claim: a claimed epsilon; None without one.
        delta: delta of the lower bound on epsilon, in [0, 1).
        combine: how the scores of a group are combined: mean, sum or max.
        seed: of all random draws.
        command: the command that repeats the assessment.
    """

    policy: Policy
    claim: Stated | None = None
    delta: float = 1e-5
    combine: str = "mean"
    seed: int = 0
    command: str = ""

    def __post_init__(self) -> None:
        if self.combine not in COMBINE:
            raise BenchError(f"--combine {self.combine}: expected {', '.join(COMBINE)}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise BenchError(f"--seed {self.seed}: expected a whole number from 0 to {LARGEST_SEED}")
        if not 0 <= self.delta < 1:
            raise BenchError(f"--delta {self.delta:g}: expected a number from 0 to below 1")


@dataclass
class Material:
    """Scores of attacks and results of checks, from which the numbers of an assessment are computed.

    Attributes:
        kind: "scores", "model" or "samples".
        scored: the scores of each attack.
        groups: the group of each member and of each non-member; None if the unit is the record.
        labels: (n,) classes of the members; None if they are not known.
        names: (n,) names of the members, for their owner; None = their numbers, from 0.
        images: (n, c, h, w) uint8 images of the members; None if there are none.
        control: attack to its scores on the unprotected control; None if no control was trained.
        accuracy, blind, copies, canaries, inversion: the results of these checks; None if a check could not be made.
        not_tested: other tests that were not made, and why.
        notes: sentences for the reader.
        hashes: SHA-256 of the inputs, by name.
        seconds: seconds of each part of the assessment.
    """

    kind: Literal["scores", "model", "samples"]
    scored: list[Scored]
    groups: Groups | None = None
    labels: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    images: NDArray[np.uint8] | None = None
    control: dict[str, Scored] | None = None
    accuracy: Accuracy | None = None
    blind: ModelFreeBaseline | None = None
    copies: Copies | None = None
    canaries: Canaries | None = None
    inversion: Inversion | None = None
    not_tested: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def assemble(material: Material, options: Options) -> Assessment:
    """Compute the numbers of every attack and the verdict."""
    unit = "record" if material.groups is None else "group"
    units = [by_unit(each, material.groups, options.combine) for each in material.scored]
    count = len(units)
    attacks = tuple(
        _result(each, single, material, options, count) for each, single in zip(units, material.scored, strict=True)
    )
    claim = None if options.claim is None else check_claim(options.claim, unit, units, material.canaries)
    members, others = len(units[0].members), len(units[0].others)
    inversion = None if material.inversion is None else gate_inversion(material.inversion, options.policy)
    evidence = Evidence(members, others, unit, attacks, material.blind, material.copies, claim, inversion)
    return Assessment(
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=options.command,
        kind=material.kind,
        unit=unit,
        delta=options.delta,
        seed=options.seed,
        verdict=decide(evidence, options.policy),
        claim=claim,
        policy=options.policy.values(),
        members=members,
        others=others,
        limits=limits_of(members, others, options.delta),
        accuracy=material.accuracy,
        copies=material.copies,
        blind=material.blind,
        canaries=material.canaries,
        inversion=inversion,
        attacks=attacks,
        not_tested=tuple(material.not_tested),
        levels=levels_for(count),
        curves=tuple(curve(each) for each in units),
        notes=tuple(material.notes),
        hashes=material.hashes,
        seconds={name: round(value, 2) for name, value in material.seconds.items()},
    )


def by_unit(scored: Scored, groups: Groups | None, how: str) -> Scored:
    """Return the scores per record, or combined per group if there are groups."""
    if groups is None:
        return scored
    own = groups_of(scored, groups)
    members, others = combine(scored.members, own[0], how)[0], combine(scored.others, own[1], how)[0]
    return Scored(scored.name, scored.source, scored.reads, members, others, scored.note)


def groups_of(scored: Scored, groups: Groups) -> Groups:
    """Return the groups of the records that an attack scored, for members and non-members."""
    return groups if scored.rows is None else (groups[0][scored.rows[0]], groups[1][scored.rows[1]])


def _result(each: Scored, single: Scored, material: Material, options: Options, count: int) -> AttackResult:
    found = measure(each.members, each.others, options.delta, count)
    note = each.note
    if material.groups is not None and each is not single:
        records = group_bootstrap(single.members, single.others, groups_of(single, material.groups), options.seed)
        said = f"AUC of single records {records.value:.3f} [{records.low:.3f}, {records.high:.3f}], groups resampled"
        note = f"{note}; {said}" if note else said
    result = AttackResult(
        name=each.name,
        source=each.source,
        reads=each.reads,
        members=len(each.members),
        others=len(each.others),
        auc=found.auc,
        rates=found.rates,
        epsilon_lower=found.epsilon_lower,
        note=note,
    )
    if material.control is None:
        return result
    return _with_power(result, material, options, count)


def _with_power(result: AttackResult, material: Material, options: Options, count: int) -> AttackResult:
    """Add whether the attack has power: on the unprotected control it must find a leak that the policy forbids."""
    control = (material.control or {}).get(result.name)
    if control is None:
        return result.model_copy(update={"has_power": False})
    found_there = by_unit(control, material.groups, options.combine)
    there = measure(found_there.members, found_there.others, options.delta, count)
    on_control = result.model_copy(
        update={"auc": there.auc, "rates": there.rates, "epsilon_lower": there.epsilon_lower}
    )
    works = bool(excesses(on_control, options.policy))
    return result.model_copy(update={"has_power": works, "control_auc": there.auc})


def accuracies(members: NDArray[np.float64], others: NDArray[np.float64]) -> Accuracy:
    """Return the accuracy on members and non-members, from (n,) and (m,) predictions: 1 if correct, else 0."""
    return Accuracy(members=share(members), others=share(others))


def accuracy_line(found: Accuracy) -> str:
    """Format both accuracies in a line for a terminal."""
    shown = [f"{each.value:.1%} [{each.low:.1%}, {each.high:.1%}]" for each in (found.members, found.others)]
    return f"accuracy: {shown[0]} on members, {shown[1]} on non-members"


def require_above_chance(right: NDArray[np.float64], labels: NDArray[np.int64], what: str) -> None:
    """Refuse a model whose balanced accuracy on members is not above that of a constant prediction.

    The balanced accuracy, the mean over classes of the share of right predictions, is 1 / classes for any constant
    prediction however rare a class is. It must be above that by two standard errors.

    Raises:
        BenchError: it is not; the model was probably loaded wrongly.
    """
    classes = np.unique(labels)
    shares = np.array([right[labels == each].mean() for each in classes])
    counts = np.array([(labels == each).sum() for each in classes])
    balanced = float(shares.mean())
    error = float(np.sqrt((shares * (1 - shares) / counts).sum())) / len(classes)
    if len(classes) > 1 and balanced - 2 * error <= 1 / len(classes):
        raise BenchError(
            f"{what} is at chance level: its balanced accuracy on members is {balanced:.1%} for {len(classes)} "
            "classes; probably it was loaded wrongly: check --network, --normalise, the order of the classes and "
            "the size of the images"
        )
