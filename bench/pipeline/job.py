"""What is to be run: the settings of a user, checked and loaded."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from bench import data, nets, progress, teachers
from bench.api import (
    Attack,
    Context,
    MembershipAttack,
    Method,
    PublicDataMethod,
    ReleaseAttack,
    Shards,
    releases_images,
    trains_student,
)
from bench.config import EVALUATOR, Variant, options
from bench.errors import BenchError, asking
from bench.pipeline.lookup import Lookup
from bench.pipeline.material import Material, Wanted
from bench.pipeline.membership_challenge import UNLABELLED
from bench.pipeline.precision import Precision, Training, settled
from bench.pipeline.running_code import RUNNING
from bench.pipeline.settings import Settings
from bench.ranks import Ranks
from bench.storage import provenance
from bench.storage.provenance import Followed
from bench.storage.specs import Shared
from bench.storage.store import Store


@dataclass(frozen=True)
class Job:
    """Settings with everything checked and loaded that can be checked before anything is trained."""

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
    lookup: Lookup
    ranks: Ranks | None = None

    def following(self) -> AbstractContextManager[Followed]:
        """While it goes on, steps that the run makes say what they are made with, and what it takes is noted."""
        devices = self.settings.devices
        return self.store.following(provenance.origin(RUNNING, self.device, self.precision, devices))

    def close(self) -> None:
        """End what was begun on further devices."""
        if self.ranks is not None:
            self.ranks.close()

    @property
    def goal(self) -> str | None:
        """Of the attack, "inversion" or "membership"; None without one."""
        return None if self.attack is None else self.attack.goal

    @property
    def asks_teacher(self) -> bool:
        """Whether the undefended teacher is needed: by the method, or by an attack, which proves its power on it."""
        return "teacher" in self.method.needs or self.attack is not None

    @property
    def unplayable(self) -> str | None:
        """Why the attack does not apply to this data, as far as that can be told before anything is trained."""
        if self.attack is None:
            return None
        m = self.material
        if self.goal == "membership" and m.aux_labels is None and getattr(self.attack, "labelled", True):
            return UNLABELLED
        if self.goal == "inversion" and (lacking := _classes_without(m.private[1], m.data.classes)):
            return (
                f"{len(lacking)} of {m.data.classes} classes have no private record, the first {lacking[0]}: nothing "
                "could be reconstructed of them; use a split with more records, such as iid"
            )
        outside = len(m.aux) // 2 if isinstance(self.attack, MembershipAttack) else len(m.aux)
        if isinstance(self.attack, ReleaseAttack) and not releases_images(self.method):
            return f"{self.settings.method} releases neither a generator nor images"
        with asking(f"attack '{self.settings.attack}'"):
            why = self.attack.applicable(m.data.shape, m.data.classes, outside)
            if why is not None and (not isinstance(why, str) or not why):
                raise TypeError(f"its `applicable` gives {why!r}; expected None, or a sentence that says why not")
        return why

    @property
    def judged(self) -> bool:
        """Whether there will be reconstructed images, so that the evaluator, which judges them, is needed."""
        return self.goal == "inversion" and self.unplayable is None

    @cached_property
    def shared(self) -> dict[str, Shared]:
        """What the specs of all seeds have in common, as plain data."""
        shards, settings_of = self.shards(), self.lookup.settings_of
        return {
            "method": settings_of(self.method),
            "attack": Shared() if self.attack is None else settings_of(self.attack),
            "recipe": settings_of(self.recipe),
            "evaluator": settings_of(self.evaluator_recipe),
            "budget": Shared(self.settings.budget.to_json()),
            "shards": Shared() if shards is None else settings_of(shards),
        }

    def check(self) -> None:
        """Raises BenchError where the method cannot meet its budget, or a network cannot take the images.

        Found once: a method may be calibrated, and networks are built, for seconds.
        """
        _ = self._checked  # its first reading makes the checks

    @cached_property
    def _checked(self) -> bool:
        found = self.material.data
        self.lookup.check_method(self.method, self.settings.budget, found.name, found.classes)
        if hasattr(self.method, "check_data"):
            with asking(f"method '{self.settings.method}'"):
                self.method.check_data(found.shape, len(self.material.private[0]), found.name)
        for arch in self._archs():
            self.lookup.check_images(arch, found.shape, found.classes)
        self.lookup.check_generator(self.method, found.shape, found.classes, found.name)
        return True

    def _archs(self) -> list[str]:
        """The networks that are sure to be built, in the order in which they are."""
        s, shards = self.settings, self.shards()
        found = [s.teacher] if self.asks_teacher else []
        found += [s.evaluator] if self.judged else []
        found += [] if shards is None else shards.archs
        if hasattr(self.method, "networks"):
            found += self.method.networks(self.material.data.shape, s.student)
        return list(dict.fromkeys([*found, *([s.student] if trains_student(self.method) else [])]))

    @cached_property
    def precision(self) -> Precision:
        """In which networks train; probed, if it is, by the teacher, or where no teacher is trained by the student."""
        s, found = self.settings, self.material.data
        arch = s.teacher if self.asks_teacher and self.weights_sha256 is None else s.student
        training = Training(arch, found.shape, found.classes, self.recipe.batch)
        return settled(s.precision, self.device, training)

    def context(self, seed: int) -> Context:
        """The context of a step with its own seed."""
        s = self.settings
        how = (s.noise, self.precision == "bf16", s.compile, self.ranks)
        return Context(self.device, seed, progress.track, self.store, *how)

    def shards(self) -> Shards | None:
        """The ensemble that the method asks for at its settings, if any. Raises BenchError for a method without one."""
        return self.lookup.shards(self.method, self.settings.method, self.settings.teacher, self.material.data.name)


def _classes_without(labels: torch.Tensor, classes: int) -> list[int]:
    """The classes of none of (n,) labels."""
    return (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()


def load_job(settings: Settings, lookup: Lookup | None = None, budget: bool = True) -> Job:
    """Check all that a user can get wrong, then load the data.

    Args:
        lookup: where its parts come from.
        budget: `Job.check` too; else whoever makes something calls it before.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    look = lookup or Lookup()
    s = replace(settings, teacher=look.teacher(settings.teacher))
    look.check_data(s.dataset)
    for arch in (s.teacher, s.student, s.evaluator):
        look.check_net(arch)
    _check_evaluator(s)
    method, variant = look.plugin("method", s.method, s.variant, s.tier, s.method_options)
    _check_noise(method, s)
    attack, attack_variant = _attack(look, s)
    recipe = look.recipe(s.tier, s.teacher_options)
    if s.teacher_weights is not None and s.teacher_options:
        raise BenchError(
            f"--teacher.{s.teacher_options[0][0]} says how a teacher is trained, and --teacher-weights "
            f"{s.teacher_weights} is a trained one; leave one of them out"
        )
    sha, devices = look.weights_sha256(s.teacher_weights), look.devices(s.device, s.devices)
    store = look.store(s.out, s.fresh)
    evaluator_recipe = look.evaluator_recipe(s.tier, data.slug(s.dataset), s.evaluator_options)
    public = "public_data" in method.needs
    attacked = attack is not None or s.split not in data.FROM_ANOTHER_SET
    wanted = Wanted(s.dataset, s.split, s.data_root, s.download, public, s.skip_broken, s.out, s.reading, attacked)
    material = look.material(wanted)
    if attack is not None and attack.goal == "inversion":
        look.check_judge(material.data.name)
    ranks = Ranks(devices) if len(devices) > 1 else None
    job = Job(
        *(s, devices[0], store, method, variant, attack, attack_variant),
        *(recipe, evaluator_recipe, sha, material, look, ranks),
    )
    if budget:
        job.check()
    _check_own_teacher(job)
    _check_shards(job.shards(), len(material.private[0]))
    _check_public(job)
    return job


def _check_evaluator(settings: Settings) -> None:
    """Refuse a judge of the architecture that is attacked: what fools the one may fool the other."""
    if settings.evaluator != EVALUATOR and settings.evaluator == settings.teacher:
        raise BenchError(
            f"--evaluator {settings.evaluator}: the teacher is that network, and what fools the one may fool the "
            "other; give a network of another family, or leave it out"
        )


def _check_noise(method: Method, settings: Settings) -> None:
    """Refuse a noise that was given where the budget decides it: the record would show what nobody added."""
    budget = settings.budget
    if budget.epsilon is None or (budget.solve != "sigma" and math.isfinite(budget.epsilon)):
        return
    decided = {option.name for option in options(type(method)) if option.solved}
    for name, value in settings.method_options:
        if name in decided:
            raise BenchError(
                f"--method.{name} {value}: --epsilon {budget.epsilon:g} decides it; leave it out, or give "
                "--epsilon none, which keeps it, or --solve steps, which finds the number of steps instead"
            )


def _check_own_teacher(job: Job) -> None:
    """Refuse a user's own teacher that nobody would ask, or whose normalisation is of other images."""
    s, channels = job.settings, job.material.data.shape[0]
    if s.teacher_weights is not None and not job.asks_teacher:
        raise BenchError(f"--teacher-weights {s.teacher_weights}: {s.method} asks no teacher; leave them out")
    for name, values in zip(("means", "deviations"), s.teacher_normalise or (), strict=False):
        if isinstance(values, tuple) and len(values) not in (1, channels):
            raise BenchError(
                f"--teacher-normalise: {len(values)} {name} for images of {channels} channel{'s' * (channels != 1)}; "
                f"give one{f' or {channels}' if channels != 1 else ''}"
            )


def _check_shards(shards: Shards | None, records: int) -> None:
    if shards is None:
        return
    for arch in shards.archs:
        nets.check(arch)
    if shards.count > records:
        raise BenchError(f"{shards.count} teachers for {records} private records: give at most that many")


def _check_public(job: Job) -> None:
    public, name = job.material.public, job.material.data.name
    if public is None:
        return
    if not isinstance(job.method, PublicDataMethod):
        raise BenchError(f'{job.settings.method} needs "public_data" and lacks `least_public()`; mend the plug-in')
    with asking(f"method '{job.settings.method}'"):
        least = job.method.least_public()
    if least > len(public):
        raise BenchError(
            f"{least} images to query of {len(public)} public ones of data set '{name}': lower the option of "
            f"{job.settings.method} that says how many (`bench show {job.settings.method}`)"
        )


def _attack(look: Lookup, settings: Settings) -> tuple[Attack | MembershipAttack | ReleaseAttack | None, Variant]:
    if settings.attack is None:
        if settings.attack_options:
            raise BenchError(f"--attack.{settings.attack_options[0][0]} was given without --attack; name the attack")
        if settings.attack_variant is not None:
            raise BenchError("--attack-variant was given without --attack; name the attack")
        return None, "printed"
    return look.plugin("attack", settings.attack, settings.attack_variant, settings.tier, settings.attack_options)
