"""The stages of membership attacks, which score suspects by a network or by released images.

A network attack runs on the student, the teacher, an untrained network, and one trained by the teacher's recipe without
the suspects. Before, a classifier without any model must not recognise the members (`model_free_baseline`). Released
images have other baselines, as the undefended teacher draws nothing: a generator that memorises some of the private
records, attacked on those and as many others, and the same generator with random weights. The suspects are the same;
the population is then all of the attacker's images, and no reference model is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from bench.pipeline.attacks import LABELS, PREFIXES, RELEASE_LABELS, AttackTarget, attack_specs, attack_targets
from bench.pipeline.challenge import Challenge, ReferenceModels, knowledge_fingerprint, make_challenge
from bench.pipeline.job import Job
from bench.pipeline.memorising_generator import RECORDS, memorising_generator
from bench.pipeline.model_free_baseline import baseline_metrics, compare_suspects, with_baseline
from bench.pipeline.plots import Plot
from bench.pipeline.stages import released_images
from bench.pipeline.trained import Metrics, Networks, StageResult
from bench.seeds import derive
from bench.storage.specs import AttackSpec, GeneratorSpec, RunSpec
from bench.storage.store import Step
from bench.teachers import predict
from bench.validate import instance

BOUNDS = ("", ".lo", ".hi")
GAINS = [f"{prefix}auc_gain{bound}" for prefix in ("", "teacher_") for bound in BOUNDS]
NO_RESERVE = "the attacker has no records to train a network that saw none of the suspects"
OWN_WEIGHTS = (
    "the teacher has a user's own weights: its training recipe is not known, so that none can be trained like it"
)
CONVERTED = (
    "the references of the attack were converted and those of the unaware network were not: two different attacks"
)
MOST_SEARCHED = 500
"""Number of members, and of others, for which the latent space is searched if the attacker has the generator."""
GENERATORS = ("memorising generator", "random generator")


@dataclass(frozen=True)
class InferredTarget:
    """The result of the attack on one target: scores of suspects, which of them are members, and the attack's facts.

    Attributes:
        facts, missing: as in a `MembershipResult`.
    """

    scores: Tensor
    members: Tensor
    measured: Membership
    queries: int
    seconds: float
    facts: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step, members: Tensor) -> InferredTarget:
        """Read the result of a membership step."""
        found = attacks.membership_result(step)
        measured = membership(found.scores, members)
        return cls(found.scores, members, measured, attacks.queries(step), step.seconds, found.facts, found.missing)


def run_membership(job: Job, attack: MembershipAttack, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on every target, score its guesses, and test its power."""
    if job.attack_skip_reason is not None:
        reason = f"{spec.attack_spec.attack} does not apply: {job.attack_skip_reason}"
        return StageResult(status="skipped", reason=reason)
    challenge = make_challenge(job.material)
    baseline = compare_suspects(challenge)
    models = ReferenceModels(job, spec.release, challenge, attack.access)
    fingerprint = knowledge_fingerprint(job, spec.release, challenge)
    targets = attack_targets(job, spec, networks)
    unaware = models.unaware()
    if unaware is not None:
        targets.append(AttackTarget("unaware", replace(spec.attack_spec, target=unaware.spec), unaware.network))
    results = {}
    for target in targets:
        knowledge = models.knowledge("student" if target.name == "student" else "teacher")
        step = attacks.infer(job, attack, replace(target.spec, aux=fingerprint), target.network, knowledge)
        results[target.name] = InferredTarget.of(step, challenge.members)
    metrics = membership_metrics(results, networks.student.account.accounted.delta)
    if attack.access == "label":
        for target in targets:
            correct = predict(target.network, challenge.images, job.device).argmax(1).cpu() == challenge.labels
            metrics[f"{PREFIXES[target.name]}gap_auc"] = gap_auc(correct, challenge.members)
    gains: Metrics = {}
    if unaware is not None:
        converted = getattr(attack, "reference_kind", "") == "student"
        for name in ("teacher",) if converted else ("student", "teacher"):
            # The AUC above that of the network that saw no suspect, with its interval
            gain = auc_gain(results[name].scores, results["unaware"].scores, challenge.members)
            gains |= {f"{PREFIXES[name]}auc_gain{bound}": value for bound, value in zip(BOUNDS, gain, strict=True)}
    metrics |= dict.fromkeys(GAINS) | gains
    no_unaware = NO_RESERVE if job.settings.teacher_weights is None else OWN_WEIGHTS
    missing = {key: CONVERTED if unaware else no_unaware for key in GAINS if key not in gains}
    power = membership_power(results["teacher"].measured, results["random"].measured, metrics["teacher_auc_gain.lo"])
    metrics |= baseline_metrics(baseline)
    return membership_result(
        job, spec, results, metrics, missing, with_baseline(power, baseline), LABELS, models.seconds
    )


def membership_metrics(results: Mapping[str, InferredTarget], delta: float) -> Metrics:
    """Return the metrics of all targets, shares with 95 % intervals; the epsilon is an indication, not a proof."""
    metrics: Metrics = {"queries": results["student"].queries}
    for name, result in results.items():
        found, prefix = result.measured, PREFIXES[name]
        at_1, at_01, balanced = found.at_1_percent, found.at_01_percent, found.balanced
        shares = {
            "auc": (found.auc, found.auc_low, found.auc_high),
            "tpr_at_1pct": (at_1.tpr, at_1.low, at_1.high),
            "tpr_at_01pct": (at_01.tpr, at_01.low, at_01.high),
            "balanced_accuracy": (balanced.accuracy, balanced.low, balanced.high),
        }
        for key, values in shares.items():
            metrics |= {f"{prefix}{key}{bound}": value for bound, value in zip(BOUNDS, values, strict=True)}
        metrics[f"{prefix}membership_epsilon_lower"] = epsilon_lower(result.scores, result.members, delta)
        metrics |= {f"{prefix}{key}": value for key, value in result.facts.items()}
        metrics |= dict.fromkeys(f"{prefix}{key}" for key in result.missing)
    return metrics


def membership_result(
    job: Job,
    spec: RunSpec,
    results: Mapping[str, InferredTarget],
    metrics: Metrics,
    missing: dict[str, str],
    power: MembershipPower,
    labels: Mapping[str, str],
    seconds: Mapping[str, float],
) -> StageResult:
    """Build the result of either stage, with the picture of its ROC curves.

    Args:
        labels: the names of the targets in the picture.
        seconds: the seconds of reference models, by step.
    """
    for name, result in results.items():
        missing |= {f"{PREFIXES[name]}{key}": reason for key, reason in result.missing.items()}
        rates = (
            ("tpr_at_1pct", "1", result.measured.at_1_percent),
            ("tpr_at_01pct", "0.1", result.measured.at_01_percent),
        )
        for key, percent, rate in rates:
            if not rate.resolved:
                missing[f"{PREFIXES[name]}{key}"] = (
                    f"{result.measured.non_members} non-members are too few for {percent} %: the rate is at a measured "
                    "false positive rate of 0"
                )
    attack, method = spec.attack_spec.attack, spec.release.method
    title = f"{attack} against {method} on {job.material.data.name}: membership in the private data"
    curves = {labels[name]: (result.scores, result.members) for name, result in results.items()}
    return StageResult(
        metrics,
        missing,
        status="ok" if power.passed else "inconclusive",
        reason="" if power.passed else power.reason,
        plots={"roc": Plot("roc.png", partial(plots.roc, title=title, lines=curves))},
        seconds={f"attack_{name}": result.seconds for name, result in results.items()} | dict(seconds),
    )


@dataclass(frozen=True)
class Suspects:
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
    baseline = compare_suspects(challenge)
    usual = first_suspects(challenge, MOST_SEARCHED if attack.access == "generator" else len(challenge.labels))
    memorised = first_suspects(challenge, RECORDS)
    results = {}
    for target, target_spec in attack_specs(spec).items():
        suspects = memorised if target == "memorising" else usual
        images = released
        if target != "student":
            images = baseline_images(job, target_spec, released, challenge.images[memorised.rows[memorised.members]])
        fingerprint = f"{challenge.fingerprint} {suspects.rows.tolist()} {images.most}"
        target_spec = replace(target_spec, aux=hashlib.sha256(fingerprint.encode()).hexdigest()[:16])
        step = attacks.compare(job, attack, target_spec, images, release_knowledge(job, challenge, suspects))
        results[target] = InferredTarget.of(step, suspects.members)
    power = membership_power(results["memorising"].measured, results["random"].measured, names=GENERATORS)
    metrics = membership_metrics(results, networks.student.account.accounted.delta) | baseline_metrics(baseline)
    return membership_result(job, spec, results, metrics, {}, with_baseline(power, baseline), RELEASE_LABELS, {})


def first_suspects(challenge: Challenge, most: int) -> Suspects:
    """Select the first `most` members of a challenge, and as many others of each class, also the first ones."""
    inside, outside = (side.nonzero().flatten() for side in (challenge.members, ~challenge.members))
    inside = inside[:most]
    counts = torch.bincount(challenge.labels[inside]).tolist()
    others = [outside[challenge.labels[outside] == c][:count] for c, count in enumerate(counts)]
    rows = torch.cat([inside, *others]).sort().values
    return Suspects(rows, challenge.members[rows])


def baseline_images(job: Job, spec: AttackSpec, released: ReleasedImages, records: Tensor) -> ReleasedImages:
    """Train the baseline generator of an attack's spec, and release it in the same form: as images or as a generator.

    Args:
        records: uint8 training images of the generator.
    """
    target = instance(spec.target, GeneratorSpec, "baseline generator's spec")
    generator = ReleasedImages(released.access, None, memorising_generator(job, target, records))
    if released.most is None:
        return generator
    rng = job.context(derive(spec.seed, "control-images")).generator("samples")
    return ReleasedImages(released.access, generator.samples(released.most, rng), None)


def release_knowledge(job: Job, challenge: Challenge, suspects: Suspects) -> AttackerKnowledge:
    """Return the knowledge of an attacker of released images: all own images are the population."""
    device = job.device

    def population() -> tuple[Tensor, Tensor]:
        images, labels = (torch.cat(parts) for parts in zip(challenge.population, challenge.reserve, strict=True))
        return to_float(images).to(device), labels.to(device)

    def no_references(count: int, kind: str) -> list[Reference]:
        raise RunFailed(f"the attack requested {count} {kind} references; an attack on released images has none")

    images, labels = to_float(challenge.images[suspects.rows]).to(device), challenge.labels[suspects.rows].to(device)
    return AttackerKnowledge(images, labels, population, no_references)
