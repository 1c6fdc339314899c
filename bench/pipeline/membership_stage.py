"""The stage of a run in which a membership attack is played and scored.

On student, teacher, a net of random weights, and one trained as the teacher was that saw none of the suspects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from bench.api import MembershipAttack
from bench.metrics.membership import Membership, auc_gain, epsilon_lower, gap_auc, membership, membership_power
from bench.pipeline import attack_steps, plots
from bench.pipeline.attack_targets import NAMES, PREFIXES, AttackTarget, attack_targets
from bench.pipeline.job import Job
from bench.pipeline.membership_challenge import Challenge, make_challenge
from bench.pipeline.plots import Plot
from bench.pipeline.reference_models import ReferenceModels, knowledge_fingerprint
from bench.pipeline.stage_result import StageResult
from bench.pipeline.trained import RESULT, Networks
from bench.storage.specs import RunSpec
from bench.teachers import predict

Metrics = dict[str, float | None]
ENDS = ("", ".lo", ".hi")
GAINS = [f"{prefix}auc_gain{end}" for prefix in ("", "teacher_") for end in ENDS]
NO_RESERVE = "the attacker has no records for a network that saw none of those who are asked about"
OWN_WEIGHTS = "how the teacher was trained is not known, as its weights were given: no network can be trained as it was"
CONVERTED = "its references were converted and those of the unaware network were not: the two are no one attack"


def infer(job: Job, attack: MembershipAttack, spec: RunSpec, networks: Networks) -> StageResult:
    """Play the attack on every target, score its guesses, and ask whether it has shown any power."""
    m, name = job.material, spec.attack_spec.attack
    if job.unplayable is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.unplayable}")
    challenge = make_challenge(m)
    models = ReferenceModels(job, spec.release, challenge, attack.access)
    known = knowledge_fingerprint(job, spec.release, challenge)
    targets = attack_targets(job, spec, networks)
    unaware = models.unaware()
    if unaware is not None:
        targets.append(AttackTarget("unaware", replace(spec.attack_spec, target=unaware[0]), unaware[1]))
    played = {target.name: _play(job, attack, target, models, known, challenge.members) for target in targets}
    delta = networks.student.result["privacy"]["accounted"]["delta"]
    metrics = metrics_of(played, dict.fromkeys(played, challenge.members), delta)
    if attack.access == "label":
        metrics |= {f"{PREFIXES[target.name]}gap_auc": _gap(job, target, challenge) for target in targets}
    converted = getattr(attack, "reference_kind", "") == "student"
    gains = _gains(played, challenge.members, ("teacher",) if converted else ("student", "teacher")) if unaware else {}
    metrics |= dict.fromkeys(GAINS) | gains
    without = NO_RESERVE if job.settings.teacher_weights is None else OWN_WEIGHTS
    missing = missing_of(played) | {key: CONVERTED if unaware else without for key in GAINS if key not in gains}
    gate = membership_power(played["teacher"].found, played["random"].found, metrics["teacher_auc_gain.lo"])
    title = f"{name} against {spec.release.method} on {m.data.name}: who was in the private data"
    lines = {NAMES[target]: (one.scores, challenge.members) for target, one in played.items()}
    return StageResult(
        metrics,
        missing,
        status="ok" if gate.passed else "inconclusive",
        reason="" if gate.passed else gate.reason,
        plots={"roc": Plot("roc.png", partial(plots.roc, title=title, lines=lines))},
        seconds={f"attack_{target}": one.seconds for target, one in played.items()} | models.seconds,
    )


def _gains(played: dict[str, Played], members: Tensor, targets: tuple[str, ...]) -> Metrics:
    """AUC beyond that of the unaware net, with its interval."""
    found: Metrics = {}
    for target in targets:
        gain = auc_gain(played[target].scores, played["unaware"].scores, members)
        found |= {f"{PREFIXES[target]}auc_gain{end}": value for end, value in zip(ENDS, gain, strict=True)}
    return found


@dataclass(frozen=True)
class Played:
    """What came of the attack on one target."""

    scores: Tensor
    found: Membership
    queries: int
    seconds: float


def _play(
    job: Job, attack: MembershipAttack, target: AttackTarget, models: ReferenceModels, known: str, members: Tensor
) -> Played:
    """Args: known: fingerprint of what the attacker is given besides the target, instead of that of its images."""
    knowledge = models.knowledge("student" if target.name == "student" else "teacher")
    step = attack_steps.infer(job, attack, replace(target.spec, aux=known), target.network, knowledge)
    scores = attack_steps.membership_scores(step)
    return Played(scores, membership(scores, members), step.json(RESULT)["queries"], step.seconds)


def _gap(job: Job, target: AttackTarget, challenge: Challenge) -> float:
    right = predict(target.network, challenge.images, job.device).argmax(1).cpu() == challenge.labels
    return gap_auc(right, challenge.members)


def metrics_of(played: dict[str, Played], members: dict[str, Tensor], delta: float) -> Metrics:
    """The numbers of all targets, shares with their 95 % intervals; the epsilon is an indication, no proof."""
    metrics: Metrics = {"queries": played["student"].queries}
    for name, one in played.items():
        prefix = PREFIXES[name]
        for key, (value, low, high) in _shares(one.found).items():
            metrics |= {f"{prefix}{key}": value, f"{prefix}{key}.lo": low, f"{prefix}{key}.hi": high}
        metrics[f"{prefix}membership_epsilon_lower"] = epsilon_lower(one.scores, members[name], delta)
    return metrics


def _shares(found: Membership) -> dict[str, tuple[float, float, float]]:
    one, tenth, balanced = found.at_1_percent, found.at_01_percent, found.balanced
    return {
        "auc": (found.auc, found.auc_low, found.auc_high),
        "tpr_at_1pct": (one.tpr, one.low, one.high),
        "tpr_at_01pct": (tenth.tpr, tenth.low, tenth.high),
        "balanced_accuracy": (balanced.accuracy, balanced.low, balanced.high),
    }


def missing_of(played: dict[str, Played]) -> dict[str, str]:
    few = "{} non-members are too few for {} %: the rate is at a measured false positive rate of 0"
    return {
        f"{PREFIXES[name]}{key}": few.format(one.found.non_members, percent)
        for name, one in played.items()
        for key, percent, at in (
            ("tpr_at_1pct", "1", one.found.at_1_percent),
            ("tpr_at_01pct", "0.1", one.found.at_01_percent),
        )
        if not at.resolved
    }
