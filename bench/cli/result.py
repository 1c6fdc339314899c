"""The result of a run in plain words: at most 25 lines, the same facts for every method and attack."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path

from bench.boards import flags
from bench.boards.tables import RELEASES
from bench.core import records
from bench.core.epsilon import PROTECTED, format_epsilon
from bench.core.privacy import PrivacyReport
from bench.core.results import WITHOUT_MODEL, Measure, attack_of, measures, utility_of
from bench.core.verdict import decide
from bench.pipeline.run import Outcome
from bench.privacy.claims import dispute
from bench.privacy.information import most_accuracy
from bench.progress import print_heading, print_line
from bench.storage.records import RECORD

INDENT = 12
WIDEST = 112
"""Width of the whole block; longer lines are hard to read."""
VARIANTS = {
    "printed": "the algorithm as its paper publishes it",
    "working": "the paper's algorithm with changes, see `bench show {}`",
    "own": "an algorithm of this project",
}
"""Descriptions of the variants; a method's name is inserted."""
NOISE = {
    "os": "noise from the operating system: these epsilons hold against everyone",
    "seeded": "seeded noise: these epsilons hold only against those without the seed; for a release use --noise os",
}
"""The meaning of the noise for accounted epsilons, by its source."""


def show(outcome: Outcome, out: Path, width: int) -> None:
    """Print networks, accuracy, epsilons, the attack's success, the verdict, flags and files.

    Args:
        outcome: the finished run.
        out: the folder of runs, which contains the board.
        width: columns of the terminal.
    """
    record = records.decode(outcome.record.to_json().encode(), str(outcome.path / RECORD))
    release = record.spec.release
    name = f"{release.method} on {release.teacher.data.dataset}, tier {record.spec.tier}, seed {release.seed}"
    name += f", {outcome.record.setting}" if outcome.record.setting else ""
    print_heading(f"\n{name}", "  (cached)" if outcome.cached else "")
    board = out / "leaderboards" / RELEASES / f"{release.teacher.data.dataset}.csv"
    warnings = flags(outcome.record)
    facts = {
        "student": [_describe_student(record)],
        "accuracy": list(_accuracy(record, "at-chance-level" in warnings)),
        "epsilon": list(_epsilons(record.privacy)) if record.privacy is not None else [],
        "attack": [*_attack(record), *caveats(record)],
        "verdict": [decide(record).sentence],
        "flags": [f"{' '.join(warnings)} (explained in docs/boards.md)"] if warnings else [],
        "files": [f"{outcome.path}/: {', '.join([RECORD, *sorted(record.artifacts.values())])}", f"board: {board}"],
    }
    for label, lines in facts.items():
        for number, line in enumerate(lines):
            start = (label if number == 0 else "").ljust(INDENT)
            if label == "files":  # a path is never broken
                print_line(start + line)
                continue
            wrapped = textwrap.wrap(
                line,
                max(min(width, WIDEST), 40),
                initial_indent=start,
                subsequent_indent=" " * (INDENT + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
            for part in wrapped:
                print_line(part)


def _describe_student(record: records.RunRecord) -> str:
    """Return the networks, the number and the shape of the private images, and the variant."""
    release = record.spec.release
    images = (record.provenance.model_extra or {}).get("images", {})
    student = f"{record.student} network" if record.student else "no network"
    teacher = f"; teacher {release.teacher.arch}" if "teacher_accuracy" in record.metrics else ""
    count = f"{images['private']:,} private images" if "private" in images else "private images"
    shape = f" of {images['shape']}" if "shape" in images else ""
    variant = VARIANTS.get(release.variant, release.variant).format(release.method)
    return f"{student}{teacher}; {count}{shape}; variant {release.variant}: {variant}"


def _accuracy(record: records.RunRecord, is_at_chance: bool) -> Iterator[str]:
    """Yield the accuracy of the student with its limit by the information bound, then those of its references."""
    found = utility_of(record)
    if found is None:
        return
    chance = ", no better than guessing" if is_at_chance else ""
    information, limit = None if record.privacy is None else record.privacy.information, 1.0
    if information is not None and information.nats is not None and information.classes >= 2:
        limit = most_accuracy(information.nats, information.classes)
    bound = f"; the information bound allows at most {limit:.1%} on average over classes" if limit < 1 else ""
    yield f"{_with_interval(found.student)} of the test images are correct (95 % interval){chance}{bound}"
    others = {"teacher": found.teacher, "baseline, the same student without the teacher": found.without_teacher}
    known = [f"{name} {_with_interval(measure)}" for name, measure in others.items() if measure is not None]
    if known:
        yield "; ".join(known)


def _epsilons(privacy: PrivacyReport) -> Iterator[str]:
    """Yield claimed, accounted and measured epsilon with delta and unit, then the source of the noise."""
    claim, bound = privacy.claimed, privacy.audited
    if claim is None:
        yield "claimed: none; the method's paper has no epsilon"
    else:
        reason = dispute(privacy.model_dump(mode="json")).replace("-", " ")
        yield (
            f"claimed {format_epsilon(claim.epsilon)} per {claim.unit} by {claim.source}: protects "
            f"{PROTECTED.get(claim.unit, claim.unit)}{f'; disputed: {reason}' if reason else ''}"
        )
    for unit, found in sorted(privacy.accounted_units.items()):
        protected = PROTECTED.get(unit, unit)
        if math.isinf(found.epsilon):
            note = f" ({found.note})" if found.note else ""
            yield f"accounted {format_epsilon(found.epsilon)} per {unit}: no bound holds for {protected}{note}"
        else:
            yield (
                f"accounted {format_epsilon(found.epsilon)} per {unit} at delta {found.delta:g}: protects {protected} "
                f"({found.relation})"
            )
    if bound is None:
        yield "measured: not yet; `bench audit release` measures a lower bound"
    elif not bound.powerful:
        yield "measured: unknown; the audit finds no leak even in the unprotected teacher"
    elif bound.epsilon_lower <= 0:
        yield f"measured 0 per {bound.unit}: the audit found no leak, which is not a proof of privacy"
    else:
        yield (
            f"measured at least {format_epsilon(bound.epsilon_lower)} per {bound.unit} at delta {bound.delta:g}, with "
            f"{bound.confidence:.0%} confidence, by an audit with canaries"
        )
    if any(math.isfinite(found.epsilon) for found in privacy.accounted_units.values()):
        yield NOISE["os" if privacy.noise == "os" else "seeded"]


def _attack(record: records.RunRecord) -> Iterator[str]:
    """Yield the success of the attack on student, teacher and untrained network, and of its baseline."""
    attack = attack_of(record)
    if attack is None or not (attack.accuracy or attack.auc):
        return
    queries = measures(record.metrics).get("queries")
    count = "" if queries is None else f", {queries.value:,.0f} queries"
    networks = {"student": attack.student, "teacher": attack.teacher, "untrained network": attack.untrained}
    if attack.accuracy:
        yield f"{attack.name}{count}: share of its images that are classified as the intended class"
        yield _compare({name: found.get("attack_accuracy") for name, found in networks.items()})
        networks.pop("untrained network")
        if baseline := _compare({name: found.get("retrieval_accuracy") for name, found in networks.items()}):
            yield f"baseline, the best of the attacker's own images: {baseline}"
    else:
        yield f"{attack.name}{count}: AUC for separating training records from others; guessing has 0.5"
        yield _compare({name: found.get("auc") for name, found in networks.items()}, is_share=False)
        if (without_model := measures(record.metrics, WITHOUT_MODEL).get("auc")) is not None:
            yield f"baseline, a classifier without any network: {_with_interval(without_model, is_share=False)}"
        shares = {"student": attack.student.get("used_share"), "teacher": attack.teacher.get("used_share")}
        if estimated := _compare(shares, is_share=False):
            yield f"estimated share of these records that was used: {estimated}; the truth is 0.5"
        elif (reason := record.missing.get("used_share")) is not None:
            yield f"share of these records that was used: {reason}"
    if (epsilon := attack.student.get("membership_epsilon_lower")) is not None:
        indicated = format_epsilon(epsilon.value)
        yield f"the scores indicate an epsilon of {indicated}; 0 does not prove that the model is safe"


def _compare(found: dict[str, Measure | None], is_share: bool = True) -> str:
    """Format the numbers of several networks in a line; networks without a number are left out."""
    known = {name: measure for name, measure in found.items() if measure is not None}
    return "; ".join(f"{name} {_with_interval(measure, is_share)}" for name, measure in known.items())


def caveats(record: records.RunRecord) -> list[str]:
    """Return the reasons why faces were not identified, and caveats of numbers that were computed."""
    with_value = [key for key in record.missing if record.metrics.get(key) is not None]
    reasons = [record.missing[key] for key in ("judge_accuracy", *with_value) if key in record.missing]
    return list(dict.fromkeys(reasons))


def _with_interval(measure: Measure, is_share: bool = True) -> str:
    text = f"{measure.value:.1%}" if is_share else f"{measure.value:.3f}"
    if measure.low is None or measure.high is None:
        return text
    ends = (f"{100 * end:.1f}" if is_share else f"{end:.3f}" for end in (measure.low, measure.high))
    return f"{text} [{', '.join(ends)}]"
