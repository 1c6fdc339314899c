"""A job: a user's settings with everything found, checked and loaded; and the spec of each of its runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from bench import data, progress, registry, teachers
from bench.api import (
    Attack,
    Context,
    MembershipAttack,
    Method,
    ReleaseAttack,
    Shards,
    releases_images,
    trains_student,
)
from bench.config import EVALUATOR, Variant, configure, plain
from bench.errors import plugin_errors
from bench.pipeline.components import Components
from bench.pipeline.devices import Precision, Training, choose_precision
from bench.pipeline.material import Material
from bench.pipeline.settings import Settings
from bench.privacy import Budget
from bench.ranks import Ranks
from bench.storage import provenance
from bench.storage.options import Changed
from bench.storage.provenance import Followed
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
from bench.storage.store import Store

RUNNING = provenance.git_state(registry.ROOT)
"""The code of this process: the state of the checkout when this module was imported. A sweep's fork server imports the
code once and starts all runs with it, even if someone commits in the meantime."""
EVALUATOR_SEED = 2020
UNLABELLED = (
    "the attacker's images are of other classes than the private ones, or of another data set, so that they have no "
    "labels to learn from, as it does; use --split iid, or loss-threshold or label-only, which do not"
)


@dataclass(frozen=True)
class Job:
    """Settings with everything checked and loaded that can be checked before training.

    Made by `bench.pipeline.resolve.load_job`.
    """

    settings: Settings
    device: torch.device
    store: Store
    method: Method
    variant: Variant
    attack: Attack | MembershipAttack | ReleaseAttack | None
    attack_variant: Variant
    recipe: teachers.Recipe
    evaluator_recipe: teachers.Recipe
    weights_sha256: str | None
    material: Material
    components: Components
    ranks: Ranks | None = None

    def following(self) -> AbstractContextManager[Followed]:
        """Return a context that records the steps of a run, with the code and device that made them."""
        devices = self.settings.devices
        return self.store.following(provenance.origin(RUNNING, self.device, self.precision, devices))

    def close(self) -> None:
        """End the processes on the additional devices."""
        if self.ranks is not None:
            self.ranks.close()

    @property
    def goal(self) -> str | None:
        """The goal of the attack, "inversion" or "membership"; None without an attack."""
        return None if self.attack is None else self.attack.goal

    @property
    def needs_teacher(self) -> bool:
        """Whether the method needs the undefended teacher, or an attack that proves its power on it."""
        return "teacher" in self.method.needs or self.attack is not None

    @property
    def needs_evaluator(self) -> bool:
        """Whether an attack will reconstruct images for the evaluator to score."""
        return self.goal == "inversion" and self.attack_skip_reason is None

    @property
    def attack_skip_reason(self) -> str | None:
        """Return why the attack does not apply to this data, as far as is known before training."""
        if self.attack is None:
            return None
        m = self.material
        if self.goal == "membership" and m.aux_labels is None and getattr(self.attack, "labelled", True):
            return UNLABELLED
        if self.goal == "inversion":
            counts = torch.bincount(m.private[1], minlength=m.data.classes)
            if empty := (counts == 0).nonzero().flatten().tolist():
                return (
                    f"{len(empty)} of {m.data.classes} classes have no private record, the first {empty[0]}: nothing "
                    "could be reconstructed of them; use a split with more records, such as iid"
                )
        if isinstance(self.attack, ReleaseAttack) and not releases_images(self.method):
            return f"{self.settings.method} releases neither a generator nor images"
        outside = len(m.aux) // 2 if isinstance(self.attack, MembershipAttack) else len(m.aux)
        with plugin_errors(f"attack '{self.settings.attack}'"):
            reason = self.attack.skip_reason(m.data.shape, m.data.classes, outside)
            if reason is not None and (not isinstance(reason, str) or not reason):
                raise TypeError(f"its `skip_reason` gives {reason!r}; expected None, or a sentence that says why not")
        return reason

    def check(self) -> None:
        """Raise BenchError if the method cannot meet its budget, or a network cannot take the images.

        The result is cached: calibrating a method and building networks take seconds.
        """
        _ = self._checked  # the first access runs the checks

    @cached_property
    def _checked(self) -> bool:
        images, components = self.material.data, self.components
        components.check_method(self.method, self.settings.budget, images.name, images.classes)
        if hasattr(self.method, "check_data"):
            with plugin_errors(f"method '{self.settings.method}'"):
                self.method.check_data(images.shape, len(self.material.private[0]), images.name)
        s, shards = self.settings, self.shards()
        networks = [s.teacher] if self.needs_teacher else []
        networks += [s.evaluator] if self.needs_evaluator else []
        networks += [] if shards is None else shards.archs
        if hasattr(self.method, "networks"):
            networks += self.method.networks(images.shape, s.student)
        networks += [s.student] if trains_student(self.method) else []
        for arch in dict.fromkeys(networks):  # the networks that will certainly be built, in that order
            components.check_images(arch, images.shape, images.classes)
        components.check_generator(self.method, images.shape, images.classes, images.name)
        return True

    @cached_property
    def precision(self) -> Precision:
        """The precision of training; "auto" is decided by the teacher, or by the student if no teacher is trained."""
        s, images = self.settings, self.material.data
        arch = s.teacher if self.needs_teacher and self.weights_sha256 is None else s.student
        return choose_precision(
            s.precision, self.device, Training(arch, images.shape, images.classes, self.recipe.batch)
        )

    def context(self, seed: int) -> Context:
        """Return the context of a step with its seed."""
        s = self.settings
        how = (s.noise, self.precision == "bf16", s.compile, self.ranks)
        return Context(self.device, seed, progress.track, self.store, *how)

    def shards(self) -> Shards | None:
        """The ensemble that the method needs at its settings, if any. Raises BenchError for a method without one."""
        s = self.settings
        return self.components.shards(self.method, s.method, s.teacher, self.material.data.name)

    @cached_property
    def options(self) -> dict[str, Shared]:
        """The options of all parts of the run, as plain data shared by the specs of all seeds."""
        shards, settings_of = self.shards(), self.components.settings_of
        return {
            "method": settings_of(self.method),
            "attack": Shared() if self.attack is None else settings_of(self.attack),
            "recipe": settings_of(self.recipe),
            "evaluator": settings_of(self.evaluator_recipe),
            "budget": Shared(self.settings.budget.to_json()),
            "shards": Shared() if shards is None else settings_of(shards),
        }


def run_spec(job: Job, seed: int) -> RunSpec:
    """Build the spec of the run of `job` with one seed."""
    s, m, options, spec = job.settings, job.material, job.options, job.components.spec
    private, everything = (spec(DataSpec, m.data.name, m.data.fingerprint, split) for split in (s.split, "all"))
    # A user's own weights have no recipe here, and are the same for all seeds.
    recipe, teacher_seed = (options["recipe"], seed) if job.weights_sha256 is None else (Shared(), 0)
    teacher = spec(TeacherSpec, private, s.teacher, job.weights_sha256, recipe, teacher_seed, s.teacher_normalise)
    ensemble = spec(EnsembleSpec, private, options["shards"], seed) if options["shards"] else None
    release = spec(
        *(ReleaseSpec, teacher, s.method, job.method.version, options["method"], s.student, options["budget"]),
        *(s.noise, seed, ensemble, job.variant, m.public_fingerprint),
    )
    evaluator = spec(EvaluatorSpec, everything, s.evaluator, options["evaluator"], EVALUATOR_SEED)
    attack = None
    if s.attack is not None and (played := job.attack) is not None:
        chosen = (s.attack, played.version, played.access, options["attack"], seed, job.attack_variant)
        attack = AttackSpec(release, m.aux_fingerprint, *chosen)
    return RunSpec(s.tier, release, attack, evaluator)


def changed_options(job: Job) -> Changed:
    """Return the options that differ from the defaults of variant and tier, and from the usual budget."""
    s = job.settings
    budget, usual = s.budget.to_json() | {"noise": s.noise}, Budget().to_json() | {"noise": "seeded"}
    named = {option: name for option, name in s.teacher_options if option == "recipe"}
    return {
        "method": _changed(job.method, s.tier, job.variant),
        "attack": {} if job.attack is None else _changed(job.attack, s.tier, job.attack_variant),
        "teacher": {} if job.weights_sha256 is not None else named | _changed(job.recipe, s.tier, "printed"),
        "evaluator": _changed_evaluator(job) if job.needs_evaluator else {},
        "budget": {name: value for name, value in budget.items() if value != usual[name]},
    }


def _changed_evaluator(job: Job) -> dict[str, Any]:
    """Return the evaluator's network and recipe if they are not the usual ones, and the changed recipe options."""
    s, make = job.settings, job.components.evaluator_recipe
    where, own = (s.tier, data.slug(s.dataset)), type(job.evaluator_recipe)
    named = tuple(given for given in s.evaluator_options if given[0] == "recipe" and type(make(*where, ())) is not own)
    usual = plain(make(*where, named))
    network = {} if s.evaluator == EVALUATOR else {"network": s.evaluator}
    unlike = {name: value for name, value in plain(job.evaluator_recipe).items() if usual[name] != value}
    return network | dict(named) | unlike


def _changed(plugin: Any, tier: str, variant: Variant) -> dict[str, Any]:
    usual = plain(configure(type(plugin), tier, {}, "plugin", variant))
    return {name: value for name, value in plain(plugin).items() if value != usual[name]}
