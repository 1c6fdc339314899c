"""The stages of membership attacks: which suspects were private data, judged by a network or by released images.

A network attack runs on the student, the teacher, an untrained network, and one trained by the teacher's recipe without
the suspects. Released images have other baselines, as the undefended teacher draws nothing: a generator that memorises
some of the private records, attacked on those and as many others, and the same generator with random weights. The
suspects are the same; the population is then all of the attacker's images, and no reference model is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bench.api import AttackerKnowledge, MembershipAttack, Reference, ReleaseAttack, ReleasedImages
from bench.data import to_float
from bench.errors import RunFailed
from bench.metrics.membership import (
    Membership,
    MembershipPower,
    auc_gain,
    epsilon_lower,
    gap_auc,
    membership,
    membership_power,
)
from bench.pipeline import attacks, plots
from bench.pipeline.attacks import NAMES, PREFIXES, RELEASE_NAMES, AttackTarget, attack_specs, attack_targets
from bench.pipeline.challenge import Challenge, ReferenceModels, knowledge_fingerprint, make_challenge
from bench.pipeline.job import Job
from bench.pipeline.memorising_generator import RECORDS, memorising_generator
from bench.pipeline.plots import Plot
from bench.pipeline.stages import released_images
from bench.pipeline.trained import Metrics, Networks, StageResult
from bench.seeds import derive
from bench.storage.specs import AttackSpec, GeneratorSpec, RunSpec
from bench.storage.store import Step
from bench.teachers import predict
from bench.validate import instance

ENDS = ("", ".lo", ".hi")
GAINS = [f"{prefix}auc_gain{end}" for prefix in ("", "teacher_") for end in ENDS]
NO_RESERVE = "the attacker has no records for a network that saw none of the suspects"
OWN_WEIGHTS = "how the teacher was trained is not known, as its weights were given: no network can be trained as it was"
CONVERTED = "its references were converted and those of the unaware network were not: they are two different attacks"
MOST_SEARCHED = 500
"""Number of members, and of others, for which the latent space is searched if the attacker has the generator."""
CONTROLS = ("memorising generator", "random generator")


@dataclass(frozen=True)
class Played:
    """The result of the attack on one target: scores of suspects, and which of them are members."""

    scores: Tensor
    members: Tensor
    found: Membership
    queries: int
    seconds: float

    @classmethod
    def of(cls, step: Step, members: Tensor) -> Played:
        """Read the result of a membership step."""
        scores = attacks.membership_scores(step)
        return cls(scores, members, membership(scores, members), attacks.queries(step), step.seconds)


def run_membership(job: Job, attack: MembershipAttack, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on every target, score its guesses, and test its power."""
    name = spec.attack_spec.attack
    if job.attack_skip_reason is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.attack_skip_reason}")
    challenge = make_challenge(job.material)
    models = ReferenceModels(job, spec.release, challenge, attack.access)
    known = knowledge_fingerprint(job, spec.release, challenge)
    targets = attack_targets(job, spec, networks)
    unaware = models.unaware()
    if unaware is not None:
        targets.append(AttackTarget("unaware", replace(spec.attack_spec, target=unaware[0]), unaware[1]))
    played = {}
    for target in targets:
        knowledge = models.knowledge("student" if target.name == "student" else "teacher")
        step = attacks.infer(job, attack, replace(target.spec, aux=known), target.network, knowledge)
        played[target.name] = Played.of(step, challenge.members)
    metrics = _metrics(played, networks.student.account.accounted.delta)
    if attack.access == "label":
        for target in targets:
            right = predict(target.network, challenge.images, job.device).argmax(1).cpu() == challenge.labels
            metrics[f"{PREFIXES[target.name]}gap_auc"] = gap_auc(right, challenge.members)
    converted = getattr(attack, "reference_kind", "") == "student"
    gains = _gains(played, ("teacher",) if converted else ("student", "teacher")) if unaware else {}
    metrics |= dict.fromkeys(GAINS) | gains
    without = NO_RESERVE if job.settings.teacher_weights is None else OWN_WEIGHTS
    missing = {key: CONVERTED if unaware else without for key in GAINS if key not in gains}
    power = membership_power(played["teacher"].found, played["random"].found, metrics["teacher_auc_gain.lo"])
    return _result(job, spec, played, metrics, missing, power, NAMES, models.seconds)


def _gains(played: dict[str, Played], targets: tuple[str, ...]) -> Metrics:
    """Return the AUC above that of the network that saw no suspect, with its interval."""
    found: Metrics = {}
    for target in targets:
        gain = auc_gain(played[target].scores, played["unaware"].scores, played[target].members)
        found |= {f"{PREFIXES[target]}auc_gain{end}": value for end, value in zip(ENDS, gain, strict=True)}
    return found


def _metrics(played: dict[str, Played], delta: float) -> Metrics:
    """Return the metrics of all targets, shares with 95 % intervals; the epsilon is an indication, not a proof."""
    metrics: Metrics = {"queries": played["student"].queries}
    for name, one in played.items():
        found, prefix = one.found, PREFIXES[name]
        at_1, at_01, balanced = found.at_1_percent, found.at_01_percent, found.balanced
        shares = {
            "auc": (found.auc, found.auc_low, found.auc_high),
            "tpr_at_1pct": (at_1.tpr, at_1.low, at_1.high),
            "tpr_at_01pct": (at_01.tpr, at_01.low, at_01.high),
            "balanced_accuracy": (balanced.accuracy, balanced.low, balanced.high),
        }
        for key, values in shares.items():
            metrics |= {f"{prefix}{key}{end}": value for end, value in zip(ENDS, values, strict=True)}
        metrics[f"{prefix}membership_epsilon_lower"] = epsilon_lower(one.scores, one.members, delta)
    return metrics


def _result(
    job: Job,
    spec: RunSpec,
    played: dict[str, Played],
    metrics: Metrics,
    missing: dict[str, str],
    power: MembershipPower,
    names: Mapping[str, str],
    seconds: dict[str, float],
) -> StageResult:
    """Build the result of either stage, with the picture of its ROC curves."""
    few = "{} non-members are too few for {} %: the rate is at a measured false positive rate of 0"
    for name, one in played.items():
        rates = (("tpr_at_1pct", "1", one.found.at_1_percent), ("tpr_at_01pct", "0.1", one.found.at_01_percent))
        for key, percent, rate in rates:
            if not rate.resolved:
                missing[f"{PREFIXES[name]}{key}"] = few.format(one.found.non_members, percent)
    attack, method = spec.attack_spec.attack, spec.release.method
    title = f"{attack} against {method} on {job.material.data.name}: who was in the private data"
    lines = {names[target]: (one.scores, one.members) for target, one in played.items()}
    return StageResult(
        metrics,
        missing,
        status="ok" if power.passed else "inconclusive",
        reason="" if power.passed else power.reason,
        plots={"roc": Plot("roc.png", partial(plots.roc, title=title, lines=lines))},
        seconds={f"attack_{target}": one.seconds for target, one in played.items()} | seconds,
    )


@dataclass(frozen=True)
class _Suspects:
    """Rows of a challenge to be scored, and which of them are members."""

    rows: Tensor
    members: Tensor


def run_release_membership(job: Job, attack: ReleaseAttack, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on the released images and on both baselines, score its guesses, and test its power."""
    name, released = spec.attack_spec.attack, released_images(job, networks.student, attack.access)
    reason = released if isinstance(released, str) else job.attack_skip_reason
    if isinstance(released, str) or reason is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {reason}")
    challenge = make_challenge(job.material)
    more = _some(challenge, MOST_SEARCHED if attack.access == "generator" else len(challenge.labels))
    fewer = _some(challenge, RECORDS)
    played = {}
    for target, aim in attack_specs(spec).items():
        suspects = fewer if target == "memorising" else more
        seen = released if target == "student" else _baseline(job, aim, released, challenge, fewer)
        known = f"{challenge.fingerprint} {suspects.rows.tolist()} {seen.most}"
        aim = replace(aim, aux=hashlib.sha256(known.encode()).hexdigest()[:16])
        step = attacks.compare(job, attack, aim, seen, _knowledge(job, challenge, suspects))
        played[target] = Played.of(step, suspects.members)
    power = membership_power(played["memorising"].found, played["random"].found, names=CONTROLS)
    metrics = _metrics(played, networks.student.account.accounted.delta)
    return _result(job, spec, played, metrics, {}, power, RELEASE_NAMES, {})


def _some(challenge: Challenge, most: int) -> _Suspects:
    """Select the first `most` members of a challenge, and the first as many others of each class."""
    inside, outside = (side.nonzero().flatten() for side in (challenge.members, ~challenge.members))
    inside = inside[:most]
    counts = torch.bincount(challenge.labels[inside]).tolist()
    others = [outside[challenge.labels[outside] == c][:count] for c, count in enumerate(counts)]
    rows = torch.cat([inside, *others]).sort().values
    return _Suspects(rows, challenge.members[rows])


def _baseline(
    job: Job, spec: AttackSpec, released: ReleasedImages, challenge: Challenge, suspects: _Suspects
) -> ReleasedImages:
    """Build the baseline generator of an attack's spec in the release's form: images if the release is images.

    Its training records are the members of `suspects`.
    """
    target = instance(spec.target, GeneratorSpec, "baseline generator's spec")
    sampler = memorising_generator(job, target, challenge.images[suspects.rows[suspects.members]])
    whole = ReleasedImages(released.access, None, sampler)
    if released.most is None:
        return whole
    rng = job.context(derive(spec.seed, "control-images")).generator("samples")
    return ReleasedImages(released.access, whole.samples(released.most, rng), None)


def _knowledge(job: Job, challenge: Challenge, suspects: _Suspects) -> AttackerKnowledge:
    device = job.device

    def population() -> tuple[Tensor, Tensor]:
        images, labels = (torch.cat(parts) for parts in zip(challenge.population, challenge.reserve, strict=True))
        return to_float(images).to(device), labels.to(device)

    def no_references(count: int, kind: str) -> list[Reference]:
        raise RunFailed(f"the attack requested {count} {kind} references; an attack on released images has none")

    images, labels = to_float(challenge.images[suspects.rows]).to(device), challenge.labels[suspects.rows].to(device)
    return AttackerKnowledge(images, labels, population, no_references)
