"""Whom an attack is played on: what is released, what that was made of, and a network that knows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from bench.api import RELEASE_LEVELS
from bench.nets import Classifier
from bench.pipeline import teacher_steps
from bench.pipeline.job import Job
from bench.pipeline.lookup import make_spec
from bench.pipeline.memorising_generator import RECORDS, SMOKE_STEPS, STEPS
from bench.pipeline.trained import Networks
from bench.storage.specs import AttackSpec, GeneratorSpec, RandomSpec, RunSpec
from bench.validate import instance, present

PREFIXES = {name: f"{name}_" for name in ("teacher", "random", "unaware", "memorising")} | {"student": ""}
"""Target to the prefix of its metrics."""
NAMES = {"student": "student", "teacher": "teacher", "random": "random net", "unaware": "unaware net"}
RELEASE_NAMES = {"student": "released", "memorising": "memorising generator", "random": "random generator"}
"""The targets of attacks on released images and generators."""


AFTER_TARGET = [field.name for field in fields(AttackSpec)][1:]
"""What an attack's spec says besides whom it is played on."""


@dataclass(frozen=True)
class AttackTarget:
    """One of them: its key in PREFIXES, the attack on it as a spec, its network."""

    name: str
    spec: AttackSpec
    network: Classifier


def attack_specs(spec: RunSpec, make: Callable[..., Any] = make_spec) -> dict[str, AttackSpec]:
    """The attack of a run on each of its three targets.

    Args:
        make: a kind of spec and its parts to the spec; that of a `Lookup`, which may have it already.
    """
    attack = spec.attack_spec
    how = [getattr(attack, field) for field in AFTER_TARGET]
    if attack.access in RELEASE_LEVELS:
        where, steps = spec.release.teacher.data, SMOKE_STEPS if spec.tier == "smoke" else STEPS
        kept, untrained = (make(GeneratorSpec, where, RECORDS, count, attack.seed) for count in (steps, 0))
        others = {"memorising": kept, "random": untrained}
    else:
        random = make(RandomSpec, spec.release.teacher.data, spec.release.teacher.arch, attack.seed)
        others = {"teacher": spec.release.teacher, "random": random}
    return {"student": attack} | {name: make(AttackSpec, target, *how) for name, target in others.items()}


def attack_targets(job: Job, spec: RunSpec, networks: Networks) -> list[AttackTarget]:
    """The three targets with their networks."""
    specs = attack_specs(spec)
    random = instance(specs["random"].target, RandomSpec, "random network's spec")
    nets = {"student": networks.student.network, "teacher": present(networks.teacher, "teacher").network}
    nets["random"] = teacher_steps.random_network(job, random)
    return [AttackTarget(name, attack, nets[name]) for name, attack in specs.items()]
