"""A job: a user's settings with the plug-ins, networks and images that they name, checked and loaded; its specs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from bench import data, nets, progress, registry, teachers
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
from bench.config import EVALUATOR, STUDENT, Variant, configure, plain
from bench.errors import plugin_errors
from bench.pipeline.components import Components, TypedOptions
from bench.pipeline.devices import Precision, Training, choose_precision
from bench.pipeline.material import Material
from bench.pipeline.settings import Settings
from bench.privacy import Budget
from bench.ranks import Ranks
from bench.storage import provenance
from bench.storage.provenance import Origin, StepLog
from bench.storage.records import Changed
from bench.storage.specs import (
    AttackSpec,
    DataSpec,
    EnsembleSpec,
    EvaluatorSpec,
    JsonObject,
    Plain,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
)
from bench.storage.store import Store

CODE = provenance.git_state(registry.ROOT)
"""The code of this process: the state of the checkout when this module was imported. The worker processes of a sweep
import the code once and make all runs with it, even if someone commits in the meantime."""
EVALUATOR_SEED = 2020
UNLABELLED = (
    "it learns from labels, and the attacker's images have none, as they are of other classes than the private ones or "
    "of another data set; use --split iid, or the attacks loss-threshold or label-only, which need no labels"
)


@dataclass(frozen=True)
class Job:
    """A user's settings, checked, with the loaded plug-ins, images and devices of the runs.

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
    pretrained: teachers.PretrainedWeights | None = None

    def log_steps(self) -> AbstractContextManager[StepLog]:
        """Return a context that records the steps of a run, with the code and device that made them."""
        return self.store.log_steps(Origin.current(CODE, self.device, self.precision, self.settings.devices))

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
        """Whether the method needs the undefended teacher, or an attack, whose power is tested on it."""
        return "teacher" in self.method.needs or self.attack is not None

    @property
    def needs_evaluator(self) -> bool:
        """Whether an inversion attack applies, whose images the evaluator scores."""
        return self.goal == "inversion" and self.attack_skip_reason is None

    @property
    def attack_skip_reason(self) -> str | None:
        """The reason why the attack does not apply to this data, as far as is known before training; else None."""
        if self.attack is None:
            return None
        m = self.material
        if self.goal == "membership" and m.aux_labels is None and getattr(self.attack, "labelled", True):
            return UNLABELLED
        if self.goal == "inversion":
            counts = torch.bincount(m.private[1], minlength=m.data.classes)
            if empty := (counts == 0).nonzero().flatten().tolist():
                return (
                    f"{len(empty)} of {m.data.classes} classes have no private record to reconstruct, such as class "
                    f"{empty[0]}; use a split with more records, such as iid"
                )
        if isinstance(self.attack, ReleaseAttack) and not releases_images(self.method):
            return f"{self.settings.method} releases neither a generator nor images"
        outside = len(m.aux) // 2 if isinstance(self.attack, MembershipAttack) else len(m.aux)
        with plugin_errors(f"attack '{self.settings.attack}'"):
            reason = self.attack.skip_reason(m.data.shape, m.data.classes, outside)
            if reason is not None and (not isinstance(reason, str) or not reason):
                raise TypeError(f"its `skip_reason` returned {reason!r}; expected None or a sentence with the reason")
        return reason

    def check(self) -> None:
        """Raise BenchError if the method cannot meet its budget, or a network cannot take the images.

        The checks run once: calibrating a method and building networks take seconds.
        """
        _ = self.is_checked

    @cached_property
    def is_checked(self) -> bool:
        """True; the first access runs the checks of `check`."""
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
        for arch in dict.fromkeys(networks):  # all networks that the run will build
            components.check_images(arch, images.shape, images.classes)
        if self.pretrained is not None:
            self.pretrained_network()
        components.check_generator(self.method, images.shape, images.classes, images.name)
        return True

    def pretrained_network(self) -> nets.Classifier | None:
        """Build and load the network with public pretrained weights; None if the method needs none.

        Raises:
            BenchError: the weights do not fit the network, or the network does not fit the images.
        """
        if self.pretrained is None:
            return None
        name, images = self.pretrained.name, self.material.data
        with torch.random.fork_rng(devices=()):
            network = nets.build(str(name), images.shape, images.classes)
        teachers.load_pretrained(self.pretrained.file, network, name)
        return network.eval().requires_grad_(False)

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
        return Context(
            self.device,
            seed,
            track=progress.track,
            artifacts=self.store,
            noise=self.settings.noise,
            autocast=self.precision == "bf16",
            compile=self.settings.compile,
            ranks=self.ranks,
        )

    def shards(self) -> Shards | None:
        """The ensemble that the method needs at its settings, if any. Raises BenchError for a method without one."""
        s = self.settings
        return self.components.shards(self.method, s.method, s.teacher, self.material.data.name)

    @cached_property
    def public(self) -> str | None:
        """The source of public data in the spec: pretrained weights, images of the data set, or the method's own ones.

        Raises BenchError if the method cannot read its own ones.
        """
        if self.pretrained is not None:
            return self.pretrained.source
        if self.material.public is not None or not hasattr(self.method, "public_source"):
            return self.material.public_fingerprint
        with plugin_errors(f"method '{self.settings.method}'"):
            source: str | None = self.method.public_source()
        return source

    @cached_property
    def options(self) -> Options:
        """The options of all parts of the run, as plain data shared by the specs of all seeds."""
        shards, settings_of = self.shards(), self.components.settings_of
        return Options(
            method=settings_of(self.method),
            attack=JsonObject() if self.attack is None else settings_of(self.attack),
            recipe=settings_of(self.recipe),
            evaluator=settings_of(self.evaluator_recipe),
            budget=JsonObject(self.settings.budget.to_json()),
            shards=None if shards is None else settings_of(shards),
        )


@dataclass(frozen=True)
class Options:
    """The options of all parts of a run; `shards` is None for a method without an ensemble."""

    method: JsonObject
    attack: JsonObject
    recipe: JsonObject
    evaluator: JsonObject
    budget: JsonObject
    shards: JsonObject | None


def run_spec(job: Job, seed: int) -> RunSpec:
    """Build the spec of the run of `job` with one seed."""
    s, m, options, spec = job.settings, job.material, job.options, job.components.spec
    private = spec(DataSpec, m.data.name, m.data.fingerprint, s.split)
    # A user's own weights have no recipe here, and are the same for all seeds
    recipe, teacher_seed = (options.recipe, seed) if job.weights_sha256 is None else (JsonObject(), 0)
    teacher = spec(TeacherSpec, private, s.teacher, job.weights_sha256, recipe, teacher_seed, s.teacher_normalise)
    release = spec(
        ReleaseSpec,
        teacher=teacher,
        method=s.method,
        version=job.method.version,
        options=options.method,
        student=s.student if trains_student(job.method) else STUDENT,  # else it changes nothing
        budget=options.budget,
        noise=s.noise,
        seed=seed,
        ensemble=None if options.shards is None else spec(EnsembleSpec, private, options.shards, seed),
        variant=job.variant,
        public=job.public,
    )
    learned = f"all, and {m.aux_fingerprint} as one class" if m.evaluator_knows_aux else "all"
    everything = spec(DataSpec, m.data.name, m.data.fingerprint, learned)
    evaluator = spec(EvaluatorSpec, everything, s.evaluator, options.evaluator, EVALUATOR_SEED)
    attack = None
    if s.attack is not None and job.attack is not None:
        attack = AttackSpec(
            target=release,
            aux=m.aux_fingerprint,
            attack=s.attack,
            version=job.attack.version,
            access=job.attack.access,
            options=options.attack,
            seed=seed,
            variant=job.attack_variant,
        )
    return RunSpec(s.tier, release, attack, evaluator)


def changed_options(job: Job) -> Changed:
    """Return the options that differ from the defaults of variant and tier, and from the default budget."""
    s = job.settings
    budget = s.budget.to_json() | {"noise": s.noise}
    default_budget = Budget().to_json() | {"noise": "seeded"}
    recipe_name = {option: name for option, name in s.teacher_options if option == "recipe"}
    return {
        "method": _changed(job.method, s.tier, job.variant),
        "attack": {} if job.attack is None else _changed(job.attack, s.tier, job.attack_variant),
        "teacher": {} if job.weights_sha256 is not None else recipe_name | _changed(job.recipe, s.tier, "printed"),
        "evaluator": _changed_evaluator(job) if job.needs_evaluator else {},
        "budget": {name: value for name, value in budget.items() if value != default_budget[name]},
    }


def _changed(plugin: Any, tier: str, variant: Variant) -> Plain:
    default = plain(configure(type(plugin), tier, {}, "plugin", variant))
    return {name: value for name, value in plain(plugin).items() if name not in default or value != default[name]}


def _changed_evaluator(job: Job) -> Plain:
    """Return the evaluator's network and recipe if they are not the default ones, and the changed recipe options."""
    s = job.settings

    def recipe(options: TypedOptions) -> teachers.Recipe:
        return job.components.evaluator_recipe(s.tier, data.slug(s.dataset), options)

    is_default = type(recipe(())) is type(job.evaluator_recipe)
    name = () if is_default else tuple(option for option in s.evaluator_options if option[0] == "recipe")
    default = plain(recipe(name))
    network = {} if s.evaluator == EVALUATOR else {"network": s.evaluator}
    changed = {option: value for option, value in plain(job.evaluator_recipe).items() if default[option] != value}
    return network | dict(name) | changed
