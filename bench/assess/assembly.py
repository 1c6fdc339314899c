"""Build an assessment from the scores of attacks, in the same way for a scores file, a model and released images."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench import __version__
from bench.assess.claim import Stated, check_claim
from bench.assess.limits import limits_of
from bench.assess.numbers import COMBINE, Scored, combine, group_bootstrap, levels_for, measure, share
from bench.assess.policy import Policy
from bench.assess.roc import curve
from bench.assess.schema import Accuracy, Assessment, AttackResult, Blind, Canaries, Copies, Inversion, Skipped
from bench.assess.verdict import Evidence, decide, excesses, gate_inversion
from bench.errors import BenchError
from bench.seeds import LARGEST_SEED

Groups = tuple[NDArray[np.str_], NDArray[np.str_]]
MOST_EXPOSED = 20


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
    control: dict[str, Scored] | None = None
    accuracy: Accuracy | None = None
    blind: Blind | None = None
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
    units = [_by_unit(each, material.groups, options.combine) for each in material.scored]
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


def _by_unit(scored: Scored, groups: Groups | None, how: str) -> Scored:
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
    by_unit = _by_unit(control, material.groups, options.combine)
    there = measure(by_unit.members, by_unit.others, options.delta, count)
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


def refuse_chance(right: NDArray[np.float64], labels: NDArray[np.int64], what: str) -> None:
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


def exposed_lines(material: Material, options: Options) -> list[str]:
    """List the members that the strongest attack ranks highest, as lines of CSV. For the owner of the data only."""
    single = max(material.scored, key=lambda each: _strength(each, material, options))
    strongest = _by_unit(single, material.groups, options.combine)
    if material.groups is not None:
        names = np.unique(groups_of(single, material.groups)[0]).tolist()
    else:
        names = (np.arange(len(single.members)) if single.rows is None else single.rows[0]).tolist()
    others = np.sort(strongest.others)
    order = np.argsort(-strongest.members, kind="stable")[:MOST_EXPOSED]
    lines = ["rank,member,share of non-members with a score as high,attack"]
    for rank, row in enumerate(order.tolist(), 1):
        above = 1 - np.searchsorted(others, strongest.members[row], side="left") / len(others)
        lines.append(f"{rank},{csv_name(str(names[row]))},{above:.4f},{strongest.name}")
    return lines


def exposed_lines_by_class(material: Material, options: Options) -> list[str]:
    """List the twenty members of each class that the strongest attack ranks highest, as lines of CSV.

    Records are listed even if the unit is the group. Empty if classes are unknown. For the owner of the data only.
    """
    if material.labels is None:
        return []
    strongest = max(material.scored, key=lambda each: _strength(each, material, options))
    rows = np.arange(len(strongest.members)) if strongest.rows is None else strongest.rows[0]
    labels = material.labels[rows]
    others = np.sort(strongest.others)
    above = 1 - np.searchsorted(others, strongest.members, side="left") / len(others)
    lines = ["class,rank,member,share of non-members with a score as high,attack"]
    for label in np.unique(labels).tolist():
        own = np.flatnonzero(labels == label)
        order = own[np.argsort(-strongest.members[own], kind="stable")][:MOST_EXPOSED]
        lines += [
            f"{label},{rank},{rows[row]},{above[row]:.4f},{strongest.name}"
            for rank, row in enumerate(order.tolist(), 1)
        ]
    return lines


def _strength(scored: Scored, material: Material, options: Options) -> float:
    """Return the AUC of an attack on records, or on groups if there are groups."""
    unit = _by_unit(scored, material.groups, options.combine)
    return measure(unit.members, unit.others, options.delta, 1).auc.value


def csv_name(name: str) -> str:
    """Escape and quote a name as a CSV cell."""
    from bench.escape import csv_cell

    text = str(csv_cell(name))
    return '"' + text.replace('"', '""') + '"' if any(letter in text for letter in ',"\n') else text


def write(assessment: Assessment, folder: Path, exposed: list[str], exposed_by_class: list[str]) -> None:
    """Write assessment.json, report.html, report.pdf and the exposed members into a folder; create it if needed."""
    from bench.assess.pdf import write_pdf
    from bench.assess.report import page

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "assessment.json").write_text(assessment.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / "exposed.csv").write_text("\n".join(exposed) + "\n", encoding="utf-8")
    if exposed_by_class:
        (folder / "exposed_by_class.csv").write_text("\n".join(exposed_by_class) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(assessment), encoding="utf-8")
    write_pdf(assessment, folder / "report.pdf")
