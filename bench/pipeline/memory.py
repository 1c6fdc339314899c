"""Memory of a run, estimated before training and compared with the free memory.

Every stage is estimated from shapes: networks are built and measured on two images (`bench.nets.footprint`), scaled to
the batches of the stage, and added to the images that a method or an attack holds at once. The peak is the sum of the
memory in use now, libraries that are imported later, and the largest stage. docs/memory.md compares estimates with
measurements.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from bench import nets
from bench.api import SamplingMethod, trains_student
from bench.data import batch_size_for
from bench.errors import BenchError, OutOfMemory
from bench.nets.backbone import PART
from bench.nets.footprint import FLOAT, Footprint, footprint
from bench.nets.generators import Critic, DeconvGenerator, UpsampleGenerator
from bench.pipeline.job import Job
from bench.pipeline.material import LARGEST_SUSPECTS, MOST_SUSPECTS
from bench.privacy import Unit
from bench.progress import notify

Check = Literal["refuse", "warn", "off"]
LIBRARIES = 350 * 2**20
"""Memory of the libraries that a run imports after the check of its settings: timm, scipy, accountants, plots."""
SCORING = 600 * 2**20
"""Memory of the metrics of reconstructed images without the evaluator: feature networks, distances."""
QUERIED = 512
"""Number of 32x32 images per batch where no gradient is computed."""
USUAL_BATCH = 256
"""Batch size of a student whose method has no option for it."""
LEFT_BEHIND = 0.5
"""Share of a stage's memory that stays in use after it, as freed memory is kept and fragmented (docs/memory.md)."""
TUNING_COPIES = 1.5
"""Activations of a record that torch.func keeps for a tuned network, relative to an ordinary backward pass: 1.34 to
1.62 in three networks of 224 pixels (docs/memory.md)."""
LARGE = 0.5
"""Share of the free memory above which a run is called large."""
HELD = {"samples": 2 * FLOAT, "unlabelled": FLOAT, "images": 2 * FLOAT, "buffer": FLOAT, "drawings": FLOAT}
"""Options that are numbers of images which a method holds at once, to bytes per pixel value."""
CONTROL_GROUPS = (
    tuple(f"/sys/fs/cgroup/memory.{name}" for name in ("max", "current", "stat")),
    tuple(f"/sys/fs/cgroup/memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
)
"""Files of a container's limit, use and parts of its use, for both versions of control groups."""


@dataclass(frozen=True)
class Stage:
    """Memory that a stage of a run adds to what is in use before it.

    Attributes:
        name: shown to the user.
        bytes: number of bytes.
        lower: the options by which a user can lower it.
    """

    name: str
    bytes: int
    lower: str


@dataclass(frozen=True)
class Estimate:
    """Memory of a run on its device.

    Attributes:
        base: bytes in use before the first stage.
        stages: all known stages.
    """

    base: int
    stages: list[Stage]

    @property
    def largest(self) -> Stage:
        """The stage that needs the most memory."""
        return max(self.stages, key=lambda stage: stage.bytes)

    @property
    def added(self) -> int:
        """Bytes at the peak above the base: the largest stage, and the memory that the others leave in use."""
        others = sum(stage.bytes for stage in self.stages) - self.largest.bytes
        return self.largest.bytes + int(LEFT_BEHIND * others)

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return self.base + self.added


def check_memory(job: Job, check: Check) -> None:
    """Compare the estimate with the free memory: warn if the run is large, refuse it if it needs more.

    Raises:
        BenchError: the estimate is above what is free, and `check` is "refuse".
    """
    if check == "off" or (free := free_memory(job.device)) is None:
        return
    found = estimate(job)
    libraries = LIBRARIES if job.device.type == "cpu" else 0  # part of the base, but not in use yet
    needed, stage = found.added + libraries, found.largest
    text = f"about {gib(needed)} of memory, most of it for {stage.name}, and {gib(free)} are free"
    if needed > free and check == "refuse":
        raise OutOfMemory(f"this run needs {text}; lower {stage.lower}, or give --memory-check warn to run it anyway")
    if needed > LARGE * free:
        notify(f"memory: this run needs {text}; to need less, lower {stage.lower}")


def gib(size: int) -> str:
    """Format a number of bytes in GiB.

    >>> gib(13_743_895_347)
    '12.8 GiB'
    """
    return f"{size / 2**30:.1f} GiB"


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process may still use of the accelerator, the machine or its container; None if
    unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = _lines("/proc/meminfo")
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for most, used, parts in CONTROL_GROUPS:
        limit, now = (next(iter(_lines(path)), "") for path in (most, used))
        if limit.isdigit() and now.isdigit() and int(limit) < 2**60:
            found = dict(line.split(maxsplit=1) for line in _lines(parts) if " " in line)
            # The system frees cached files when memory is needed
            unused = int(found.get("total_inactive_file", found.get("inactive_file", 0)))
            free.append(max(0, int(limit) - int(now) + unused))
            break
    return min(free, default=None)


def used_memory() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them."""
    pages = next(iter(_lines("/proc/self/statm")), "0 0").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:  # another system, or no container
        return []


def estimate(job: Job) -> Estimate:
    """Estimate the memory of a run. Builds its networks, at most a second each."""
    base = used_memory() + LIBRARIES if job.device.type == "cpu" else 0
    return Estimate(base, [*network_stages(job), *conversion_stages(job), *attack_stages(job)])


def network_stages(job: Job) -> Iterator[Stage]:
    """Yield the stages of the teacher (training and queries), the evaluator and the ensemble (training)."""
    s, m = job.settings, job.material
    lower = "--size, or take a smaller network"
    part = batch_size_for(m.private[0], QUERIED)
    if job.needs_teacher:
        size, at = footprint_of(job, s.teacher).querying(part), lower
        if job.weights_sha256 is None:
            size = max(size, footprint_of(job, s.teacher).training(job.recipe.batch))
            at = f"--teacher.batch ({job.recipe.batch}), {lower}"
        yield Stage("the teacher", size, at)
    if job.needs_evaluator:
        batch = job.evaluator_recipe.batch
        size = footprint_of(job, s.evaluator).training(batch)
        yield Stage("training of the evaluator", size, f"--evaluator.batch ({batch}), {lower}")
    if (shards := job.shards()) is not None:
        each = max(footprint_of(job, arch).training(shards.batch) for arch in shards.archs)
        yield Stage("training of the ensemble", shards.count * each, f"--method.teachers ({shards.count}), {lower}")


def conversion_stages(job: Job) -> Iterator[Stage]:
    """Yield the stage of the conversion: training of the student, queries, the generator, and images held at once."""
    s, m = job.settings, job.material
    method: Any = job.method
    shape, classes, name = m.data.shape, m.data.classes, m.data.name
    own = int(method.held_bytes(shape, classes, name, s.budget)) if hasattr(method, "held_bytes") else 0
    batch, option = largest_batch(method, "batch")
    lower = f"--method.{option} ({batch}), --size, or take a smaller --student" if option else "--size"
    if trains_student(method) and not option:
        batch = USUAL_BATCH
    size = 0
    if records := gradients_at_once(job):
        arch = method.networks(shape, s.student)[0]
        size, lower = private_training(job, arch, records), "--method.batch, --size, or take a smaller network"
        if s.budget.unit == Unit.GROUP:
            lower = f"--method.max_per_group, {lower}"
    elif trains_student(method):
        size = max(footprint_of(job, s.student).training(batch), footprint_of(job, s.student).querying(QUERIED))
    if "pretrained_weights" in method.needs:  # its features, and a copy of the loaded network
        network = footprint_of(job, method.networks(shape, s.student)[0])
        size = max(size, network.weights + network.querying(PART))
    if "teacher" in method.needs:
        size = max(size, footprint_of(job, s.teacher).querying(max(batch, 1)))
    if isinstance(method, SamplingMethod):
        size += generator_footprint(job).training(largest_batch(method, "gan_batch")[0] or batch)
    if own > size:
        held = [name for name in ("queries", "batch", "samples") if getattr(method, name, 0)]
        lower = f"--method.{held[0]} ({getattr(method, held[0])}) or --size" if held else "--size"
    counts = {name: getattr(method, name, 0) for name in HELD}
    images = sum(HELD[name] * math.prod(shape) * n for name, n in counts.items() if isinstance(n, int))
    yield Stage(f"conversion by {s.method}", size + own + images, lower)


def gradients_at_once(job: Job) -> int:
    """Return the number of records whose gradients the method computes at once; 0 for a method without any."""
    method: Any = job.method
    if not hasattr(method, "gradients_at_once"):
        return 0
    name, groups = job.material.data.name, job.material.private_groups
    if job.settings.budget.unit != Unit.GROUP or groups is None:
        return int(method.gradients_at_once(name))
    return int(method.gradients_at_once(name, groups.unique(return_counts=True)[1].tolist()))


def private_training(job: Job, arch: str, records: int) -> int:
    """Return the memory of training with two gradients of each of some records, of all weights or of a few.

    A network of which few weights are trained has frozen weights, and is a copy of the loaded one.
    """
    method, data, network = job.method, job.material.data, footprint_of(job, arch)
    if not hasattr(method, "trained_weights"):
        return network.training(records) + 2 * records * network.weights
    with torch.random.fork_rng(devices=()):
        trained = FLOAT * int(method.trained_weights(data.shape, data.classes))
    activations = TUNING_COPIES * records * (network.kept + network.live)
    return 2 * network.weights + 2 * records * trained + int(activations)


def attack_stages(job: Job) -> Iterator[Stage]:
    """Yield the stages of the attack on the teacher: its suspects; or its GAN and search, and scoring of its images.

    Reference models of membership attacks are not estimated.
    """
    attack, s, m = job.attack, job.settings, job.material
    if attack is None or job.attack_skip_reason is not None:
        return
    pixels = math.prod(m.data.shape)
    batch, option = largest_batch(attack, "batch")
    lower = f"--attack.{option} ({batch}) or --size" if option else "--size"
    target, aux = footprint_of(job, s.teacher), FLOAT * pixels * len(m.aux)
    if job.goal == "membership":
        suspects = min(LARGEST_SUSPECTS, 2 * MOST_SUSPECTS * pixels * FLOAT, 2 * len(m.private[0]) * pixels * FLOAT)
        yield Stage(
            f"attack {s.attack}", suspects + aux + target.querying(batch_size_for(m.aux, batch or QUERIED)), lower
        )
        return
    # All images at once, for an attack that does not work in parts
    made = m.data.classes * getattr(attack, "images_per_class", 1) * getattr(attack, "draws", 1)
    at_once_searched = min(batch, made) if batch else made
    yield Stage(
        f"attack {s.attack}", aux + target.descending(at_once_searched) + gan_bytes(job, at_once_searched), lower
    )
    scored = footprint_of(job, s.evaluator).querying(batch_size_for(m.private[0], QUERIED))
    yield Stage("scores of reconstructions", SCORING + scored, "--size")


def gan_bytes(job: Job, searched: int) -> int:
    """Return the memory of the attacker's GAN in training or search, if the attack has one."""
    attack, shape = job.attack, job.material.data.shape
    batch, width = getattr(attack, "gan_batch", 0), getattr(attack, "width", 0)
    if not batch or not width:
        return 0
    try:
        generator, critic = DeconvGenerator(shape, width=width), Critic(shape, width)
    except (BenchError, TypeError):  # the attack has another GAN, or images have another size
        return 0
    made, judged = footprint(generator, torch.zeros(2, generator.latent)), footprint(critic, torch.zeros(2, *shape))
    return max(
        made.training(batch) + 3 * judged.training(batch), made.descending(searched) + judged.descending(searched)
    )


def generator_footprint(job: Job) -> Footprint:
    """Return the footprint of the method's released generator, or a usual one if it cannot be measured."""
    m, method = job.material.data, job.method
    if not isinstance(method, SamplingMethod):
        raise TypeError(f"{type(method).__name__} releases no generator; expected a SamplingMethod")
    sampler = method.sampler(m.shape, m.classes, m.name)
    weights = sum(value.numel() * value.element_size() for value in sampler.generator.state_dict().values())
    try:
        usual = footprint(UpsampleGenerator(m.shape), torch.zeros(2, 100))
    except BenchError:
        usual = Footprint(0, 0, 0)
    return Footprint(weights, usual.kept, usual.live)


def largest_batch(plugin: Any, ending: str) -> tuple[int, str]:
    """Return the largest batch option of a plug-in and its name; 0 and "" without one."""
    options = [(getattr(plugin, field.name), field.name) for field in fields(plugin) if field.name.endswith(ending)]
    trained = [(value, name) for value, name in options if isinstance(value, int) and not name.startswith("teacher")]
    return max(trained, default=(0, ""))


def footprint_of(job: Job, arch: str) -> Footprint:
    """Return the footprint of a network on the images of a run."""
    return _measured(arch, job.material.data.shape, job.material.data.classes)


@cache
def _measured(arch: str, shape: tuple[int, int, int], classes: int) -> Footprint:
    with torch.random.fork_rng(devices=()):
        return footprint(nets.build(arch, shape, classes), torch.zeros(2, *shape))
