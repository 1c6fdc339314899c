"""Splits of the training records: for the teacher (private), the attacker (aux, without labels) or everyone (public).

The test set is in no part: no function of this file reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.data.canaries import SPLIT as CANARIES
from bench.data.canaries import canaries, wrong_labels
from bench.data.catalog import facts
from bench.data.images import ImageData, images_fingerprint
from bench.data.request import Keep
from bench.data.rows import take
from bench.data.subset import subset
from bench.errors import BadData, unknown

if TYPE_CHECKING:
    from torch import LongTensor, Tensor

_SPLITS = {
    "iid": "a sixth of the training set, chosen by hash, is the attacker's; the rest is private",
    "few": "300 training images, chosen by hash, are private, which teachers remember; the attacker has the others",
    CANARIES: "as iid, but one private image in twenty (at most 1,000) has a wrong label, and attacks ask about those",
    "full": "all of the training set is private; the attacker has another data set (mnist and fmnist for each other)",
    "disjoint-low": "the lower half of the classes is private; the attacker has the others",
    "disjoint-high": "the upper half of the classes is private; the attacker has the others",
    "identity": "a sixth of the people, chosen by hash, is the attacker's; or all who are in no class (faces)",
    "cross": "all of the training set is private; the attacker has images of the same kind from another source",
}
FROM_ANOTHER_SET = ("full", "cross")
"""Splits with the attacker's images from another data set."""
HALVES = ("disjoint-low", "disjoint-high")
"""Splits in which half of the classes is private."""
_AUX_SHARE = 6
FEW = 300
"""Number of private images of split `few`."""
_PUBLIC_SHARE = 2
"""Half of the attacker's part of iid is public if a method needs public images."""


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into a data set's training set.

    Attributes:
        name: one of `split_names()`.
        private: (n,) int64, ascending: the teacher's records.
        aux: (m,) int64, ascending, disjoint from `private`: the attacker's records; empty if `aux_dataset` is set.
        aux_dataset: name of the data set that provides the attacker's images instead, or None.
        public: (p,) int64, ascending, disjoint from both: images that a method may use without labels; None if the
            method needs none.
        outside: whether `aux` and `public` are indices into the data set's outsiders instead.
        before: (k,) int64: `private` before duplicates were removed, as the training set was numbered then; None if no
            private record was removed. These numbers decide which labels are wrong under split canaries.
        kept: (k,) bool: which of `before` remain.
    """

    name: str
    private: LongTensor
    aux: LongTensor
    aux_dataset: str | None = None
    public: LongTensor | None = None
    outside: bool = False
    before: LongTensor | None = None
    kept: Tensor | None = None


def split_names() -> dict[str, str]:
    """Return the names of splits with one line each."""
    return dict(_SPLITS)


def split(data: ImageData, name: str, public: bool = False, attacked: bool = True) -> Split:
    """Split `data`'s training set; depends only on its name, size and labels, never on the test set.

    iid: records in the order of the sha256 of "<data.name>:<index>"; the first n // 6 are aux, the others private.
    canaries: as iid, and some private records have another label in `private_part` (`bench.data.canaries`).
    few: in the same order, the last 300 are private, the others aux: every private record of few is private under iid.
    full: all private; aux from another data set. disjoint-low: classes below classes / 2 private, the others aux;
    disjoint-high: the other way round. identity: where the data set has images of people of no class (its outsiders),
    all its training images are private and those are aux; else people in the order of the sha256 of "<data.name>:
    person <number>", the first sixth of them aux. cross: as full, from a data set of the same kind.

    Args:
        public: reserve unlabelled images from the private records' own distribution for the method. The aux records of
            iid, canaries, few and identity are then sorted by the same hash of their indices: the first half stays with
            the attacker, the other one is public; private records do not change. Other splits have no such images.
        attacked: whether there is an attacker, who needs images: without one, full and cross need no second data set.

    Raises:
        BenchError: unknown split, one that this data set cannot have, or one without public images.
        RuntimeError: the parts overlap or leave the training set (a defect of this file).
    """
    import torch

    if name not in _SPLITS:
        raise unknown("split", name, _SPLITS)
    if name == "identity" and data.outsiders is not None:
        return _outside(data, len(data.outsiders), public)
    total = len(data.train_labels)
    other: str | None = None
    if name in ("iid", CANARIES):
        is_aux = _hashed(data.name, total)
    elif name == "few":
        is_aux = _all_but_few(data.name, total)
    elif name in FROM_ANOTHER_SET:
        other = _other(data.name, name) if attacked else None
        is_aux = torch.zeros(total, dtype=torch.bool)
    elif name == "identity":
        is_aux = _people(data)
    else:
        is_low = data.train_labels * 2 < data.classes
        is_aux = is_low if name == "disjoint-high" else ~is_low
        _require_two_classes(data, is_aux, name)
    private = (~is_aux).nonzero().flatten()
    apart = _public(data.name, name, is_aux) if public else None
    if apart is not None:
        is_aux[apart] = False
    result = Split(name, private, is_aux.nonzero().flatten(), other, apart)  # type: ignore[arg-type]
    _verify(result, total, attacked)
    return result


def _outside(data: ImageData, outsiders: int, public: bool) -> Split:
    """Split with all training images private; the attacker has the outsiders, people who are in no class."""
    import torch

    is_aux = torch.ones(outsiders, dtype=torch.bool)
    apart = _public(data.name, "identity", is_aux) if public else None
    if apart is not None:
        is_aux[apart] = False
    aux, private = is_aux.nonzero().flatten(), torch.arange(len(data.train_labels))
    return Split("identity", private, aux, None, apart, outside=True)  # type: ignore[arg-type]


def private_part(data: ImageData, split: Split, keep: Keep | None = None) -> tuple[Tensor, Tensor]:
    """Return the teacher's records: images (n, c, h, w) uint8 and labels (n,) int64, numbered as in
    `private_domain`."""
    images = take(data.train_images, split.private, keep, data.fingerprint)
    labels = _renumbered(data, split)[data.train_labels[split.private]]
    if (rows := mislabelled(data, split)) is not None:
        indices = _first_numbers(split)[rows].tolist()
        labels[rows] = wrong_labels(f"{data.name}:train", indices, labels[rows], data.classes)
    return images, labels


def mislabelled(data: ImageData, split: Split) -> LongTensor | None:
    """Return (m,) ascending rows of `private_part` with a wrong label; None under every split except canaries."""
    import torch

    if split.name != CANARIES:
        return None
    if split.before is None or split.kept is None:
        return canaries(data.name, split.private)
    wrong = torch.zeros(len(split.before), dtype=torch.bool)
    wrong[canaries(data.name, split.before)] = True
    return wrong[split.kept].nonzero().flatten()  # type: ignore[return-value]


def _first_numbers(split: Split) -> LongTensor:
    """Return (n,) int64: the private records' indices before any was removed."""
    if split.before is None or split.kept is None:
        return split.private
    return split.before[split.kept]  # type: ignore[return-value]


def private_domain(data: ImageData, split: Split, keep: Keep | None = None) -> ImageData:
    """Restrict the data set to the private classes, numbered from 0 with their names.

    The test set is restricted too, so that accuracy is measured on the teacher's classes; under split identity, on
    people outside the attacker's part. `data` itself is returned if all classes and people are private.
    """
    numbers = _renumbered(data, split)
    train, test = numbers[data.train_labels] >= 0, numbers[data.test_labels] >= 0
    test &= _of_private_people(data, split)
    if bool(train.all()) and bool(test.all()):
        return data
    if not bool(test.any()):
        raise BadData(f"split '{split.name}' leaves data set '{data.name}' no test image; use another split")
    kept = subset(data, train, test, keep)
    names = tuple(name for name, number in zip(data.class_names, numbers.tolist(), strict=True) if number >= 0)
    return replace(
        kept, class_names=names, train_labels=numbers[kept.train_labels], test_labels=numbers[kept.test_labels]
    )


def _of_private_people(data: ImageData, split: Split) -> Tensor:
    """Return (m,) bool: the test images of people outside the attacker's part of split identity."""
    import torch

    if split.name != "identity" or split.outside or data.train_people is None or data.test_people is None:
        return torch.ones(len(data.test_labels), dtype=torch.bool)
    private = torch.zeros(len(data.train_labels), dtype=torch.bool)
    private[split.private] = True
    return ~torch.isin(data.test_people, data.train_people[~private].unique())


def public_part(data: ImageData, split: Split) -> Tensor | None:
    """Return the public images, without labels: (p, c, h, w) uint8; None if the method needs none."""
    return None if split.public is None else attackers_source(data, split)[split.public]


def attackers_source(data: ImageData, split: Split) -> Tensor:
    """Return the images that `aux` and `public` of a split index."""
    if not split.outside:
        return data.train_images
    if data.outsiders is None:
        raise RuntimeError(f"{data.name}: split '{split.name}' needs outsiders")
    return data.outsiders


def _renumbered(data: ImageData, split: Split) -> Tensor:
    """Return (classes,) int64: every class's number among the private ones, -1 for the others.

    The numbers follow from the split and the data set's list of classes, never from the labels found: the released
    network has an output for every class, so that it does not reveal which classes have private records.
    """
    import torch

    if split.name not in HALVES:
        return torch.arange(data.classes)
    low = torch.arange(data.classes) * 2 < data.classes
    is_private = low if split.name == "disjoint-low" else ~low
    return torch.where(is_private, is_private.cumsum(0) - 1, -1)


def aux_part(data: ImageData, split: Split, load_other: Callable[[str], ImageData], keep: Keep | None = None) -> Tensor:
    """Return the attacker's images, without labels: (m, c, h, w) uint8 in `data`'s shape.

    Args:
        data: the data set that was split.
        split: its split.
        load_other: loads `split.aux_dataset` if that is set; that data set's training images and outsiders are then
            used, with channels repeated or reduced to luma (ITU-R BT.601) and resized bilinearly (antialiased) as
            needed.
        keep: as in `load`.
    """
    if split.aux_dataset is None:
        source = attackers_source(data, split)
        content = f"{data.fingerprint}-False"
        if split.outside and keep is not None:  # a data set's fingerprint does not cover outsiders
            content = f"{images_fingerprint(source)}-outside"
        return take(source, split.aux, keep, content)
    import torch

    from bench.data.resizing import fit

    other = load_other(split.aux_dataset)
    images = fit(other.train_images, data.shape)
    return images if other.outsiders is None else torch.cat([images, fit(other.outsiders, data.shape)])


def aux_labels(data: ImageData, split: Split) -> Tensor | None:
    """Return (m,) int64 labels of `aux_part`, numbered as in `private_domain`: for attackers who know them.

    None if the attacker's images are of other classes, of no class, or from another data set.
    """
    if split.aux_dataset is not None or split.outside:
        return None
    numbers = _renumbered(data, split)[data.train_labels[split.aux]]
    return numbers if bool((numbers >= 0).all()) else None


def _people(data: ImageData) -> Tensor:
    """Return (n,) bool: the training images of the sixth of the people in the attacker's part."""
    import torch

    if data.train_people is None:
        raise BadData(
            f"split 'identity' needs to know who is on an image, and data set '{data.name}' does not say; use it with "
            "celeba-g, celeba-h, celeba-id or lfw, or iid"
        )
    people = data.train_people.unique().tolist()
    order = sorted(people, key=lambda one: hashlib.sha256(f"{data.name}:person {one}".encode()).digest())
    theirs = order[: len(order) // _AUX_SHARE]
    is_aux = torch.isin(data.train_people, torch.tensor(theirs, dtype=torch.int64))
    _require_two_classes(data, is_aux, "identity")
    return is_aux


def _hashed(name: str, total: int) -> Tensor:
    import torch

    if total < _AUX_SHARE:
        raise BadData(f"split 'iid' needs {_AUX_SHARE} or more training images; data set '{name}' has {total}")
    is_aux = torch.zeros(total, dtype=torch.bool)
    is_aux[_by_hash(name, range(total))[: total // _AUX_SHARE]] = True
    return is_aux


def _all_but_few(name: str, total: int) -> Tensor:
    import torch

    if total < 2 * FEW:
        raise BadData(f"split 'few' needs {2 * FEW} or more training images; data set '{name}' has {total}; use iid")
    is_aux = torch.ones(total, dtype=torch.bool)
    is_aux[_by_hash(name, range(total))[-FEW:]] = False
    return is_aux


def _by_hash(name: str, indices: Iterable[int]) -> list[int]:
    """Sort indices by the SHA-256 of "<name>:<index>"."""
    return sorted(indices, key=lambda index: hashlib.sha256(f"{name}:{index}".encode()).digest())


def _public(name: str, of: str, is_aux: Tensor) -> LongTensor:
    """Return (p,) ascending: the half of the aux records with the largest hashes."""
    import torch

    if of not in ("iid", CANARIES, "few", "identity"):
        raise BadData(
            f"split '{of}' has no public images of the private records' distribution; use iid, or a setting of the "
            "method that needs none"
        )
    order = _by_hash(name, is_aux.nonzero().flatten().tolist())
    count = len(order) // _PUBLIC_SHARE
    if count == 0:
        raise BadData(f"split '{of}' of data set '{name}' keeps {len(order)} images from the teachers; expected 2")
    return torch.tensor(sorted(order[-count:]))  # type: ignore[return-value]


def _other(name: str, split: str) -> str:
    """Return the attacker's data set in split full or cross. Raises BenchError if there is none."""
    known = facts(name)
    other = known.other if split == "full" else known.cross
    if other is None:
        which = "mnist or fmnist" if split == "full" else "mnist, usps, celeba-id or lfw, say"
        raise BadData(
            f"split '{split}' gives an attack a second data set and '{name}' has none; use it with {which}, use iid, "
            "or leave --attack out"
        )
    return other


def _require_two_classes(data: ImageData, is_aux: Tensor, name: str) -> None:
    private = data.train_labels[~is_aux].unique()
    if len(private) < 2 or not bool(is_aux.any()):
        raise BadData(
            f"split '{name}' leaves data set '{data.name}' {len(private)} private of {data.classes} classes and "
            f"{int(is_aux.sum())} aux images; expected 2 or more and 1 or more; use split iid"
        )


def _verify(result: Split, total: int, attacked: bool = True) -> None:
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
    has_aux = bool(len(result.aux)) or (result.name in FROM_ANOTHER_SET and not attacked)
    if not len(result.private) or (result.aux_dataset is None) != has_aux:
        raise RuntimeError(f"split '{result.name}': {len(result.private)} private, {len(result.aux)} aux images")
