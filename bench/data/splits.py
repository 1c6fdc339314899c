"""Who gets which training record: the teacher (private), the attacker (aux, without labels) or everyone (public).

The test set belongs to no one here: no function of this file reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.data.catalog import facts
from bench.data.images import ImageData
from bench.errors import BenchError, unknown

if TYPE_CHECKING:
    from torch import LongTensor, Tensor

_SPLITS = {
    "iid": "a sixth of the training set, chosen by hash, is the attacker's; the rest is private",
    "full": "all of the training set is private; the attacker has another data set (mnist and fmnist for each other)",
    "disjoint-low": "the lower half of the classes is private; the attacker has the others",
    "disjoint-high": "the upper half of the classes is private; the attacker has the others",
}
_AUX_SHARE = 6
_PUBLIC_SHARE = 2
"""Of the attacker's part of iid, half is public where a method asks for public images."""
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into a data set's training set.

    Attributes:
        name: one of `split_names()`.
        private: (n,) int64, ascending: the teacher's records.
        aux: (m,) int64, ascending, disjoint from `private`: the attacker's records; empty if `aux_dataset` is set.
        aux_dataset: name of the data set the attacker's images come from instead, or None.
        public: (p,) int64, ascending, disjoint from both: images that a method may use without labels; None where no
            method asked for any.
    """

    name: str
    private: LongTensor
    aux: LongTensor
    aux_dataset: str | None = None
    public: LongTensor | None = None


def split_names() -> dict[str, str]:
    """Split name -> one line about it."""
    return dict(_SPLITS)


def split(data: ImageData, name: str, public: bool = False) -> Split:
    """Divide `data`'s training set; depends on its name, size and labels only, never on the test set.

    iid: records in the order of the sha256 of "<data.name>:<index>"; the first n // 6 are aux, the others private.
    full: all private; aux from another data set. disjoint-low: classes below classes / 2 private, the others aux;
    disjoint-high: the other way round.

    Args:
        public: whether unlabelled images of the private records' own distribution are set apart for the method. Of
            iid's aux records, in the order of the same hash, the first half is then the attacker's, the other one
            public; private records are the same as without. No other split has such images.

    Raises:
        BenchError: unknown split, one that this data set cannot have, or one without public images.
        RuntimeError: the parts overlap or leave the training set (a defect of this file).
    """
    import torch

    if name not in _SPLITS:
        raise unknown("split", name, _SPLITS)
    total = len(data.train_labels)
    other: str | None = None
    if name == "iid":
        is_aux = _hashed(data.name, total)
    elif name == "full":
        other = _other(data.name)
        is_aux = torch.zeros(total, dtype=torch.bool)
    else:
        is_low = data.train_labels * 2 < data.classes
        is_aux = is_low if name == "disjoint-high" else ~is_low
        _require_two_classes(data, is_aux, name)
    private = torch.arange(total) if other else (~is_aux).nonzero().flatten()
    apart = _public(data.name, name, is_aux) if public else None
    if apart is not None:
        is_aux[apart] = False
    result = Split(name, private, is_aux.nonzero().flatten(), other, apart)  # type: ignore[arg-type]
    _verify(result, total)
    return result


def private_part(data: ImageData, split: Split) -> tuple[Tensor, Tensor]:
    """The teacher's records: images (n, c, h, w) uint8 and labels (n,) int64, numbered as in `private_domain`."""
    return data.train_images[split.private], _renumbered(data, split)[data.train_labels[split.private]]


def private_domain(data: ImageData, split: Split) -> ImageData:
    """The data set as the teacher's world knows it: only records of private classes, numbered from 0, names kept.

    Of the test set too, so that accuracy is measured on classes the teacher was taught. `data` itself where all classes
    are private.
    """
    numbers = _renumbered(data, split)
    names = tuple(name for name, number in zip(data.class_names, numbers.tolist(), strict=True) if number >= 0)
    if len(names) == data.classes:
        return data
    train, test = numbers[data.train_labels], numbers[data.test_labels]
    return ImageData(
        data.name,
        data.train_images[train >= 0],
        train[train >= 0],
        data.test_images[test >= 0],
        test[test >= 0],
        names,
    )


def public_part(data: ImageData, split: Split) -> Tensor | None:
    """The public images, without labels: (p, c, h, w) uint8; None where no method asked for any."""
    return None if split.public is None else data.train_images[split.public]


def _renumbered(data: ImageData, split: Split) -> Tensor:
    """(classes,) int64: every class's number among the private ones, -1 for the others."""
    import torch

    private = data.train_labels[split.private].unique()
    numbers = torch.full((data.classes,), -1)
    numbers[private] = torch.arange(len(private))
    return numbers


def aux_part(data: ImageData, split: Split, load_other: Callable[[str], ImageData]) -> Tensor:
    """The attacker's images, without labels: (m, c, h, w) uint8 in `data`'s shape.

    Args:
        data: the data set that was split.
        split: its split.
        load_other: called with `split.aux_dataset` where that is set; that data set's training images are then used,
            with channels repeated or reduced to luma (ITU-R BT.601) and resized bilinearly (antialiased) as needed.
    """
    if split.aux_dataset is None:
        return data.train_images[split.aux]
    return _fit(load_other(split.aux_dataset).train_images, data.shape)


def aux_labels(data: ImageData, split: Split) -> Tensor | None:
    """(m,) int64 labels of `aux_part`, numbered as in `private_domain`: for attackers who know them.

    None where the attacker's images are of other classes, or of another data set.
    """
    if split.aux_dataset is not None:
        return None
    numbers = _renumbered(data, split)[data.train_labels[split.aux]]
    return numbers if bool((numbers >= 0).all()) else None


def _hashed(name: str, total: int) -> Tensor:
    import torch

    if total < _AUX_SHARE:
        raise BenchError(f"split 'iid' needs {_AUX_SHARE} or more training images; data set '{name}' has {total}")
    is_aux = torch.zeros(total, dtype=torch.bool)
    is_aux[_by_hash(name, range(total))[: total // _AUX_SHARE]] = True
    return is_aux


def _by_hash(name: str, indices: Iterable[int]) -> list[int]:
    """Indices in the order of the sha256 of "<name>:<index>"."""
    return sorted(indices, key=lambda index: hashlib.sha256(f"{name}:{index}".encode()).digest())


def _public(name: str, of: str, is_aux: Tensor) -> LongTensor:
    """(p,) ascending: the half of the aux records whose hashes are largest."""
    import torch

    if of != "iid":
        raise BenchError(
            f"split '{of}' has no public images of the private records' distribution; use iid, or a setting of the "
            "method that needs none"
        )
    order = _by_hash(name, is_aux.nonzero().flatten().tolist())
    count = len(order) // _PUBLIC_SHARE
    if count == 0:
        raise BenchError(f"split 'iid' of data set '{name}' keeps {len(order)} images from the teachers; expected 2")
    return torch.tensor(sorted(order[-count:]))  # type: ignore[return-value]


def _other(name: str) -> str:
    other = facts(name).other
    if other is None:
        raise BenchError(
            f"split 'full' needs a second data set and '{name}' has none; use it with mnist or fmnist, or iid"
        )
    return other


def _require_two_classes(data: ImageData, is_aux: Tensor, name: str) -> None:
    private = data.train_labels[~is_aux].unique()
    if len(private) < 2 or not bool(is_aux.any()):
        raise BenchError(
            f"split '{name}' leaves data set '{data.name}' {len(private)} private of {data.classes} classes and "
            f"{int(is_aux.sum())} aux images; expected 2 or more and 1 or more; use split iid"
        )


def _verify(result: Split, total: int) -> None:
    import torch

    parts = {"private": result.private, "aux": result.aux}
    parts |= {} if result.public is None else {"public": result.public}
    for part, indices in parts.items():
        if len(indices) and (int(indices[0]) < 0 or int(indices[-1]) >= total):
            raise RuntimeError(f"split '{result.name}': {part} indices leave the range 0 to {total - 1}")
        if bool((indices.diff() <= 0).any()):
            raise RuntimeError(f"split '{result.name}': {part} indices are not ascending")
    if len(torch.cat(list(parts.values())).unique()) < sum(map(len, parts.values())):
        raise RuntimeError(f"split '{result.name}': {', '.join(parts)} overlap")
    if not len(result.private) or (result.aux_dataset is None) != bool(len(result.aux)):
        raise RuntimeError(f"split '{result.name}': {len(result.private)} private, {len(result.aux)} aux images")


def _fit(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    import torch
    from torch.nn import functional as F

    channels, height, width = shape
    if tuple(images.shape[1:]) == shape:
        return images
    pixels = images.float()
    if images.shape[1] == 3 and channels == 1:
        pixels = (pixels * torch.tensor(_LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    elif images.shape[1] == 1:
        pixels = pixels.expand(-1, channels, -1, -1)
    pixels = F.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8)
