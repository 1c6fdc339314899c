"""The stage of an inversion attack: run on student, teacher and an untrained network, scored, and drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench import data
from bench.api import Attack, AttackResult
from bench.core.verdict import SIGNIFICANCE
from bench.errors import RunFailed
from bench.metrics import table
from bench.metrics.identity import Identified
from bench.metrics.inversion import nearest_private
from bench.metrics.levels import LEAST_SHOWN, shown, strong_enough
from bench.metrics.power import power
from bench.nets import Classifier
from bench.pipeline import attacks, evaluation, face_judge, plots
from bench.pipeline.attacks import NAMES, PREFIXES, AttackTarget, attack_targets
from bench.pipeline.evaluation import FeatureCache, Judge, Scored
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.floors import floor_metrics
from bench.pipeline.job import Job
from bench.pipeline.material import Material, Victims, choose_victims
from bench.pipeline.plots import Plot
from bench.pipeline.reference_images import reference_metrics
from bench.pipeline.trained import Metrics, Networks, StageResult
from bench.storage.specs import RunSpec
from bench.storage.store import load_tensors
from bench.validate import present

FEATURES = "features.safetensors"
MOST_COLUMNS = 20
"""The file name of the picture."""


def run_inversion(job: Job, attack: Attack, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on every target, score its reconstructions, and test its power."""
    m, name = job.material, spec.attack_spec.attack
    if job.attack_skip_reason is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.attack_skip_reason}")
    victims = choose_victims(m) if attack.observes else None
    judge, faces = make_judge(job, spec, present(networks.evaluator, "evaluator").network), face_judge.find(job)
    targets = _played_once(attack_targets(job, spec, networks))
    played = {t.name: _play(job, attack, t, judge, faces, victims) for t in targets}
    floors = floor_metrics(job, attack, {t.name: (t, played[t.name].confusion) for t in targets}, judge, faces)
    unjudged = face_judge.unjudged(job)
    metrics: Metrics = {"queries": played["student"].queries}
    missing: dict[str, str] = {}
    for target, one in played.items():
        metrics |= {f"{PREFIXES[target]}{key}": value for key, value in one.metrics().items()}
        missing |= {f"{PREFIXES[target]}{key}": reason for key, reason in one.scored.missing.items()}
    metrics |= floors.metrics | dict.fromkeys(unjudged)
    gate = power(played["teacher"].confusion, played["random"].confusion)
    metrics |= {"power_p_teacher": gate.p_teacher, "power_p_random": gate.p_random}
    reason = gate.reason if not gate.passed else _too_weak(metrics)
    metrics |= reference_metrics(job, attack, spec, judge, faces)
    title = f"{name} against {spec.release.method} on {m.data.name}"
    found = {target: one.found for target, one in played.items()}
    picture = partial(draw, title=title, found=found, material=m, victims=victims)
    of_people = data.facts(m.data.name).of_people
    return StageResult(
        metrics,
        missing | floors.missing | unjudged,
        status="inconclusive" if reason else "ok",
        reason=reason,
        plots={} if of_people else {"reconstructions": Plot("reconstructions.png", picture)},
        seconds={f"attack_{target}": one.seconds for target, one in played.items()},
    )


def make_judge(job: Job, spec: RunSpec, evaluator: Classifier) -> Judge:
    """Build the judge; its features of private and held-out images are shared by all runs on the same data."""
    m, where = job.material, spec.release.teacher.data

    def make(path: Path) -> None:
        cache = evaluation.extract_features(evaluator, m.private[0], m.data.test_images, job.device)
        save_file({name: tensor.contiguous() for name, tensor in vars(cache).items()}, path / FEATURES)

    key = {"data": asdict(where), "evaluator": asdict(spec.evaluator)}
    step = job.store.step("features", key | {"kind": "features", "version": evaluation.VERSION}, make)
    cache = FeatureCache(**load_tensors(step.path / FEATURES))
    return evaluation.make_judge(evaluator, m.private, (m.data.test_images, m.data.test_labels), cache, job.device)


def _played_once(targets: list[AttackTarget]) -> list[AttackTarget]:
    """Return the targets; a student that is the teacher itself reuses the teacher's step.

    An attack's randomness does not depend on the target, so that the result would be the same.
    """
    student, teacher, random = targets
    ours, theirs = student.network.state_dict(), teacher.network.state_dict()
    if ours and ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours):
        student = replace(student, spec=teacher.spec)
    return [student, teacher, random]


@dataclass(frozen=True)
class _Played:
    """The result of the attack on one target."""

    found: AttackResult
    scored: Scored
    people: Identified | None
    queries: int
    seconds: float

    @property
    def confusion(self) -> Tensor:
        """Return (c, c) counts, row = intended class, column = recognised class, by the face judge if there is one."""
        return self.scored.confusion if self.people is None else self.people.confusion

    def metrics(self) -> Metrics:
        """Return the metrics of the harness and the facts reported by the attack.

        Raises:
            RunFailed: a fact has the name of a metric of the harness (attacks do not score themselves), or is no
                metric.
        """
        known = table.metrics()
        for name in self.found.facts:
            fact = known.get(name)
            if fact is None or fact.of != "reconstructions" or name in {*self.scored.metrics, *face_judge.NAMES}:
                said = f"the attack says '{name}' of itself, which is not one of its facts (`AttackResult.facts`)"
                raise RunFailed(said)
        people = {} if self.people is None else face_judge.numbers(self.people)
        return self.scored.metrics | self.found.facts | people


def _play(
    job: Job, attack: Attack, target: AttackTarget, judge: Judge, faces: FaceJudge | None, victims: Victims | None
) -> _Played:
    images = None if victims is None else victims.images
    step = attacks.invert(job, attack, target.spec, target.network, images)
    found = attacks.reconstructions(step)
    scored = evaluation.score(found, judge, target.network, victims)
    people = None if faces is None else faces.judged(found.images, evaluation.aimed(found, victims).targets)
    return _Played(found, scored, people, attacks.queries(step), step.seconds)


def _too_weak(metrics: Metrics) -> str:
    """Return why an attack that beats chance has no power; "" if it has power.

    With many classes public images also resemble the teacher's classes. With fewer classes than the test against
    retrieval needs there is no p-value, and the attack must reveal at least `LEAST_SHOWN` of the teacher's classes (by
    the face judge, if there is one).
    """
    p = metrics.get("teacher_floor_p")
    if p is not None and p >= SIGNIFICANCE:
        return f"The attack does no better on the undefended teacher than public images that it prefers: p = {p:.3f}."
    if p is None and not strong_enough(metrics):
        reason = "The attack is too weak on the undefended teacher for a failure elsewhere to say anything"
        return f"{reason}: {shown(metrics):.1%} of its images show their class; at least {LEAST_SHOWN:.0%} is expected."
    return ""


def draw(path: Path, title: str, found: dict[str, AttackResult], material: Material, victims: Victims | None) -> None:
    """Draw the reconstructions from each target next to private images.

    Args:
        path: the PNG file.
        title: one line above the picture.
        found: the attack's result by target, a key of NAMES.
        victims: the victims of an attack that observes them; None for an attack on classes.
    """
    rows = []
    if victims is None:
        images, labels = material.private
        columns = found["student"].targets.unique()[:MOST_COLUMNS]
        for name, result in found.items():
            first = [int((result.targets == c).nonzero()[0]) for c in columns]
            near = nearest_private(result.images[first], result.targets[first], images, labels)
            rows.append((f"from the {NAMES[name]}", result.images[first]))
            rows.append(("nearest private", data.to_float(images[near])))
        title += " (first image of the first draw per class)"
    else:
        columns = victims.labels.unique()[:MOST_COLUMNS]
        for private, label in ((True, "a private image"), (False, "an unseen image")):
            numbers = [int(((victims.labels == c) & (victims.private == private)).nonzero()[0]) for c in columns]
            rows.append((label, data.to_float(victims.images[numbers])))
            for name, result in found.items():
                attacked = present(result.victims, "victim of the reconstructions")
                made = [int((attacked == number).nonzero()[0]) for number in numbers]
                rows.append((f"from the {NAMES[name]}", result.images[made]))
    plots.grid(path, title, [material.data.class_names[int(c)] for c in columns], rows)
