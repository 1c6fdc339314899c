"""The stage of a run in which an inversion attack is played, on student, teacher and a random net, and scored."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench import data
from bench.api import Attack, AttackResult
from bench.errors import RunFailed
from bench.metrics import table
from bench.metrics.floors import ALPHA
from bench.metrics.identity import Identified
from bench.metrics.levels import LEAST_SHOWN, shown, strong_enough
from bench.metrics.power import power
from bench.nets import Classifier
from bench.pipeline import attack_steps, evaluation, face_judge, reconstruction_plot
from bench.pipeline.attack_targets import PREFIXES, AttackTarget, attack_targets
from bench.pipeline.evaluation import FeatureCache, Judge, Metrics, Scored
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.floors import floor_metrics
from bench.pipeline.job import Job
from bench.pipeline.plots import Plot
from bench.pipeline.reference_images import reference_metrics
from bench.pipeline.stage_result import StageResult
from bench.pipeline.trained import RESULT, Networks
from bench.pipeline.victims import Victims, choose_victims
from bench.storage.specs import RunSpec
from bench.storage.store import load_tensors
from bench.validate import present

FEATURES = "features.safetensors"


def invert(job: Job, attack: Attack, spec: RunSpec, networks: Networks) -> StageResult:
    """Play the attack on every target, score what it brings back, and ask whether it has shown any power."""
    m, name = job.material, spec.attack_spec.attack
    if job.unplayable is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.unplayable}")
    victims = choose_victims(m) if attack.observes else None
    judge, faces = make_judge(job, spec, present(networks.evaluator, "evaluator").network), face_judge.find(job)
    targets = _played_once(attack_targets(job, spec, networks))
    played = {t.name: _play(job, attack, t, judge, faces, victims) for t in targets}
    floors = floor_metrics(job, attack, {t.name: (t, played[t.name].confusion) for t in targets}, judge, faces)
    unjudged = face_judge.unjudged(job)
    metrics = _metrics(played) | floors.metrics | dict.fromkeys(unjudged)
    missing = _missing(played) | floors.missing | unjudged
    gate = power(played["teacher"].confusion, played["random"].confusion)
    metrics |= {"power_p_teacher": gate.p_teacher, "power_p_random": gate.p_random}
    reason = gate.reason if not gate.passed else _too_weak(metrics)
    metrics |= reference_metrics(job, attack, spec, judge, faces)
    title = f"{name} against {spec.release.method} on {m.data.name}"
    found = {target: one.found for target, one in played.items()}
    draw = partial(reconstruction_plot.draw, title=title, found=found, material=m, victims=victims)
    of_people = data.facts(m.data.name).of_people
    return StageResult(
        metrics,
        missing,
        status="inconclusive" if reason else "ok",
        reason=reason,
        plots={} if of_people else {"reconstructions": Plot("reconstructions.png", draw)},
        seconds={f"attack_{target}": one.seconds for target, one in played.items()},
    )


def _played_once(targets: list[AttackTarget]) -> list[AttackTarget]:
    """The targets, of which a student that is the teacher itself is attacked by the teacher's step.

    An attack's randomness does not depend on the target, so that it would find the same again.
    """
    student, teacher, random = targets
    ours, theirs = student.network.state_dict(), teacher.network.state_dict()
    if ours and ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours):
        student = replace(student, spec=teacher.spec)
    return [student, teacher, random]


def _too_weak(metrics: Metrics) -> str:
    """Why an attack that beats chance has no power; "" if it has.

    On many classes public images show the teacher's as well. With fewer classes than the test against retrieval needs
    there is no p-value, and the attack must show at least `LEAST_SHOWN` of the teacher's (to the judge of faces, if
    there is one).
    """
    p = metrics.get("teacher_floor_p")
    if p is not None and p >= ALPHA:
        return f"The attack does no better on the undefended teacher than public images that it prefers: p = {p:.3f}."
    if p is None and not strong_enough(metrics):
        reason = "The attack is too weak on the undefended teacher for a failure elsewhere to say anything"
        return f"{reason}: {shown(metrics):.1%} of its images show their class; at least {LEAST_SHOWN:.0%} is expected."
    return ""


@dataclass(frozen=True)
class _Played:
    """What came of the attack on one target."""

    found: AttackResult
    scored: Scored
    people: Identified | None
    queries: int
    seconds: float

    @property
    def confusion(self) -> Tensor:
        """(c, c) counts, row the class aimed at, column the one seen: by the judge of faces, where there is one."""
        return self.scored.confusion if self.people is None else self.people.confusion


def _play(
    job: Job, attack: Attack, target: AttackTarget, judge: Judge, faces: FaceJudge | None, victims: Victims | None
) -> _Played:
    images = None if victims is None else victims.images
    step = attack_steps.invert(job, attack, target.spec, target.network, images)
    found = attack_steps.reconstructions(step)
    scored = evaluation.score(found, judge, target.network, victims)
    people = None if faces is None else faces.judged(found.images, evaluation.aimed(found, victims).targets)
    return _Played(found, scored, people, step.json(RESULT)["queries"], step.seconds)


def _metrics(played: dict[str, _Played]) -> Metrics:
    metrics: Metrics = {}
    for name, one in played.items():
        metrics |= {f"{PREFIXES[name]}{key}": value for key, value in one.scored.metrics.items()}
        metrics |= {f"{PREFIXES[name]}{key}": value for key, value in _facts(one).items()}
        people = {} if one.people is None else face_judge.numbers(one.people)
        metrics |= {f"{PREFIXES[name]}{key}": value for key, value in people.items()}
    return metrics | {"queries": played["student"].queries}


def _facts(one: _Played) -> Metrics:
    """What an attack says of itself: a metric of reconstructions that the bench does not measure, as it never scores
    itself. Raises RunFailed for another one."""
    for name in one.found.facts:
        known = table.metrics().get(name)
        if known is None or known.of != "reconstructions" or name in {*one.scored.metrics, *face_judge.NAMES}:
            raise RunFailed(f"the attack says '{name}' of itself, which is no number of its own (`AttackResult.facts`)")
    return dict(one.found.facts)


def _missing(played: dict[str, _Played]) -> dict[str, str]:
    missing = {name: one.scored.missing for name, one in played.items()}
    return {f"{PREFIXES[name]}{key}": reason for name, found in missing.items() for key, reason in found.items()}


def make_judge(job: Job, spec: RunSpec, evaluator: Classifier) -> Judge:
    """The judge; its features of private and held-out images are extracted once for all runs on the same data."""
    m, where = job.material, spec.release.teacher.data

    def make(path: Path) -> None:
        cache = evaluation.extract_features(evaluator, m.private[0], m.data.test_images, job.device)
        save_file({name: tensor.contiguous() for name, tensor in vars(cache).items()}, path / FEATURES)

    key = {"data": asdict(where), "evaluator": asdict(spec.evaluator)}
    step = job.store.step("features", key | {"kind": "features", "version": evaluation.VERSION}, make)
    cache = FeatureCache(**load_tensors(step.path / FEATURES))
    return evaluation.make_judge(evaluator, m.private, (m.data.test_images, m.data.test_labels), cache, job.device)
