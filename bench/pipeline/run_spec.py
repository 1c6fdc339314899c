"""A job as plain data: the spec that names a run, and what of it differs from the defaults."""

from __future__ import annotations

from typing import Any

from bench import data
from bench.config import EVALUATOR, Variant, configure, plain
from bench.pipeline.job import Job
from bench.privacy import Budget
from bench.storage.options import Changed
from bench.storage.specs import (
    AttackSpec,
    DataSpec,
    EnsembleSpec,
    EvaluatorSpec,
    ReleaseSpec,
    RunSpec,
    Shared,
    TeacherSpec,
)

EVALUATOR_SEED = 2020


def run_spec(job: Job, seed: int) -> RunSpec:
    """The spec of the run that `job` asks for, with one seed."""
    s, m, method, shared, spec = job.settings, job.material.data, job.method, job.shared, job.lookup.spec
    where, everything = (spec(DataSpec, m.name, m.fingerprint, split) for split in (s.split, "all"))
    # A user's own weights come from no recipe of ours, and are the same for all seeds.
    recipe, teacher_seed = (shared["recipe"], seed) if job.weights_sha256 is None else (Shared(), 0)
    teacher = spec(TeacherSpec, where, s.teacher, job.weights_sha256, recipe, teacher_seed, s.teacher_normalise)
    ensemble = spec(EnsembleSpec, where, shared["shards"], seed) if shared["shards"] else None
    release = spec(
        *(ReleaseSpec, teacher, s.method, method.version, shared["method"], s.student, shared["budget"], s.noise, seed),
        *(ensemble, job.variant, job.material.public_fingerprint),
    )
    evaluator = spec(EvaluatorSpec, everything, s.evaluator, shared["evaluator"], EVALUATOR_SEED)
    return RunSpec(s.tier, release, _attack_spec(job, release, seed), evaluator)


def _attack_spec(job: Job, release: ReleaseSpec, seed: int) -> AttackSpec | None:
    name, attack = job.settings.attack, job.attack
    if name is None or attack is None:
        return None
    aux = job.material.aux_fingerprint
    return AttackSpec(release, aux, name, attack.version, attack.access, job.shared["attack"], seed, job.attack_variant)


def changed_options(job: Job) -> Changed:
    """What differs from the defaults of variant and tier, and of the budget."""
    s = job.settings
    budget = s.budget.to_json() | {"noise": s.noise}
    usual = Budget().to_json() | {"noise": "seeded"}
    return {
        "method": _changed(job.method, s.tier, job.variant),
        "attack": {} if job.attack is None else _changed(job.attack, s.tier, job.attack_variant),
        "teacher": {} if job.weights_sha256 is not None else _changed_recipe(job),
        "evaluator": _changed_evaluator(job),
        "budget": {name: value for name, value in budget.items() if value != usual[name]},
    }


def _changed_recipe(job: Job) -> dict[str, Any]:
    """The recipe's name, where one was named, and what differs from its defaults."""
    named = {option: name for option, name in job.settings.teacher_options if option == "recipe"}
    return named | _changed(job.recipe, job.settings.tier, "printed")


def _changed_evaluator(job: Job) -> dict[str, Any]:
    """Network and recipe, where they are not the usual ones, and what differs from the recipe's defaults; nothing where
    none judges."""
    if not job.judged:
        return {}
    s, make = job.settings, job.lookup.evaluator_recipe
    where, own = (s.tier, data.slug(s.dataset)), type(job.evaluator_recipe)
    named = tuple(given for given in s.evaluator_options if given[0] == "recipe" and type(make(*where, ())) is not own)
    usual = plain(make(*where, named))
    network = {} if s.evaluator == EVALUATOR else {"network": s.evaluator}
    unlike = {name: value for name, value in plain(job.evaluator_recipe).items() if usual[name] != value}
    return network | dict(named) | unlike


def _changed(plugin: Any, tier: str, variant: Variant) -> dict[str, Any]:
    usual = plain(configure(type(plugin), tier, {}, "plugin", variant))
    return {name: value for name, value in plain(plugin).items() if value != usual[name]}
