"""Assess released synthetic images: test whether they reveal which records their generator was trained on.

The generator itself is not needed. `gan-leaks` and `domias` compare the released images with each suspect, calibrated
by the attacker's own images. For the power gate the same attacks run on a release that memorises: as many draws from a
kernel density estimate of the members: members drawn at random, plus Gaussian noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench import registry
from bench.api import AttackerKnowledge, Context, Reference, ReleasedImages
from bench.assess import pictures
from bench.assess.assembly import Material
from bench.assess.attacks import reserve
from bench.assess.from_model import say_limits, timed
from bench.assess.from_scores import compare_without_model
from bench.assess.numbers import Scored
from bench.assess.policy import SAMPLE_ATTACKS
from bench.assess.records import ReadAs, Records, read_images, read_records
from bench.assess.schema import Skipped
from bench.assess.scores import FEWEST, check_groups, file_digest
from bench.assess.training import InMemory
from bench.data import to_float
from bench.errors import BenchError, unknown
from bench.progress import track
from bench.seeds import derive

BANDWIDTH = 0.1
"""Standard deviation of the noise of the memorising release, of pixels in [0, 1]."""
POPULATION = 1000
"""Number of records of the attacker, if the non-members suffice."""
MOST_READ = 20_000
"""Largest number of released images that an attack reads."""
MOST_NEIGHBOURS = 10
UNTESTED = (
    Skipped(name="attacks on the generator", reason="only its images were given; see `bench run --attack gan-leaks`"),
    Skipped(name="attribute inference", reason="not part of this assessment"),
)


@dataclass(frozen=True)
class SamplesCase:
    """Inputs of an assessment of released images.

    Attributes:
        samples: the released images: a folder, in any sub-folders, or a .npz file.
        members, others: a folder with one folder per class, or a .npz file.
        how: how images are read.
        population: records of neither set that attacks learn from; None = a part of the non-members.
        attacks: the names of attacks to run.
        match: assess matched pairs of records if the sets differ without the release.
    """

    samples: Path
    members: Path
    others: Path
    how: ReadAs = ReadAs()  # noqa: RUF009 (frozen)
    population: Path | None = None
    attacks: tuple[str, ...] = SAMPLE_ATTACKS
    match: bool = False


def material_of_samples(case: SamplesCase, delta: float, seed: int) -> Material:
    """Read the data, compare the two sets without the release, run the attacks on it and on one that memorises.

    Raises:
        BenchError: bad input.
    """
    for name in case.attacks:
        if name not in SAMPLE_ATTACKS:
            raise unknown("attack on released images", name, SAMPLE_ATTACKS)
    material = Material("samples", [])
    with timed(material, "read the data"):
        members = read_records(case.members, case.how)
        others = read_records(case.others, case.how, members)
        population = None if case.population is None else read_records(case.population, case.how, members)
        released = read_images(case.samples, case.how, members)
    if len(released) < FEWEST:
        raise BenchError(f"--samples '{case.samples}' has {len(released)} images; expected at least {FEWEST}")
    say_limits(members, others, delta)
    with timed(material, "copies and baseline without the release"):
        material.copies, is_kept = pictures.find_copies(members, others)
        kept = others.take(is_kept)
        if members.groups is not None and kept.groups is not None:
            check_groups(members.groups, kept.groups)
        facts = pictures.facts_of(members, seed), pictures.facts_of(kept, seed)
        chosen = compare_without_model(material, *facts, seed, case.match)
    if chosen is not None:
        members, kept = members.take(chosen[0]), kept.take(chosen[1])
    if population is None:
        reserved = reserve(len(kept), POPULATION, seed)
        population = kept.take(reserved)
        kept = kept.take(np.setdiff1d(np.arange(len(kept)), reserved))
    if members.groups is not None and kept.groups is not None:
        material.groups = (members.groups, kept.groups)
    material.labels, material.names, material.images = members.labels.numpy(), members.names, members.images.numpy()
    with timed(material, "attacks on the release"):
        material.scored, skipped = _compare(case.attacks, to_float(released), members, kept, population, seed)
    with timed(material, "release that memorises"):
        memorised = memorising_release(members.images, len(released), derive(seed, "memorising release"))
        control, _ = _compare(case.attacks, memorised, members, kept, population, seed)
    material.control = {each.name: each for each in control}
    material.not_tested += [*skipped, *UNTESTED]
    material.notes += [
        f"{len(released)} released images. Attacks show their power on a release that memorises: members with noise of "
        f"standard deviation {BANDWIDTH}."
    ]
    if not material.scored:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in skipped)
        raise BenchError(f"no attack on released images can run here: {reasons}")
    material.hashes |= {"members": members.digest, "nonmembers": others.digest}
    if case.samples.is_file():
        material.hashes["samples"] = file_digest(case.samples)
    return material


def memorising_release(images: Tensor, count: int, seed: int) -> Tensor:
    """Draw from a kernel density estimate of (n, c, h, w) uint8 images.

    Returns:
        (count, c, h, w) float32 in [0, 1], rounded to 8 bits.
    """
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(images), (count,), generator=rng)
    drawn = to_float(images[rows]) + BANDWIDTH * torch.randn((count, *images.shape[1:]), generator=rng)
    return (drawn.clamp(0, 1) * 255).round() / 255


def _compare(
    names: tuple[str, ...], released: Tensor, members: Records, others: Records, population: Records, seed: int
) -> tuple[list[Scored], list[Skipped]]:
    """Run attacks on (m, c, h, w) released images in [0, 1]; return scores, and why other attacks did not run."""
    scored: list[Scored] = []
    skipped: list[Skipped] = []
    images = torch.cat([to_float(each.images) for each in (members, others)])
    labels = torch.cat([each.labels for each in (members, others)])
    _, channels, height, width = images.shape

    def no_references(_count: int, _kind: Literal["teacher", "student"]) -> list[Reference]:
        raise BenchError("an attack on released images wants reference models; name another with --attacks")

    # Changes from the papers that the plug-ins list; without them the attacks have little power on images. A member
    # of a release that memorises has about as many near images as there are released images for each member.
    neighbours = max(1, min(MOST_NEIGHBOURS, round(len(released) / len(members))))
    settings: dict[str, dict[str, object]] = {
        "gan-leaks": {"space": "whitened", "calibration": "aux"},
        "domias": {"density": "knn", "k": neighbours},
    }
    read = min(len(released), MOST_READ)
    for name in names:
        plugin: Any = registry.load("attack", name)
        attack = plugin(samples=read, **settings[name])
        reason = attack.skip_reason((channels, height, width), int(labels.max()) + 1, len(population))
        if reason is not None:
            skipped.append(Skipped(name=name, reason=str(reason)))
            continue
        context = Context(torch.device("cpu"), derive(seed, name), track, InMemory())
        knowledge = AttackerKnowledge(
            images, labels, lambda: (to_float(population.images), population.labels), no_references
        )
        with torch.inference_mode():
            result = attack.compare(ReleasedImages("samples", released, None), knowledge, context)
        scores: NDArray[np.float64] = result.scores.double().numpy()
        note = f"{read} released images"
        scored.append(
            Scored(name, attack.reference, "released images", scores[: len(members)], scores[len(members) :], note)
        )
    return scored, skipped
