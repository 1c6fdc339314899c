"""The stage of an inversion attack: run on student, teacher and an untrained network, scored, and drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench import data
from bench.api import Attack, AttackResult
from bench.core.verdict import is_significant
from bench.errors import RunFailed
from bench.metrics import table
from bench.metrics.identity import Identification
from bench.metrics.inversion import nearest_private
from bench.metrics.levels import LEAST_SHOWN, is_strong_enough, teacher_class_share
from bench.metrics.power import power
from bench.nets import Classifier
from bench.pipeline import attacks, evaluation, face_judge, plots
from bench.pipeline.attacks import LABELS, PREFIXES, AttackTarget, attack_targets
from bench.pipeline.evaluation import FeatureCache, Scored, Scorer
from bench.pipeline.face_judge import FaceJudge
from bench.pipeline.job import Job
from bench.pipeline.material import Material, Victims, choose_victims
from bench.pipeline.plots import Plot
from bench.pipeline.reference_images import reference_metrics
from bench.pipeline.retrieval import retrieval_metrics
from bench.pipeline.trained import Metrics, Networks, StageResult
from bench.storage.specs import FeaturesSpec, RunSpec
from bench.storage.store import load_tensors
from bench.validate import present

FEATURES = "features.safetensors"
MOST_COLUMNS = 20
"""Largest number of classes in the picture."""


def run_inversion(job: Job, attack: Attack, spec: RunSpec, networks: Networks) -> StageResult:
    """Run the attack on every target, score its reconstructions, and test its power."""
    m, name = job.material, spec.attack_spec.attack
    if job.attack_skip_reason is not None:
        return StageResult(status="skipped", reason=f"{name} does not apply: {job.attack_skip_reason}")
    victims = choose_victims(m) if attack.observes else None
    scorer, faces = (
        make_scorer(job, spec, present(networks.evaluator, "evaluator").network),
        face_judge.make_face_judge(job),
    )
    targets = share_identical_student(attack_targets(job, spec, networks))
    results = {target.name: invert_target(job, attack, target, scorer, faces, victims) for target in targets}
    confusions = {target_name: result.confusion for target_name, result in results.items()}
    retrieval = retrieval_metrics(job, attack, targets, confusions, scorer, faces)
    metrics: Metrics = {"queries": results["student"].queries}
    missing: dict[str, str] = {}
    for target_name, result in results.items():
        prefix = PREFIXES[target_name]
        metrics |= {f"{prefix}{key}": value for key, value in result.metrics().items()}
        missing |= {f"{prefix}{key}": reason for key, reason in result.scored.missing.items()}
    no_face_judge = face_judge.missing_metrics(job)
    metrics |= retrieval.metrics | dict.fromkeys(no_face_judge)
    missing |= retrieval.missing | no_face_judge
    gate = power(results["teacher"].confusion, results["random"].confusion)
    metrics |= {"power_p_teacher": gate.p_teacher, "power_p_random": gate.p_random}
    reason = gate.reason if not gate.passed else weakness(metrics)
    metrics |= reference_metrics(job, attack, spec, scorer, faces)
    picture = partial(
        draw,
        title=f"{name} against {spec.release.method} on {m.data.name}",
        found={target_name: result.found for target_name, result in results.items()},
        material=m,
        victims=victims,
    )
    return StageResult(
        metrics,
        missing,
        status="inconclusive" if reason else "ok",
        reason=reason,
        plots={} if data.facts(m.data.name).of_people else {"reconstructions": Plot("reconstructions.png", picture)},
        seconds={f"attack_{target_name}": result.seconds for target_name, result in results.items()},
    )


def make_scorer(job: Job, spec: RunSpec, evaluator: Classifier) -> Scorer:
    """Build the scorer; its features of private and held-out images are shared by all runs on the same data."""
    m = job.material

    def make(path: Path) -> None:
        cache = evaluation.extract_features(evaluator, m.private[0], m.data.test_images, job.device)
        save_file({name: tensor.contiguous() for name, tensor in vars(cache).items()}, path / FEATURES)

    step = job.store.step(
        "features", FeaturesSpec(spec.release.teacher.data, spec.evaluator, version=evaluation.VERSION), make
    )
    cache = FeatureCache(**load_tensors(step.path / FEATURES))
    held_out = m.data.test_images, m.data.test_labels
    return evaluation.make_scorer(evaluator, m.private, held_out, cache, job.device, m.data.classes)


def share_identical_student(targets: list[AttackTarget]) -> list[AttackTarget]:
    """Return the targets; a student that is the teacher itself shares the teacher's step.

    An attack's randomness does not depend on the target, so that the result would be the same.
    """
    student, teacher, random = targets
    ours, theirs = student.network.state_dict(), teacher.network.state_dict()
    if ours and ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours):
        student = replace(student, spec=teacher.spec)
    return [student, teacher, random]


@dataclass(frozen=True)
class InvertedTarget:
    """The result of the attack on one target; `people` is None without a face judge."""

    found: AttackResult
    scored: Scored
    people: Identification | None
    queries: int
    seconds: float

    @property
    def confusion(self) -> Tensor:
        """Return (c, c) counts, row = intended class, column = recognised class, by the face judge if there is one."""
        return self.scored.confusion if self.people is None else self.people.confusion

    def metrics(self) -> Metrics:
        """Return the metrics that the bench computed and the facts that the attack reported.

        Raises:
            RunFailed: a fact is not a metric of attacks, or is one that the bench computes.
        """
        known = table.metrics()
        for name in self.found.facts:
            fact = known.get(name)
            if fact is None or fact.of != "reconstructions" or name in {*self.scored.metrics, *face_judge.NAMES}:
                raise RunFailed(
                    f"the attack reports '{name}', which is not one of its facts (`AttackResult.facts`); remove it"
                )
        people = {} if self.people is None else face_judge.face_metrics(self.people)
        return self.scored.metrics | self.found.facts | people


def invert_target(
    job: Job, attack: Attack, target: AttackTarget, scorer: Scorer, faces: FaceJudge | None, victims: Victims | None
) -> InvertedTarget:
    """Run the attack on one target and score its reconstructions."""
    images = None if victims is None else victims.images
    step = attacks.invert(job, attack, target.spec, target.network, images)
    found = attacks.reconstructions(step)
    scored = evaluation.score(found, scorer, target.network, victims)
    targets = evaluation.with_intended_classes(found, victims).targets
    people = None if faces is None else faces.identify(found.images, targets)
    return InvertedTarget(found, scored, people, attacks.queries(step), step.seconds)


def weakness(metrics: Metrics) -> str:
    """Return why an attack that beats chance has no power; "" if it has power.

    With many classes public images also resemble the teacher's classes. With fewer classes than the test against
    retrieval needs, the metrics have no p-value, and the attack must reveal at least `LEAST_SHOWN` of the teacher's
    classes (by the face judge, if there is one).
    """
    p = metrics.get("teacher_floor_p")
    if p is not None and not is_significant(p):
        return f"The attack does no better on the undefended teacher than public images that it prefers: p = {p:.3f}."
    if p is None and not is_strong_enough(metrics):
        reason = "The attack is too weak on the undefended teacher for a failure elsewhere to say anything"
        share = teacher_class_share(metrics)
        return f"{reason}: {share:.1%} of its images show their class; at least {LEAST_SHOWN:.0%} is expected."
    return ""


def draw(path: Path, title: str, found: dict[str, AttackResult], material: Material, victims: Victims | None) -> None:
    """Draw the reconstructions from each target next to private images.

    Args:
        path: the PNG file.
        title: one line above the picture.
        found: the attack's result by target, a key of LABELS.
        victims: the victims of an attack that observes them; None for an attack on classes.
    """
    rows = []
    if victims is None:
        images, labels = material.private
        columns = found["student"].targets.unique()[:MOST_COLUMNS]
        for name, result in found.items():
            first = [int((result.targets == c).nonzero()[0]) for c in columns]
            near = nearest_private(result.images[first], result.targets[first], images, labels)
            rows.append((f"from the {LABELS[name]}", result.images[first]))
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
                rows.append((f"from the {LABELS[name]}", result.images[made]))
    plots.grid(path, title, [material.data.class_names[int(c)] for c in columns], rows)
