"""Find, check and load the parts of a job: plug-ins, recipes, networks, images; one method for each part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

from bench import data, nets, progress, registry, teachers
from bench.api import EnsembleMethod, Method, SamplingMethod, Shape, Shards
from bench.config import Variant, configure, plain
from bench.errors import BadPlugin, NotFound, plugin_errors
from bench.metrics import face_descriptor
from bench.pipeline.devices import pick_devices
from bench.pipeline.material import Material, Wanted, load_material
from bench.privacy import Budget
from bench.storage.specs import JsonObject, Spec
from bench.storage.store import Store

TypedOptions = tuple[tuple[str, str], ...]
"""Names and values of a plug-in's options, as the user typed them."""
DATA_SETS = 2
"""Number of data sets whose images a caching `Components` keeps."""
CACHED = (
    "check_data",
    "check_network",
    "check_judge",
    "check_method",
    "check_images",
    "check_generator",
    "teacher",
    "plugin",
    "recipe",
    "evaluator_recipe",
    "weights_sha256",
    "devices",
    "store",
    "material",
    "shards",
    "spec",
)
"""Methods of `Components` whose results a caching instance keeps."""
Fields = ParamSpec("Fields")
AnySpec = TypeVar("AnySpec", bound=Spec)


class MakeSpec(Protocol):
    """A function that builds a spec of a kind from its fields, such as `make_spec`."""

    def __call__(self, kind: Callable[Fields, AnySpec], /, *args: Fields.args, **fields: Fields.kwargs) -> AnySpec:
        """Build the spec."""
        ...


def make_spec(kind: Callable[Fields, AnySpec], /, *args: Fields.args, **fields: Fields.kwargs) -> AnySpec:
    """Build a spec of this kind from its fields."""
    return kind(*args, **fields)


class Components:
    """Find, check and load the parts of jobs. Every error is a BenchError with one line.

    Args:
        caches: return earlier results for the same arguments; for the many jobs of a sweep. Errors are not cached.
        scratch: folder for decoded images and for steps that must be made, so that the output folder does not change.
    """

    def __init__(self, caches: bool = False, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._options: dict[int, tuple[Any, JsonObject]] = {}
        if caches:
            for name in CACHED:
                size = DATA_SETS if name == "material" else None
                setattr(self, name, lru_cache(maxsize=size)(getattr(self, name)))

    def check_data(self, dataset: str) -> None:
        """Refuse an unknown data set."""
        data.check(dataset)

    def check_network(self, arch: str) -> None:
        """Refuse an unknown network."""
        nets.check(arch)

    def check_judge(self, dataset: str) -> None:
        """Refuse unknown models of the face judge, where the classes of a data set are people."""
        if data.facts(dataset).classes_are_people:
            face_descriptor.check()

    def check_method(self, method: Method, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that the method cannot meet; a method may be calibrated for this, which takes seconds."""
        with plugin_errors(_named(method, "check")):
            method.check(budget, dataset, classes)

    def check_images(self, arch: str, shape: Shape, classes: int) -> None:
        """Refuse a network that cannot take the images, by building it."""
        with torch.random.fork_rng(devices=()):
            nets.build(arch, shape, classes)

    def check_generator(self, method: Method, shape: Shape, classes: int, dataset: str) -> None:
        """Refuse images that the method's released generator cannot make, by building the generator."""
        if isinstance(method, SamplingMethod):
            with torch.random.fork_rng(devices=()), plugin_errors(_named(method, "sampler")):
                method.sampler(shape, classes, dataset)

    def plugin(self, kind: str, name: str, variant: str | None, tier: str, given: TypedOptions) -> tuple[Any, Variant]:
        """Return a method or an attack with its options, and its variant."""
        chosen = registry.choose_variant(kind, name, variant)
        with plugin_errors(f"{kind} '{name}'"):
            made = configure(registry.load(kind, name, chosen), tier, dict(given), kind, chosen)
            if kind == "method":
                made.needs  # noqa: B018 - a property may depend on the options, and is read everywhere from here on
        return made, chosen

    def teacher(self, arch: str) -> str:
        """Return the name of the teacher's network, with the digest of the source for a user's own network."""
        return nets.identify(arch)

    def recipe(self, tier: str, given: TypedOptions) -> teachers.Recipe:
        """Return the training recipe of the teacher."""
        return teachers.make_recipe(tier, dict(given))

    def evaluator_recipe(self, tier: str, dataset: str, given: TypedOptions) -> teachers.Recipe:
        """Return the training recipe of the evaluator."""
        return teachers.recipe_for(tier, dataset, dict(given))

    def weights_sha256(self, path: Path | None) -> str | None:
        """Return the SHA-256 of a user's weights; None without a file."""
        return None if path is None else weights_sha256(path)

    def devices(self, name: str, count: int) -> tuple[torch.device, ...]:
        """Return the devices of a run."""
        return pick_devices(name, count)

    def store(self, out: Path, fresh: bool) -> Store:
        """Return the store of a run's steps."""
        return Store(out, fresh, progress.notify, self._scratch)

    def material(self, wanted: Wanted) -> Material:
        """Load the images of a run."""
        return load_material(wanted, self._scratch)

    def shards(self, method: Method, name: str, teacher: str, dataset: str) -> Shards | None:
        """Return the ensemble that the method called `name` needs; None if it needs none."""
        if "teacher_ensemble" not in method.needs:
            return None
        if not isinstance(method, EnsembleMethod):
            raise BadPlugin(
                f'{name} needs "teacher_ensemble" and has no `shards(teacher_arch, dataset)`; add the method'
            )
        with plugin_errors(_named(method, "shards")):
            return method.shards(teacher, dataset)

    def settings_of(self, part: Any) -> JsonObject:
        """Return the options of a method, an attack, a recipe or an ensemble as plain data.

        Results are cached by object, not by equality: options 1 and 1.0 are equal, but their texts differ.
        """
        if id(part) not in self._options:
            options = JsonObject(part.settings() if isinstance(part, teachers.Recipe) else plain(part))
            self._options[id(part)] = part, options  # keep a reference, so that no other object gets its id
        return self._options[id(part)][1]

    def spec(self, kind: Callable[Fields, AnySpec], /, *args: Fields.args, **fields: Fields.kwargs) -> AnySpec:
        """Build a spec from its fields; runs that share the object compute its canonical text once."""
        return make_spec(kind, *args, **fields)


def weights_sha256(path: Path) -> str:
    """Return the SHA-256 of a user's weights. Raises NotFound if the file does not exist."""
    if not path.is_file():
        raise NotFound(f"--teacher-weights {path}: no such file; give a .safetensors or a torch state-dict file")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _named(plugin: Any, method: str) -> str:
    """Return the name of a method of a plug-in, for messages."""
    return f"{type(plugin).__qualname__}.{method}"
