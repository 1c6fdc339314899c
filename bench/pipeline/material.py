"""The images of a run: how a data set is divided into parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.data import ImageData, Keep
from bench.data.dataset import AS_DECLARED, Reading
from bench.data.naming import is_by_path
from bench.data.own import class_lines
from bench.data.parts import count_near_duplicates, remove_duplicates
from bench.progress import notify
from bench.storage.specs import Json
from bench.storage.store import Store

SEED = 2020
VICTIMS = 10
"""Number of images per class, private and other, whose responses an observing attack sees."""
MOST_SUSPECTS = 2000
"""Largest number of suspects of a membership attack from the private part; the test set adds as many."""
LARGEST_SUSPECTS = 2**28
"""Largest size of all suspects as float32, in bytes: colour images above 74x74 pixels have fewer suspects."""
NAMED = 10
"""Number of omitted files that a message names."""


@dataclass(frozen=True)
class Wanted:
    """The selection of images for a run; the fields are those of `Settings`.

    Attributes:
        public: whether the method needs public images.
        out: folder for decoded images; None = do not keep them.
        attacked: whether there is an attack, which needs images.
    """

    dataset: str
    split: str
    data_root: Path | None = None
    download: bool = False
    public: bool = False
    skip_broken: bool = False
    out: Path | None = None
    reading: Reading = AS_DECLARED
    attacked: bool = True


@dataclass(frozen=True)
class Material:
    """The images of a run, uint8.

    Attributes:
        data: the whole data set.
        private: the teacher's private part: images (n, c, h, w) and labels (n,).
        aux: the attacker's part.
        aux_labels: its labels, if its classes are the private ones.
        public: the unlabelled public part, if the method needs one.
        counts: how many images each part has, how many duplicates were removed, and what was left out, for the record.
        canaries: number of images at the end of the private part that are an audit's canaries.
        mislabelled: rows of the private part with a wrong label, under split canaries.
        private_groups: (n,) int64, the number of the group of each private record; None if unknown.
        evaluator_knows_aux: whether the evaluator learns the attacker's images as one more class, since they show other
            classes than the private ones: a reconstruction that looks like them does not count as a private class.
    """

    data: ImageData
    private: tuple[Tensor, Tensor]
    aux: Tensor
    aux_labels: Tensor | None = None
    public: Tensor | None = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    canaries: int = 0
    mislabelled: Tensor | None = None
    private_groups: Tensor | None = None
    evaluator_knows_aux: bool = False

    @cached_property
    def aux_fingerprint(self) -> str:
        """The digest of the attacker's images; cached, as it reads all of them."""
        return data.images_fingerprint(self.aux)

    @cached_property
    def public_fingerprint(self) -> str | None:
        """The digest of the public images, if there are any."""
        return None if self.public is None else data.images_fingerprint(self.public)


def load_material(wanted: Wanted, scratch: Path | None = None) -> Material:
    """Load the images of a run; `scratch` is as in a store. Raises BenchError if they are not available."""
    keep = None if wanted.out is None else kept_in(wanted.out, scratch)
    load = partial(
        data.load, root=wanted.data_root, download=wanted.download, skip_broken=wanted.skip_broken, keep=keep
    )
    images = load(wanted.dataset, reading=wanted.reading)
    for line in class_lines(images):
        notify(line)
    split = data.split(images, wanted.split, wanted.public, wanted.attacked)
    other = None if split.aux_dataset is None else data.aux_part(images, split, load, keep)
    parted = remove_duplicates(images, split, keep, other)
    images, split = parted.data, parted.split
    material = Material(
        data=data.private_domain(images, split, keep),
        private=data.private_part(images, split, keep),
        aux=data.aux_part(images, split, load, keep) if parted.other is None else parted.other,
        aux_labels=data.aux_labels(images, split),
        public=data.public_part(images, split),
        mislabelled=data.mislabelled(images, split),
        private_groups=None if images.train_groups is None else images.train_groups[split.private],
        evaluator_knows_aux=data.attacker_has_other_classes(images, split),
    )
    near = count_near_duplicates(images, split)
    say_omissions(images, parted.removed, near or {})
    return replace(material, counts=image_counts(material, images, parted.removed, near, wanted.reading))


def kept_in(out: Path, scratch: Path | None = None) -> Keep:
    """Return where runs that write below `out` keep decoded images; `scratch` is as in a store."""
    store = Store(out, notify=notify, scratch=scratch)
    return lambda kind, spec, make: store.step(kind, cast("Mapping[str, Json]", spec), make).path


def image_counts(
    material: Material, images: ImageData, removed: Mapping[str, int], near: Mapping[str, int] | None, reading: Reading
) -> dict[str, Json]:
    """Return the counts of a run's images, as its record states them.

    Args:
        removed: by part, the number of removed images whose pixels are also in another part.
        near: by part, the number of near-duplicates of private images; None if they were not searched.
        reading: how the user declared that images are read.
    """
    counts: dict[str, Json] = {
        "private": len(material.private[0]),
        "aux": len(material.aux),
        "test": len(material.data.test_images),
    }
    if material.public is not None:
        counts["public"] = len(material.public)
    if material.private_groups is not None and is_by_path(images.name):
        counts["private_groups"] = len(material.private_groups.unique())
    if removed:
        counts["copies_removed"] = removed
    if near is not None:
        counts["near_copies"] = near
    folders = sum(name.endswith("/") for name in images.left_out)
    if len(images.left_out) > folders:
        counts["broken_left_out"] = len(images.left_out) - folders
    if folders:
        counts["empty_classes_left_out"] = folders
    counts["shape"] = "x".join(map(str, images.shape))
    if images.conversions and is_by_path(images.name):
        counts["read_as"] = list(images.conversions)
    declared = {} if reading.fit == AS_DECLARED.fit else {"fit": str(reading.fit)}
    if reading.pixel_range is not None:
        declared["pixel_range"] = ",".join(f"{value:.17g}" for value in reading.pixel_range)
    if reading.groups is not None:
        declared["groups"] = reading.groups.name
    return counts | ({"reading": declared} if declared else {})


def say_omissions(images: ImageData, removed: Mapping[str, int], near: Mapping[str, int]) -> None:
    """Print a line about removed duplicates, near-duplicates and omitted files, if there are any."""
    for part, count in removed.items():
        notify(f"{images.name}: {count} {part} images removed: the same pixels are in another part")
    if counted := " and ".join(f"{count} {part}" for part, count in near.items() if count):
        notify(f"{images.name}: {counted} images are nearly the same as a private one; they stay")
    folders = [name for name in images.left_out if name.endswith("/")]
    files = [name for name in images.left_out if not name.endswith("/")]
    for noun, names in (("broken image files", files), ("class folders without images", folders)):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            notify(f"{images.name}: {len(names)} {noun} left out: {', '.join(names[:NAMED])}{more}")


def quantised(images: Tensor) -> Tensor:
    """Return images in [0, 1] as uint8 on the CPU, as steps store them and every scorer receives them."""
    return (images.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def smallest_class(labels: Tensor) -> int:
    """Return the number of records of the smallest non-empty class; 0 without records."""
    counts = labels.unique(return_counts=True)[1]
    return int(counts.min()) if len(counts) else 0


def some_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Draw indices of `count` records of each class, class by class; the same for all runs on the same data."""
    rng = np.random.RandomState(SEED)
    by_class = [(labels == c).nonzero().flatten() for c in labels.unique()]
    return torch.cat([rows[torch.from_numpy(rng.permutation(len(rows))[:count])] for rows in by_class])


@dataclass(frozen=True)
class Victims:
    """Images whose responses an attack observes: private ones, and as many that the target was not trained on.

    Attributes:
        images: (m, c, h, w) uint8.
        labels: (m,) int64.
        private: (m,) bool.
    """

    images: Tensor
    labels: Tensor
    private: Tensor


def choose_victims(material: Material) -> Victims:
    """Choose up to VICTIMS images of each class from the private part, and as many of the test set.

    They are the same for all runs on the same data.
    """
    test = (material.data.test_images, material.data.test_labels)
    count = min(VICTIMS, *(smallest_class(labels) for _, labels in (material.private, test)))
    inside, outside = (some_of_each_class(labels, count) for _, labels in (material.private, test))
    return Victims(
        torch.cat([material.private[0][inside], test[0][outside]]),
        torch.cat([material.private[1][inside], test[1][outside]]),
        torch.arange(len(inside) + len(outside)) < len(inside),
    )
