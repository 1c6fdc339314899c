"""What is to be run: the settings of a user, checked and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import data, nets, progress, registry, teachers
from bench.api import Attack, Context, EnsembleMethod, MembershipAttack, Method, PublicDataMethod, ReleaseAttack, Shards
from bench.config import Variant, configure
from bench.errors import BenchError
from bench.pipeline.material import Material, Wanted, load_material
from bench.pipeline.settings import Settings
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

    def context(self, seed: int) -> Context:
        """The context of a step with its own seed."""
        s = self.settings
        return Context(self.device, seed, progress.track, self.store, s.noise, s.precision == "bf16", s.compile)

    def shards(self) -> Shards | None:
        """The ensemble that the method asks for at its settings, if any. Raises TypeError for a method without one."""
        if "teacher_ensemble" not in self.method.needs:
            return None
        if not isinstance(self.method, EnsembleMethod):
            raise TypeError(
                f'{self.settings.method} needs "teacher_ensemble" and lacks `shards(teacher_arch, dataset)`'
            )
        return self.method.shards(self.settings.teacher, self.material.data.name)


Loader = Callable[[Wanted], Material]


def load_job(settings: Settings, load: Loader = load_material) -> Job:
    """Check all that a user can get wrong, then load the data.

    Args:
        load: `load_material`, or one that remembers what it has loaded.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    s = settings
    data.check(s.dataset)
    for arch in (s.teacher, s.student):
        nets.check(arch)
    method, variant = _plugin("method", s.method, s.variant, s.tier, s.method_options)
    attack, attack_variant = _attack(s)
    recipe = teachers.make_recipe(s.tier, dict(s.teacher_options))
    sha, device = _weights_sha256(s.teacher_weights), pick_device(s.device)
    store, evaluator_recipe = Store(s.out, s.fresh, progress.say), teachers.recipe_for(s.tier)
    public = "public_data" in method.needs
    material = load(Wanted(s.dataset, s.split, s.data_root, s.download, public, s.skip_broken, s.out))
    method.check(s.budget, material.data.name, material.data.classes)
    job = Job(s, device, store, method, variant, attack, attack_variant, recipe, evaluator_recipe, sha, material)
    _check_shards(job.shards(), len(material.private[0]))
    _check_public(job)
    return job


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


def _plugin(
    kind: str, name: str, variant: str | None, tier: str, given: tuple[tuple[str, str], ...]
) -> tuple[Any, Variant]:
    settled = registry.settle(kind, name, variant)
    return configure(registry.load(kind, name, settled), tier, dict(given), kind, settled), settled


def _attack(settings: Settings) -> tuple[Attack | MembershipAttack | ReleaseAttack | None, Variant]:
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
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
