"""What the attack stages of a run share: whom an attack is aimed at, and the pictures they leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.nets import Classifier
from bench.pipeline import steps
from bench.pipeline.job import Job
from bench.storage.records import AttackSpec, RandomSpec, RunSpec

Artist = Callable[[Path], None]
Artists = dict[str, tuple[str, Artist]]
"""Name of a picture to its file beside the record and what draws it."""
Networks = dict[str, Classifier]

PREFIXES = {"student": "", "teacher": "teacher_", "random": "random_"}
"""Target to the prefix of its metrics."""
NAMES = {"student": "student", "teacher": "teacher", "random": "random net"}


def targets(spec: RunSpec) -> dict[str, AttackSpec]:
    """The attack on what is released, on what that was made of, and on a net that knows nothing."""
    aim = spec.attack
    assert aim is not None
    random = RandomSpec(spec.release.teacher.data, spec.release.teacher.arch, aim.seed)
    return {
        "student": aim,
        "teacher": replace(aim, target=spec.release.teacher),
        "random": replace(aim, target=random),
    }


def aims(job: Job, spec: RunSpec, student: Classifier, teacher: Classifier) -> dict[str, tuple[AttackSpec, Classifier]]:
    """The three targets with their networks."""
    found = targets(spec)
    random = found["random"].target
    assert isinstance(random, RandomSpec)
    networks = {"student": student, "teacher": teacher}
    networks["random"] = steps.random_network(random, job.material, job.device)
    return {name: (aim, networks[name]) for name, aim in found.items()}
