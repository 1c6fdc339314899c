"""What is to be run: the settings of a user, checked and loaded, and the spec that names the run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bench import data, nets, progress, registry, teachers
from bench.api import Context, Shards
from bench.config import Variant, configure, plain
from bench.errors import BenchError
from bench.pipeline import steps
from bench.privacy import Budget
from bench.storage.records import AttackSpec, DataSpec, EnsembleSpec, EvaluatorSpec, ReleaseSpec, RunSpec, TeacherSpec
from bench.storage.store import Store

EVALUATOR_SEED = 2020


@dataclass(frozen=True)
class Settings:
    """What a user asks for; every field is an option of `bench run`."""

    method: str
    attack: str | None
    dataset: str = "digits"
    split: str = "iid"
    data_root: Path | None = None
    download: bool = False
    teacher: str = "resnet18"
    teacher_weights: Path | None = None
    teacher_normalise: tuple[float, float] | None = None
    student: str = "datalens"
    tier: str = "quick"
    variant: str | None = None
    attack_variant: str | None = None
    budget: Budget = field(default_factory=Budget)
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    noise: Literal["seeded", "os"] = "seeded"
    out: Path = Path("runs")
    fresh: bool = False
    method_options: tuple[tuple[str, str], ...] = ()
    attack_options: tuple[tuple[str, str], ...] = ()
    teacher_options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Job:
    """Settings with everything checked and loaded that can be checked before anything is trained."""

    settings: Settings
    device: torch.device
    store: Store
    method: Any
    variant: Variant
    attack: Any | None
    attack_variant: Variant
    recipe: teachers.Recipe
    evaluator_recipe: teachers.Recipe
    weights_sha256: str | None
    material: steps.Material

    def context(self, seed: int) -> Context:
        """The context of a step with its own seed."""
        s = self.settings
        return Context(self.device, seed, progress.track, self.store, s.noise, s.precision == "bf16", s.compile)


Loader = Callable[[str, str, Path | None, bool, bool], steps.Material]


def prepare(settings: Settings, load: Loader | None = None) -> Job:
    """Check all that a user can get wrong, then load the data.

    Args:
        load: `load_material`, or one that remembers what it has loaded.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    data.check(settings.dataset)
    for arch in (settings.teacher, settings.student):
        nets.check(arch)
    method, variant = _plugin("method", settings.method, settings.variant, settings.tier, settings.method_options)
    attack, attack_variant = _attack(settings)
    recipe = configure(teachers.Recipe, settings.tier, dict(settings.teacher_options), "teacher")
    sha = _weights_sha256(settings.teacher_weights)
    device = pick_device(settings.device)
    store = Store(settings.out, settings.fresh, progress.say)
    where = (settings.dataset, settings.split, settings.data_root, settings.download)
    material = (load or load_material)(*where, "public_data" in method.needs)
    method.check(settings.budget, material.data.name, material.data.classes)
    if "teacher_ensemble" in method.needs:
        _check_shards(method.shards(settings.teacher, material.data.name), len(material.private[0]))
    if material.public is not None:
        _check_public(method.least_public(), len(material.public), material.data.name)
    return Job(
        settings,
        device,
        store,
        method,
        variant,
        attack,
        attack_variant,
        recipe,
        teachers.recipe_for(settings.tier),
        sha,
        material,
    )


def _check_shards(shards: Shards, records: int) -> None:
    for arch in shards.archs:
        nets.check(arch)
    if shards.count > records:
        raise BenchError(f"{shards.count} teachers for {records} private records: give at most that many")


def _check_public(least: int, there: int, dataset: str) -> None:
    if least > there:
        raise BenchError(
            f"{least} images to query of {there} public ones of data set '{dataset}': lower --method.query_count"
        )


def _plugin(
    kind: str, name: str, variant: str | None, tier: str, given: tuple[tuple[str, str], ...]
) -> tuple[Any, Variant]:
    settled = registry.settle(kind, name, variant)
    return configure(registry.load(kind, name, settled), tier, dict(given), kind, settled), settled


def _attack(settings: Settings) -> tuple[Any | None, Variant]:
    if settings.attack is None:
        if settings.attack_options:
            raise BenchError(f"--attack.{settings.attack_options[0][0]} was given without --attack; name the attack")
        if settings.attack_variant is not None:
            raise BenchError("--attack-variant was given without --attack; name the attack")
        return None, "printed"
    return _plugin("attack", settings.attack, settings.attack_variant, settings.tier, settings.attack_options)


def _weights_sha256(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise BenchError(f"--teacher-weights {path}: no such file; give a .safetensors or a torch state-dict file")
    return steps.file_sha256(path)


def pick_device(name: str) -> torch.device:
    """The torch device called `name`: auto, cpu, cuda or cuda:N. Raises BenchError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise BenchError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise BenchError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu or auto"
        )
    return torch.device(name)


def load_material(dataset: str, split: str, root: Path | None, download: bool, public: bool) -> steps.Material:
    """The images of a run; arguments as in `Settings`. Raises BenchError if they are not there.

    Args:
        public: whether the method asks for public images.
    """
    images = data.load(dataset, root, download)
    shared = data.split(images, split, public)
    load_other = partial(data.load, root=root, download=download)
    aux, labels = data.aux_part(images, shared, load_other), data.aux_labels(images, shared)
    private, domain = data.private_part(images, shared), data.private_domain(images, shared)
    return steps.Material(domain, private, aux, labels, data.public_part(images, shared))


def run_spec(job: Job, seed: int) -> RunSpec:
    """The spec of the run that `job` asks for, with one seed."""
    s, m = job.settings, job.material.data
    where = DataSpec(m.name, m.fingerprint, s.split)
    recipe = {} if job.weights_sha256 else plain(job.recipe)
    teacher = TeacherSpec(
        where, s.teacher, job.weights_sha256, recipe, 0 if job.weights_sha256 else seed, s.teacher_normalise
    )
    method = job.method
    budget = steps.budget_plain(s.budget)
    shards = shards_of(job)
    ensemble = None if shards is None else EnsembleSpec(where, asdict(shards), seed)
    release = ReleaseSpec(
        teacher,
        s.method,
        method.version,
        plain(method),
        s.student,
        budget,
        s.noise,
        seed,
        ensemble,
        job.variant,
        None if job.material.public is None else _fingerprint(job.material.public),
    )
    evaluator = EvaluatorSpec(
        replace(where, split="all"), teachers.EVALUATOR, plain(job.evaluator_recipe), EVALUATOR_SEED
    )
    return RunSpec(s.tier, release, _attack_spec(job, release, seed), evaluator)


def shards_of(job: Job) -> Shards | None:
    """The ensemble that the method asks for at its settings, if any."""
    if "teacher_ensemble" not in job.method.needs:
        return None
    return job.method.shards(job.settings.teacher, job.material.data.name)


def setting(job: Job) -> str:
    """What differs from the tier's defaults, as options in a line, such as "mode=label epsilon=1"."""
    s, usual = job.settings, Budget()
    parts = _changed(type(job.method), job.method, s.tier, "", job.variant)
    if s.attack is not None:
        parts += _changed(type(job.attack), job.attack, s.tier, "attack.", job.attack_variant)
    if job.weights_sha256 is None:
        parts += _changed(teachers.Recipe, job.recipe, s.tier, "teacher.", "printed")
    for name in ("epsilon", "delta", "account", "solve", "unit"):
        if getattr(s.budget, name) != getattr(usual, name):
            parts.append(f"{name}={getattr(s.budget, name)}")
    return " ".join(parts + ([f"noise={s.noise}"] if s.noise != "seeded" else []))


def _changed(cls: type[Any], plugin: Any, tier: str, prefix: str, variant: Variant) -> list[str]:
    default, now = plain(configure(cls, tier, {}, "plugin", variant)), plain(plugin)
    return [f"{prefix}{name}={now[name]}" for name in now if now[name] != default[name]]


def _attack_spec(job: Job, release: ReleaseSpec, seed: int) -> AttackSpec | None:
    name, plugin = job.settings.attack, job.attack
    if name is None or plugin is None:
        return None
    aux = _fingerprint(job.material.aux)
    return AttackSpec(release, aux, name, plugin.version, plugin.access, plain(plugin), seed, job.attack_variant)


def _fingerprint(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()[:16]
