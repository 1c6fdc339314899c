"""The result of a run in plain words: at most 25 lines, the same facts for every method and attack."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path

from bench.boards import flags
from bench.boards.tables import RELEASES
from bench.cli.details import doubts
from bench.core import records
from bench.core.privacy import Accounted, Claim, LowerBound, PrivacyReport
from bench.core.results import AttackReport, Measure, attack_of, measures, utility_of
from bench.core.verdict import decide
from bench.pipeline.run import Outcome
from bench.privacy.claims import dispute
from bench.privacy.information import most_accuracy
from bench.progress import head, tell
from bench.storage.records import RECORD

INDENT = 12
WIDEST = 112
"""Width of the whole block; longer lines are hard to read."""
PROTECTED = {
    "example": "one training record",
    "label": "the label of one training record",
    "query": "one response of the teacher",
    "client": "all records of one client",
    "group": "one group of records",
}
"""What an epsilon protects, by unit."""
NEIGHBOURS = {"add-or-remove": "added or left out", "replace": "exchanged for another"}
"""What may happen to the protected unit, by the account's relation."""


def show(outcome: Outcome, out: Path, width: int) -> None:
    """Print what was trained, its accuracy, its protection, the attack's success, and the verdict.

    Args:
        outcome: the finished run.
        out: the folder of runs, which contains the board.
        width: columns of the terminal.
    """
    record = records.decode(outcome.record.to_json().encode(), str(outcome.path / RECORD))
    release = record.spec.release
    name = f"{release.method} on {release.teacher.data.dataset}, tier {record.spec.tier}, seed {release.seed}"
    name += f", {outcome.record.setting}" if outcome.record.setting else ""
    head(f"\n{name}", "  (cached)" if outcome.cached else "")
    board = out / "leaderboards" / RELEASES / f"{release.teacher.data.dataset}.csv"
    warnings = flags(outcome.record)
    facts = {
        "release": _release(record),
        "accuracy": list(_accuracy(record, "knows-nothing" in warnings)),
        "epsilon": list(_epsilons(record)),
        "attack": [*_attack(record), *doubts(outcome.record)],
        "verdict": [decide(record).sentence],
        "flags": [f"{' '.join(warnings)} (docs/boards.md explains them)"] if warnings else [],
        "files": [f"{outcome.path}/: {', '.join([RECORD, *sorted(record.artifacts.values())])}", f"board: {board}"],
    }
    for label, lines in facts.items():
        for line in _block(label, lines, min(width, WIDEST)):
            tell(line)


def _block(label: str, lines: list[str], width: int) -> Iterator[str]:
    """Yield lines with the label before the first; a path is never broken."""
    for at, line in enumerate(lines):
        start = (label if at == 0 else "").ljust(INDENT)
        if label == "files":
            yield start + line
            continue
        yield from textwrap.wrap(
            line,
            max(width, 40),
            initial_indent=start,
            subsequent_indent=" " * (INDENT + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _release(record: records.RunRecord) -> list[str]:
    """Return what was trained, on how many images, and in which variant."""
    release = record.spec.release
    images = (record.provenance.model_extra or {}).get("images", {})
    made = f"a {record.student} network" if record.student else "no network"
    count = f"{images['private']:,} private images" if "private" in images else "private images"
    size = f" of {images['shape']}" if "shape" in images else ""
    variant = {
        "printed": "the algorithm as its paper publishes it",
        "working": f"the paper's algorithm with our changes, listed by `bench show {release.method}`",
        "own": "an algorithm of this project",
    }.get(release.variant, release.variant)
    teacher = f"teacher {release.teacher.arch}; " if "teacher_accuracy" in record.metrics else ""
    return [f"{made}; {teacher}{count}{size}; variant {release.variant}: {variant}"]


def _accuracy(record: records.RunRecord, at_chance: bool) -> Iterator[str]:
    """Return the accuracy on the test set with those of teacher and baseline, and the limit of the information
    bound."""
    found = utility_of(record)
    if found is None:
        return
    most = _most_accuracy(record)
    bound = "" if most is None or most >= 1 else f"; the information bound allows a mean of at most {most:.1%}"
    chance = ", no better than guessing" if at_chance else ""
    yield f"{_share(found.student)} of the test images are classified correctly{chance}{bound}"
    others = {"teacher": found.teacher, "the same student without the teacher": found.without_teacher}
    known = [f"{name} {_share(measure)}" for name, measure in others.items() if measure is not None]
    if known:
        yield "; ".join(known)


def _most_accuracy(record: records.RunRecord) -> float | None:
    """Return the largest mean accuracy over classes that the information bound permits; None if unknown."""
    found = None if record.privacy is None else record.privacy.information
    if found is None or found.nats is None or found.classes < 2 or math.isinf(found.nats):
        return None
    return most_accuracy(found.nats, found.classes)


def _epsilons(record: records.RunRecord) -> Iterator[str]:
    """Return claimed, accounted and measured epsilon, each with its meaning and unit."""
    privacy = record.privacy
    if privacy is None:
        return
    yield _claimed(privacy.claimed, _dispute(privacy))
    for _, accounted in sorted(privacy.accounted_units.items()):
        yield _accounted(accounted)
    yield _measured(privacy.audited)
    if any(math.isfinite(each.epsilon) for each in privacy.accounted_units.values()):
        yield (
            "noise from the operating system: the accounted epsilons hold against everyone"
            if privacy.noise == "os"
            else "noise from the recorded seed: the accounted epsilons hold only against those without the seed; "
            "release with --noise os"
        )


def _dispute(privacy: PrivacyReport) -> str:
    return dispute(privacy.model_dump(mode="json")).replace("-", " ")


def _claimed(claim: Claim | None, reason: str) -> str:
    if claim is None:
        return "claimed: none; the method's paper promises no epsilon"
    what, doubt = PROTECTED.get(claim.unit, claim.unit), f"; disputed: {reason}" if reason else ""
    limit = ", not a training record" if claim.unit == "query" else ""
    return f"claimed {_number(claim.epsilon)} per {claim.unit} by {claim.source}: protects {what}{limit}{doubt}"


def _accounted(found: Accounted) -> str:
    what = PROTECTED.get(found.unit, found.unit)
    if math.isinf(found.epsilon):
        return (
            f"accounted infinite per {found.unit}: no bound holds for {what}{f' ({found.note})' if found.note else ''}"
        )
    change = NEIGHBOURS.get(found.relation, found.relation)
    return f"accounted {_number(found.epsilon)} per {found.unit} at delta {found.delta:g}: protects {what} ({change})"


def _measured(found: LowerBound | None) -> str:
    if found is None:
        return "measured: nothing yet; `bench audit release` measures a lower bound"
    if not found.powerful:
        return "measured: the audit found nothing even in the unprotected teacher, so it cannot tell"
    if found.epsilon_lower <= 0:
        return f"measured 0 per {found.unit}: the audit found no leak, which does not prove that there is none"
    bound = f"{_number(found.epsilon_lower)} per {found.unit} at delta {found.delta:g}"
    return f"measured at least {bound}, with {found.confidence:.0%} confidence, by canaries"


def _attack(record: records.RunRecord) -> Iterator[str]:
    """Return the success of the attack on student, teacher and untrained network, and of the attacker's own images."""
    attack = attack_of(record)
    if attack is None or not (attack.accuracy or attack.auc):
        return
    name, shown, what = ("auc", _score, "AUC of telling training records from others, 0.5 by guessing")
    if attack.accuracy:
        name, shown, what = ("attack_accuracy", _share, "share of the attack's images that show the class aimed at")
    queries = measures(record.metrics).get("queries")
    yield f"{attack.name}{'' if queries is None else f', {queries.value:,.0f} queries'}: {what}"
    found = {"student": attack.student, "teacher": attack.teacher, "untrained network": attack.untrained}
    yield "; ".join(f"{subject} {shown(each[name])}" for subject, each in found.items() if name in each)
    if attack.accuracy and (baseline := _own_images(attack)):
        yield baseline
    if (epsilon := attack.student.get("membership_epsilon_lower")) is not None:
        yield f"the scores correspond to an epsilon of {_number(epsilon.value)}; 0 does not mean that the model is safe"


def _own_images(attack: AttackReport) -> str:
    """Return the success of images that the attacker already has and the network prefers."""
    name = "retrieval_accuracy"
    found = {"student": attack.student.get(name), "teacher": attack.teacher.get(name)}
    known = [f"{subject} {_share(each)}" for subject, each in found.items() if each is not None]
    return f"the attacker's own images that each network prefers show it: {'; '.join(known)}" if known else ""


def _share(measure: Measure) -> str:
    interval = (
        "" if measure.low is None or measure.high is None else f" [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"
    )
    return f"{measure.value:.1%}{interval}"


def _score(measure: Measure) -> str:
    interval = "" if measure.low is None or measure.high is None else f" [{measure.low:.3f}, {measure.high:.3f}]"
    return f"{measure.value:.3f}{interval}"


def _number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
