"""Where the parts of jobs come from, found and checked one by one; for the many jobs of a plan each is found once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from bench import data, nets, progress, registry, teachers
from bench.api import EnsembleMethod, Method, SamplingMethod, Shards
from bench.config import Variant, configure, plain
from bench.errors import BenchError, asking
from bench.metrics import face_descriptor
from bench.pipeline.devices import pick_devices
from bench.pipeline.material import Material, Wanted, load_material
from bench.privacy import Budget
from bench.storage.specs import Shared
from bench.storage.store import Store

Given = tuple[tuple[str, str], ...]
"""Option and value as typed, of a plug-in."""


def find_plugin(kind: str, name: str, variant: str | None, tier: str, given: Given) -> tuple[Any, Variant]:
    """A method or an attack with its options, and the variant that is meant. Raises BenchError."""
    settled = registry.settle(kind, name, variant)
    with asking(f"{kind} '{name}'"):
        made = configure(registry.load(kind, name, settled), tier, dict(given), kind, settled)
        if kind == "method":
            made.needs  # noqa: B018 - a property may depend on the options; everybody asks it from here on
    return made, settled


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
    with asking(_called(method, "check")):
        method.check(budget, dataset, classes)


def check_images(arch: str, shape: tuple[int, int, int], classes: int) -> None:
    """Refuse a network that cannot take the images, by building it. Raises BenchError."""
    with torch.random.fork_rng(devices=()):
        nets.build(arch, shape, classes)


def check_generator(method: Method, shape: tuple[int, int, int], classes: int, dataset: str) -> None:
    """Refuse images that the generator which a method releases cannot make, by building it. Raises BenchError."""
    if isinstance(method, SamplingMethod):
        with torch.random.fork_rng(devices=()), asking(_called(method, "sampler")):
            method.sampler(shape, classes, dataset)


def shards_of(method: Method, name: str, teacher: str, dataset: str) -> Shards | None:
    """The ensemble that a method of that name asks for, if any. Raises BenchError for a method without one."""
    if "teacher_ensemble" not in method.needs:
        return None
    if not isinstance(method, EnsembleMethod):
        raise BenchError(f'{name} needs "teacher_ensemble" and lacks `shards(teacher_arch, dataset)`; mend the plug-in')
    with asking(_called(method, "shards")):
        return method.shards(teacher, dataset)


def _called(plugin: Any, asked: str) -> str:
    """A method of a plug-in, in words."""
    return f"{type(plugin).__qualname__}.{asked}"


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
    teacher: Callable[[str], str] = nets.identified
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
