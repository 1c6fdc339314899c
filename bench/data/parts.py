"""The images of a split: private, attacker's and public part; and the removal of duplicates between them.

A duplicate, an image with equal pixels, stays in the first of these parts that has it: test set, public part,
attacker's part, private part. Only the decision about a private record itself reads that record: whether a record is in
the private part is a function of the record and of images that are not private. So the other parts, and everything
measured on them, are the same with and without any private record. Data sets that differ in one private record have
private parts that differ at most in that record. A record that equals a test, public or attacker's image is not treated
as private: no guarantee covers it, and none is needed. Duplicates within the private part stay. Data sets without
duplicates are unchanged; others get a new fingerprint, which distinguishes their runs from earlier ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.data.catalog import facts
from bench.data.dataset import Keep
from bench.data.images import ImageData, images_fingerprint, select_images, select_records
from bench.data.splits import CANARIES, HALVES, Split, choose_canaries, wrong_labels
from bench.errors import BadData

if TYPE_CHECKING:
    from torch import LongTensor, Tensor

    from bench.data.image_files import ImageHashes

NEAR = 16.0
"""Largest root mean squared difference, in grey levels, of near-duplicates, which have equal difference hashes."""
_COMPARED = 8
"""Number of private images of one difference hash with which an image is compared."""


def private_part(data: ImageData, split: Split, keep: Keep | None = None) -> tuple[Tensor, Tensor]:
    """Return the teacher's records: (n, c, h, w) uint8 images and (n,) int64 labels, as in `private_domain`.

    Under split canaries some labels are wrong (`mislabelled`).
    """
    images = select_images(data.train_images, split.private, keep, data.fingerprint)
    labels = private_class_numbers(data, split)[data.train_labels[split.private]]
    if (rows := mislabelled(data, split)) is not None:
        first = split.private if split.before is None or split.kept is None else split.before[split.kept]
        labels[rows] = wrong_labels(f"{data.name}:train", first[rows].tolist(), labels[rows], data.classes)
    return images, labels


def mislabelled(data: ImageData, split: Split) -> LongTensor | None:
    """Return (m,) ascending rows of `private_part` with a wrong label; None under every split except canaries."""
    import torch

    if split.name != CANARIES:
        return None
    if split.before is None or split.kept is None:
        return choose_canaries(data.name, split.private)
    is_wrong = torch.zeros(len(split.before), dtype=torch.bool)
    is_wrong[choose_canaries(data.name, split.before)] = True
    return is_wrong[split.kept].nonzero().flatten()  # type: ignore[return-value]


def private_domain(data: ImageData, split: Split, keep: Keep | None = None) -> ImageData:
    """Restrict the data set to the private classes, numbered from 0 with their names.

    The test set is restricted too, so that accuracy is measured on the teacher's classes; under split identity, on
    groups outside the attacker's part. `data` itself is returned if all classes and groups are private.
    """
    import torch

    numbers = private_class_numbers(data, split)
    train, test = numbers[data.train_labels] >= 0, numbers[data.test_labels] >= 0
    has_groups = data.train_groups is not None and data.test_groups is not None
    if split.name == "identity" and not split.outside and has_groups:
        is_private = torch.zeros(len(data.train_labels), dtype=torch.bool)
        is_private[split.private] = True
        test &= ~torch.isin(data.test_groups, data.train_groups[~is_private].unique())  # type: ignore[arg-type,index]
    if bool(train.all()) and bool(test.all()):
        return data
    if not bool(test.any()):
        raise BadData(f"split '{split.name}' leaves data set '{data.name}' no test image; use another split")
    kept = select_records(data, train, test, keep)
    names = tuple(name for name, number in zip(data.class_names, numbers.tolist(), strict=True) if number >= 0)
    return replace(
        kept, class_names=names, train_labels=numbers[kept.train_labels], test_labels=numbers[kept.test_labels]
    )


def private_class_numbers(data: ImageData, split: Split) -> Tensor:
    """Return (classes,) int64: every class's number among the private ones, -1 for the others.

    The numbers follow from the split and the data set's list of classes, never from the labels found: the released
    network has an output for every class, so that it does not reveal which classes have private records.
    """
    import torch

    if split.name not in HALVES:
        return torch.arange(data.classes)
    is_low = torch.arange(data.classes) * 2 < data.classes
    is_private = is_low if split.name == "disjoint-low" else ~is_low
    return torch.where(is_private, is_private.cumsum(0) - 1, -1)


def attacker_has_other_classes(data: ImageData, split: Split) -> bool:
    """Return whether all of the attacker's images are of classes that are not private.

    Outsiders of a data set whose classes are people are not counted: a face judge distinguishes people there
    (`bench.pipeline.face_judge`).
    """
    return split.name in HALVES or (split.outside and not facts(data.name).classes_are_people)


def attackers_source(data: ImageData, split: Split) -> Tensor:
    """Return the images that `aux` and `public` of a split index."""
    if not split.outside:
        return data.train_images
    if data.outsiders is None:
        raise RuntimeError(f"{data.name}: split '{split.name}' needs outsiders")
    return data.outsiders


def public_part(data: ImageData, split: Split) -> Tensor | None:
    """Return the public images, without labels: (p, c, h, w) uint8; None if the method needs none."""
    return None if split.public is None else attackers_source(data, split)[split.public]


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
        return select_images(source, split.aux, keep, content)
    import torch

    from bench.data.arrays import reshape_images

    other = load_other(split.aux_dataset)
    images = reshape_images(other.train_images, data.shape)
    return images if other.outsiders is None else torch.cat([images, reshape_images(other.outsiders, data.shape)])


def aux_labels(data: ImageData, split: Split) -> Tensor | None:
    """Return (m,) int64 labels of `aux_part`, numbered as in `private_domain`: for attackers who know them.

    None if the attacker's images are of other classes, of no class, or from another data set.
    """
    if split.aux_dataset is not None or split.outside:
        return None
    numbers = private_class_numbers(data, split)[data.train_labels[split.aux]]
    return numbers if bool((numbers >= 0).all()) else None


@dataclass(frozen=True)
class Deduplicated:
    """A data set and its split without duplicates.

    Attributes:
        data: the data set, without the removed private records.
        split: its split, without the removed records.
        other: (m, c, h, w) uint8, the remaining attacker's images from another data set; None if the split has none.
        removed: name of a part to the number of images removed from it, if any: "private", "aux", "public".
    """

    data: ImageData
    split: Split
    other: Tensor | None
    removed: dict[str, int]


def remove_duplicates(
    data: ImageData, split: Split, keep: Keep | None = None, other: Tensor | None = None
) -> Deduplicated:
    """Remove from every part the images that an earlier part has: test, public, attacker's, private.

    The test set is unchanged. Removed private records also leave the training set.

    Args:
        keep: as in `load`.
        other: (m, c, h, w) uint8, the attacker's images if they come from another data set.

    Raises:
        BenchError: the private or the attacker's part becomes empty.
    """
    import torch

    from bench.data.image_files import pixel_keys

    def keys_of(images: Tensor, hashes: ImageHashes | None) -> list[bytes]:
        return pixel_keys(images) if hashes is None else hashes.keys()

    def unseen(rows: LongTensor) -> LongTensor:
        kept = [row for row in rows.tolist() if outside[row] not in seen]
        return rows if len(kept) == len(rows) else torch.tensor(kept, dtype=torch.int64)  # type: ignore[return-value]

    train = keys_of(data.train_images, data.train_hashes)
    outside = train if not split.outside else keys_of(attackers_source(data, split), data.outsider_hashes)
    seen = set(keys_of(data.test_images, data.test_hashes))
    removed: dict[str, int] = {}
    public, left = split.public, other
    if split.public is not None:
        public = unseen(split.public)
        removed["public"] = len(split.public) - len(public)
        seen |= {outside[row] for row in public.tolist()}
    aux = unseen(split.aux)
    removed["aux"] = len(split.aux) - len(aux)
    seen |= {outside[row] for row in aux.tolist()}
    if other is not None:
        keys = pixel_keys(other)
        is_new = torch.tensor([key not in seen for key in keys], dtype=torch.bool)
        left = other if bool(is_new.all()) else other[is_new]
        removed["aux"] += len(other) - len(left)
        seen |= set(keys)
    kept = torch.tensor([train[row] not in seen for row in split.private.tolist()], dtype=torch.bool)
    removed["private"] = int((~kept).sum())
    _require_images(data.name, split, int(kept.sum()), len(aux if left is None else left))
    counts = {part: removed[part] for part in ("private", "aux", "public") if removed.get(part)}
    reduced = replace(split, aux=aux, public=public) if counts else split
    if removed["private"]:
        data, reduced = _without_private(data, reduced, kept, keep)
    return Deduplicated(data, reduced, left, counts)


def _require_images(name: str, split: Split, private: int, aux: int) -> None:
    had_any = len(split.aux) > 0 or split.aux_dataset is not None  # a run without an attack may have no attacker's part
    if not aux and had_any:
        source = "the attacker" if split.aux_dataset is None else f"'{split.aux_dataset}'"
        raise BadData(
            f"data set '{name}': every image of {source} in split '{split.name}' is a test or public image too; use "
            "another split"
        )
    if not private:
        raise BadData(
            f"data set '{name}': every private image in split '{split.name}' is a test or attacker's image too; remove "
            "copies from the data set, or use another split"
        )


def _without_private(data: ImageData, split: Split, kept: Tensor, keep: Keep | None) -> tuple[ImageData, Split]:
    """Remove private records that are not in `kept`, and renumber the split."""
    import torch

    stays = torch.ones(len(data.train_labels), dtype=torch.bool)
    stays[split.private[~kept]] = False
    number = stays.cumsum(0) - 1
    aux, public = split.aux, split.public
    if not split.outside:
        aux, public = number[aux], None if public is None else number[public]  # type: ignore[assignment]
    private: LongTensor = number[split.private[kept]]  # type: ignore[assignment]
    moved = replace(split, private=private, aux=aux, public=public, before=split.private, kept=kept)
    return select_records(data, stays, torch.ones(len(data.test_labels), dtype=torch.bool), keep), moved


def count_near_duplicates(data: ImageData, split: Split) -> dict[str, int] | None:
    """Count test and attacker's images that are nearly equal to a private one; None if only pixel hashes are known.

    The pairs have the same difference hash and similar pixels. The count is a lower bound, as the hash may differ by a
    bit.
    """
    hashes = data.outsider_hashes if split.outside else data.train_hashes
    if data.train_hashes is None or data.test_hashes is None or hashes is None:
        return None
    by_hash: dict[int, list[int]] = defaultdict(list)
    private_hashes = data.train_hashes.difference[split.private.numpy()].tolist()
    for row, difference in zip(split.private.tolist(), private_hashes, strict=True):
        by_hash[difference].append(row)

    def is_near(image: Tensor, difference: int) -> bool:
        candidates = by_hash.get(difference, [])[:_COMPARED]
        if not candidates:
            return False
        distance = (data.train_images[candidates].float() - image.float()).square().flatten(1).mean(1).sqrt()
        return bool((distance <= NEAR).any())

    test = zip(data.test_images, data.test_hashes.difference.tolist(), strict=True)
    found = {"test": sum(is_near(image, difference) for image, difference in test)}
    if split.aux_dataset is None:
        source = attackers_source(data, split)
        found["aux"] = sum(is_near(source[row], int(hashes.difference[row])) for row in split.aux.tolist())
    return found
