"""What is to be run: the settings of a user, checked and loaded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from bench import data, nets, progress, registry, teachers
from bench.api import (
    Attack,
    Context,
    EnsembleMethod,
    MembershipAttack,
    Method,
    PublicDataMethod,
    ReleaseAttack,
    SamplingMethod,
    Shards,
    trains_student,
)
from bench.config import EVALUATOR, Variant, configure, options, plain
from bench.errors import BenchError
from bench.metrics import face_descriptor
from bench.pipeline.devices import pick_devices
from bench.pipeline.material import Material, Wanted, load_material
from bench.pipeline.membership_challenge import UNLABELLED
from bench.pipeline.precision import Precision, Training, settled
from bench.pipeline.settings import Settings
from bench.privacy import Budget
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
        return self.store.following(provenance.origin(registry.ROOT, self.device, self.precision, devices))

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
        return self.attack.applicable(m.data.shape, m.data.classes, outside)

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
        assert self._possible

    @cached_property
    def _possible(self) -> bool:
        found = self.material.data
        self.lookup.check_method(self.method, self.settings.budget, found.name, found.classes)
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
        """The ensemble that the method asks for at its settings, if any. Raises TypeError for a method without one."""
        return self.lookup.shards(self.method, self.settings.method, self.settings.teacher, self.material.data.name)


def _classes_without(labels: torch.Tensor, classes: int) -> list[int]:
    """The classes of none of (n,) labels."""
    return (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()


Given = tuple[tuple[str, str], ...]
"""Option and value as typed, of a plug-in."""


def find_plugin(kind: str, name: str, variant: str | None, tier: str, given: Given) -> tuple[Any, Variant]:
    """A method or an attack with its options, and the variant that is meant. Raises BenchError."""
    settled = registry.settle(kind, name, variant)
    return configure(registry.load(kind, name, settled), tier, dict(given), kind, settled), settled


def find_recipe(tier: str, given: Given) -> teachers.Recipe:
    """How the teacher is trained. Raises BenchError."""
    return teachers.make_recipe(tier, dict(given))


def find_evaluator_recipe(tier: str, dataset: str, given: Given) -> teachers.Recipe:
    """How the evaluator is trained. Raises BenchError."""
    return teachers.recipe_for(tier, dataset, dict(given))


def open_store(out: Path, fresh: bool, scratch: Path | None = None) -> Store:
    """Where a run's steps are kept. Raises BenchError if nothing can be written there."""
    return Store(out, fresh, progress.say, scratch)


def weights_sha256(path: Path | None) -> str | None:
    """Of a user's own weights, if there are any. Raises BenchError if the file is not there."""
    if path is None:
        return None
    if not path.is_file():
        raise BenchError(f"--teacher-weights {path}: no such file; give a .safetensors or a torch state-dict file")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_judge(dataset: str) -> None:
    """Refuse other models of the judge of faces than the known ones, before anything is trained for an inversion.

    Raises:
        BenchError: the data set's classes are people, and the file of a model is another one.
    """
    if data.facts(dataset).classes_are_people:
        face_descriptor.check()


def check_method(method: Method, budget: Budget, dataset: str, classes: int) -> None:
    """`Method.check`. Raises BenchError."""
    method.check(budget, dataset, classes)


def check_images(arch: str, shape: tuple[int, int, int], classes: int) -> None:
    """Refuse a network that cannot take the images, by building it. Raises BenchError."""
    with torch.random.fork_rng(devices=()):
        nets.build(arch, shape, classes)


def check_generator(method: Method, shape: tuple[int, int, int], classes: int, dataset: str) -> None:
    """Refuse images that the generator which a method releases cannot make, by building it. Raises BenchError."""
    if isinstance(method, SamplingMethod):
        with torch.random.fork_rng(devices=()):
            method.sampler(shape, classes, dataset)


def shards_of(method: Method, name: str, teacher: str, dataset: str) -> Shards | None:
    """The ensemble that a method of that name asks for, if any. Raises TypeError for a method without one."""
    if "teacher_ensemble" not in method.needs:
        return None
    if not isinstance(method, EnsembleMethod):
        raise TypeError(f'{name} needs "teacher_ensemble" and lacks `shards(teacher_arch, dataset)`')
    return method.shards(teacher, dataset)


def settings_of(chosen: Any) -> Shared:
    """A method, an attack, a teacher recipe or an ensemble, with its options, as plain data."""
    return Shared(chosen.settings() if isinstance(chosen, teachers.Recipe) else plain(chosen))


def make_spec(kind: Callable[..., Any], *parts: Any) -> Any:
    """A spec of its parts."""
    return kind(*parts)


@dataclass(frozen=True)
class Lookup:
    """Where the parts of jobs and of their specs come from; `remembering` makes each once, for the many jobs of a plan.

    What is remembered is what was found: a refusal is found anew, with its own words.
    """

    check_data: Callable[[str], None] = data.check
    check_net: Callable[[str], None] = nets.check
    plugin: Callable[[str, str, str | None, str, Given], tuple[Any, Variant]] = find_plugin
    recipe: Callable[[str, Given], teachers.Recipe] = find_recipe
    evaluator_recipe: Callable[[str, str, Given], teachers.Recipe] = find_evaluator_recipe
    check_judge: Callable[[str], None] = check_judge
    weights_sha256: Callable[[Path | None], str | None] = weights_sha256
    devices: Callable[[str, int], tuple[torch.device, ...]] = pick_devices
    store: Callable[[Path, bool], Store] = open_store
    material: Callable[[Wanted], Material] = load_material
    check_method: Callable[[Method, Budget, str, int], None] = check_method
    check_images: Callable[[str, tuple[int, int, int], int], None] = check_images
    check_generator: Callable[[Method, tuple[int, int, int], int, str], None] = check_generator
    shards: Callable[[Method, str, str, str], Shards | None] = shards_of
    settings_of: Callable[[Any], Shared] = settings_of
    spec: Callable[..., Any] = make_spec

    @classmethod
    def remembering(cls, scratch: Path | None = None) -> Lookup:
        """One that keeps what it has found, and of images the last two data sets; `scratch` as of a store."""
        sizes = {field.name: 2 if field.name == "material" else None for field in fields(cls)}
        looked: dict[str, Any] = {name: getattr(cls, name) for name in sizes}
        if scratch is not None:
            looked |= {name: partial(looked[name], scratch=scratch) for name in ("store", "material")}
        found: dict[str, Any] = {name: lru_cache(maxsize=n)(looked[name]) for name, n in sizes.items()}
        return cls(**found | {"settings_of": _once_for_each(settings_of)})


def _once_for_each(make: Callable[[Any], Shared]) -> Callable[[Any], Shared]:
    """`make`, asked once for each object, not for equal ones: options of 1 and 1.0 are equal, their texts are not."""
    known: dict[int, tuple[Any, Shared]] = {}

    def found(given: Any) -> Shared:
        if id(given) not in known:
            known[id(given)] = given, make(given)  # kept with it, so that no other object comes to have its id
        return known[id(given)][1]

    return found


def load_job(settings: Settings, lookup: Lookup | None = None, budget: bool = True) -> Job:
    """Check all that a user can get wrong, then load the data.

    Args:
        lookup: where its parts come from.
        budget: `Job.check` too; else whoever makes something calls it before.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    s, look = settings, lookup or Lookup()
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
    material = look.material(Wanted(s.dataset, s.split, s.data_root, s.download, public, s.skip_broken, s.out))
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
        raise TypeError(f'{job.settings.method} needs "public_data" and lacks `least_public()`')
    if (least := job.method.least_public()) > len(public):
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
