"""What the attack stages of a run share: whom an attack is aimed at, and the pictures they leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import steps
from bench.job import Job
from bench.nets import Classifier
from bench.records import AttackSpec, RandomSpec, RunSpec

Artist = Callable[[Path], None]
Artists = dict[str, tuple[str, Artist]]
"""Name of a picture to its file beside the record and what draws it."""
Networks = dict[str, Classifier]

PREFIXES = {"student": "", "teacher": "teacher_", "random": "random_"}
"""Target to the prefix of its metrics."""
NAMES = {"student": "student", "teacher": "teacher", "random": "random net"}


def aims(job: Job, spec: RunSpec, student: Classifier, teacher: Classifier) -> dict[str, tuple[AttackSpec, Classifier]]:
    """The three targets with their specs: what is released, what it was made of, and a net that knows nothing."""
    aim = spec.attack
    assert aim is not None
    random = RandomSpec(spec.release.teacher.data, spec.release.teacher.arch, aim.seed)
    return {
        "student": (aim, student),
        "teacher": (replace(aim, target=spec.release.teacher), teacher),
        "random": (replace(aim, target=random), steps.random_network(random, job.material, job.device)),
    }
