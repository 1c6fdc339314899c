"""The stage of a run in which members are told from others by what is released besides the student, and scored.

The controls are a generator that remembers some of the private records, on those and as many others, and the same
network with random weights: the undefended teacher draws nothing. The challenge is that of other membership attacks,
all of the attacker's images are the population, and no reference model is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bench.api import AttackerKnowledge, Reference, ReleaseAttack, ReleasedImages
from bench.data import to_float
from bench.errors import RunFailed
from bench.metrics.membership import membership, membership_power
from bench.pipeline import attack_steps, plots
from bench.pipeline.attack_targets import RELEASE_NAMES, attack_specs
from bench.pipeline.job import Job
from bench.pipeline.membership_challenge import Challenge, make_challenge
from bench.pipeline.membership_stage import Played, metrics_of, missing_of
from bench.pipeline.memorising_generator import RECORDS, memorising_generator
from bench.pipeline.plots import Plot
from bench.pipeline.release_step import released_images
from bench.pipeline.stage_result import StageResult
from bench.pipeline.trained import RESULT, Networks
from bench.seeds import derive
from bench.storage.specs import AttackSpec, GeneratorSpec, RunSpec
from bench.validate import instance

MOST_SEARCHED = 500
"""Members, and as many others, whose latents are searched for where the attacker has the generator."""
CONTROLS = ("memorising generator", "random generator")


@dataclass(frozen=True)
class _Suspects:
    """Rows of a challenge that are asked about; who of them is a member."""

    rows: Tensor
    members: Tensor


def compare(job: Job, attack: ReleaseAttack, spec: RunSpec, networks: Networks) -> StageResult:
    """Play the attack on the release and on both controls, score its guesses, and ask whether it has any power."""
    name, released = spec.attack_spec.attack, released_images(job, networks.student, attack.access)
    if isinstance(released, str):
        return StageResult(status="skipped", reason=f"{name} does not apply: {released}")
    if job.unplayable is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.unplayable}")
    challenge = make_challenge(job.material)
    asked = _some(challenge, MOST_SEARCHED if attack.access == "generator" else len(challenge.labels))
    fewer = _some(challenge, RECORDS)
    played, members = {}, {}
    for target, aim in attack_specs(spec).items():
        suspects = fewer if target == "memorising" else asked
        seen = released if target == "student" else _control(job, aim, released, challenge, fewer)
        played[target] = _play(job, attack, aim, seen, challenge, suspects)
        members[target] = suspects.members
    return _result(job, spec, played, members, networks.student.result["privacy"]["accounted"]["delta"])


def _some(challenge: Challenge, most: int) -> _Suspects:
    """The first `most` members of a challenge and of each class as many others, the first ones, in its order."""
    inside, outside = (side.nonzero().flatten() for side in (challenge.members, ~challenge.members))
    inside = inside[:most]
    counts = torch.bincount(challenge.labels[inside]).tolist()
    others = [outside[challenge.labels[outside] == c][:count] for c, count in enumerate(counts)]
    rows = torch.cat([inside, *others]).sort().values
    return _Suspects(rows, challenge.members[rows])


def _control(
    job: Job, spec: AttackSpec, released: ReleasedImages, challenge: Challenge, suspects: _Suspects
) -> ReleasedImages:
    """The control generator of an attack's spec, seen as the release is: where that is some images, as many are drawn.

    Its training records are the members of `suspects`.
    """
    target = instance(spec.target, GeneratorSpec, "baseline generator's spec")
    sampler = memorising_generator(job, target, challenge.images[suspects.rows[suspects.members]])
    whole = ReleasedImages(released.access, None, sampler)
    if released.most is None:
        return whole
    rng = job.context(derive(spec.seed, "control-images")).generator("samples")
    return ReleasedImages(released.access, whole.samples(released.most, rng), None)


def _play(
    job: Job, attack: ReleaseAttack, spec: AttackSpec, seen: ReleasedImages, challenge: Challenge, suspects: _Suspects
) -> Played:
    known = hashlib.sha256(f"{challenge.fingerprint} {suspects.rows.tolist()} {seen.most}".encode()).hexdigest()[:16]
    knowledge = _knowledge(job, challenge, suspects)
    step = attack_steps.compare(job, attack, replace(spec, aux=known), seen, knowledge)
    scores = attack_steps.membership_scores(step)
    return Played(scores, membership(scores, suspects.members), step.json(RESULT)["queries"], step.seconds)


def _knowledge(job: Job, challenge: Challenge, suspects: _Suspects) -> AttackerKnowledge:
    device = job.device

    def population() -> tuple[Tensor, Tensor]:
        images, labels = (torch.cat(parts) for parts in zip(challenge.population, challenge.reserve, strict=True))
        return to_float(images).to(device), labels.to(device)

    images, labels = to_float(challenge.images[suspects.rows]).to(device), challenge.labels[suspects.rows].to(device)
    return AttackerKnowledge(images, labels, population, _no_references)


def _no_references(count: int, kind: str) -> list[Reference]:
    raise RunFailed(f"the attack asked for {count} {kind} references; an attack on released images has none")


def _result(
    job: Job, spec: RunSpec, played: dict[str, Played], members: dict[str, Tensor], delta: float
) -> StageResult:
    gate = membership_power(played["memorising"].found, played["random"].found, names=CONTROLS)
    attack, method = spec.attack_spec.attack, spec.release.method
    title = f"{attack} against {method} on {job.material.data.name}: who was in the private data"
    lines = {RELEASE_NAMES[target]: (one.scores, members[target]) for target, one in played.items()}
    draw: Callable[..., None] = partial(plots.roc, title=title, lines=lines)
    return StageResult(
        metrics_of(played, members, delta),
        missing_of(played),
        status="ok" if gate.passed else "inconclusive",
        reason="" if gate.passed else gate.reason,
        plots={"roc": Plot("roc.png", draw)},
        seconds={f"attack_{target}": one.seconds for target, one in played.items()},
    )
