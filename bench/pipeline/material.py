"""The images of a run: how a data set is divided into parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.data import ImageData, Keep, Split
from bench.data.class_counts import class_lines
from bench.data.duplicates import near_copies, without_copies
from bench.data.naming import is_by_path
from bench.data.request import AS_DECLARED, Reading
from bench.progress import notify
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

    `public`: whether the method needs public images; `attacked`: whether there is an attack, which needs images; `out`:
    folder for decoded images, None = do not keep them.
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
    """The images of a run, uint8: the whole data set, the teacher's private part, the attacker's part, its labels if
    its classes are the private ones, and the unlabelled public part, if the method needs one.

    `counts`: how many images each part has, how many duplicates were removed, and what was left out. The last
    `canaries` private images belong to an audit. `mislabelled`: rows of the private part with a wrong label, under
    split canaries.
    """

    data: ImageData
    private: tuple[Tensor, Tensor]
    aux: Tensor
    aux_labels: Tensor | None = None
    public: Tensor | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    canaries: int = 0
    mislabelled: Tensor | None = None

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
    shared = data.split(images, wanted.split, wanted.public, wanted.attacked)
    other = None if shared.aux_dataset is None else data.aux_part(images, shared, load, keep)
    parted = without_copies(images, shared, keep, other)
    images, shared = parted.data, parted.split
    aux = data.aux_part(images, shared, load, keep) if parted.other is None else parted.other
    private, domain = data.private_part(images, shared, keep), data.private_domain(images, shared, keep)
    made = Material(domain, private, aux, data.aux_labels(images, shared), data.public_part(images, shared))
    counts = _counts(made, images, shared, parted.removed)
    if said := _declared(wanted.reading):
        counts["reading"] = said
    _tell(images, counts)
    return replace(made, counts=counts, mislabelled=data.mislabelled(images, shared))


def kept_in(out: Path, scratch: Path | None = None) -> Keep:
    """Return where runs that write below `out` keep decoded images; `scratch` is as in a store."""
    store = Store(out, notify=notify, scratch=scratch)
    return lambda kind, spec, make: store.step(kind, spec, make).path


def _counts(made: Material, images: ImageData, shared: Split, removed: dict[str, int]) -> dict[str, Any]:
    parts = {"private": made.private[0], "aux": made.aux, "test": made.data.test_images}
    parts |= {} if made.public is None else {"public": made.public}
    counts: dict[str, Any] = {part: len(found) for part, found in parts.items()}
    if removed:
        counts["copies_removed"] = removed
    if (near := near_copies(images, shared)) is not None:
        counts["near_copies"] = near
    folders = sum(name.endswith("/") for name in images.left_out)
    if len(images.left_out) > folders:
        counts["broken_left_out"] = len(images.left_out) - folders
    if folders:
        counts["empty_classes_left_out"] = folders
    counts["shape"] = "x".join(map(str, images.shape))
    if images.conversions and is_by_path(images.name):
        counts["read_as"] = list(images.conversions)
    return counts


def _declared(reading: Reading) -> dict[str, str]:
    """Return how the user said images are read, as typed options, where they differ from the defaults."""
    said: dict[str, str] = {} if reading.fit == AS_DECLARED.fit else {"fit": reading.fit}
    if reading.pixel_range is not None:
        said["pixel_range"] = ",".join(f"{value:.17g}" for value in reading.pixel_range)
    return said


def _tell(images: ImageData, counts: dict[str, Any]) -> None:
    """Print a line about omitted images, if there are any."""
    for part, count in counts.get("copies_removed", {}).items():
        notify(f"{images.name}: {count} {part} images removed: the same pixels are in another part")
    near = {part: count for part, count in counts.get("near_copies", {}).items() if count}
    if near:
        said = " and ".join(f"{count} {part}" for part, count in near.items())
        notify(f"{images.name}: {said} images are nearly the same as a private one; they stay")
    folders = [name for name in images.left_out if name.endswith("/")]
    files = [name for name in images.left_out if not name.endswith("/")]
    for what, names in (("broken image files", files), ("class folders without images", folders)):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            notify(f"{images.name}: {len(names)} {what} left out: {', '.join(names[:NAMED])}{more}")


def quantised(images: Tensor) -> Tensor:
    """Return images in [0, 1] as uint8 on the CPU, as steps store them and every scorer sees them."""
    return (images.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def smallest_class(labels: Tensor) -> int:
    """Return the number of records of the smallest non-empty class; 0 without records."""
    counts = labels.unique(return_counts=True)[1]
    return int(counts.min()) if len(counts) else 0


def some_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Indices of `count` records of each class, class by class, the same for all runs on the same data."""
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
    """Up to VICTIMS images of each class from the private part, and as many of the test set; the same for all runs."""
    test = (material.data.test_images, material.data.test_labels)
    count = min(VICTIMS, *(smallest_class(labels) for _, labels in (material.private, test)))
    inside, outside = (some_of_each_class(labels, count) for _, labels in (material.private, test))
    return Victims(
        torch.cat([material.private[0][inside], test[0][outside]]),
        torch.cat([material.private[1][inside], test[1][outside]]),
        torch.arange(len(inside) + len(outside)) < len(inside),
    )
