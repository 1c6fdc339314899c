"""Images in two parts of a run: those with equal pixels stay in one part only, near-duplicates are counted.

A duplicate stays in the first of these parts that has it: test set, public part, attacker's part, private part. Only
the decision about a private record itself reads that record: whether a record is in the private part is a function of
the record and of images that are not private. So the other parts, and everything measured on them, are the same with
and without any private record. Data sets that differ in one private record have private parts that differ at most in
that record. A record that equals a test, public or attacker's image is not treated as private: no guarantee covers it,
and none is needed. Duplicates within the private part stay. Data sets without duplicates are unchanged; others get a
new fingerprint, which distinguishes their runs from earlier ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import LongTensor, Tensor

from bench.data import marks
from bench.data.images import ImageData
from bench.data.marks import Marks
from bench.data.request import Keep
from bench.data.splits import Split, attackers_source
from bench.data.subset import subset
from bench.errors import BadData

NEAR = 16.0
"""Largest root mean squared difference, in grey levels, at which images of the same look are near-duplicates."""
_COMPARED = 8
"""Number of private images of one look with which an image is compared."""

Keys = list[bytes]


@dataclass(frozen=True)
class Parted:
    """A data set and its split without duplicates, the attacker's images of another data set without them, if the split
    has such, and the number of images removed from each part."""

    data: ImageData
    split: Split
    other: Tensor | None
    removed: dict[str, int]


def without_copies(data: ImageData, split: Split, keep: Keep | None = None, other: Tensor | None = None) -> Parted:
    """Remove from every part the images that an earlier part has: test, public, attacker's, private.

    The test set is unchanged. Removed private records also leave the training set.

    Args:
        keep: as in `load`.
        other: (m, c, h, w) uint8, the attacker's images if they come from another data set.

    Raises:
        BenchError: the private or the attacker's part becomes empty.
    """
    train = _keys(data.train_images, data.train_marks)
    outside = train if not split.outside else _keys(attackers_source(data, split), data.outsider_marks)
    seen = set(_keys(data.test_images, data.test_marks))
    public, aux, theirs = split.public, split.aux, other
    if public is not None:
        public = _unseen(public, outside, seen)
        seen |= {outside[row] for row in public.tolist()}
    aux = _unseen(aux, outside, seen)
    seen |= {outside[row] for row in aux.tolist()}
    if other is not None:
        keys = marks.of_images(other)
        fresh = torch.tensor([key not in seen for key in keys], dtype=torch.bool)
        theirs = other if bool(fresh.all()) else other[fresh]
        seen |= set(keys)
    kept = torch.tensor([train[row] not in seen for row in split.private.tolist()], dtype=torch.bool)
    removed = {"private": int((~kept).sum()), "aux": len(split.aux) - len(aux)}
    removed["aux"] += 0 if other is None or theirs is None else len(other) - len(theirs)
    removed |= {} if split.public is None or public is None else {"public": len(split.public) - len(public)}
    _check_left(data.name, split, int(kept.sum()), len(aux if theirs is None else theirs))
    found = {part: count for part, count in removed.items() if count}
    shared = replace(split, aux=aux, public=public) if found else split
    if removed["private"]:
        data, shared = _without_private(data, shared, kept, keep)
    return Parted(data, shared, theirs, found)


def _without_private(data: ImageData, split: Split, kept: Tensor, keep: Keep | None) -> tuple[ImageData, Split]:
    """Remove private records that are not in `kept`, and renumber the split."""
    stay = torch.ones(len(data.train_labels), dtype=torch.bool)
    stay[split.private[~kept]] = False
    number = stay.cumsum(0) - 1
    inside = (
        (split.aux, split.public)
        if split.outside
        else (number[split.aux], None if split.public is None else number[split.public])
    )
    private = number[split.private[kept]]
    moved = Split(split.name, private, inside[0], split.aux_dataset, inside[1], split.outside, split.private, kept)  # type: ignore[arg-type]
    return subset(data, stay, torch.ones(len(data.test_labels), dtype=torch.bool), keep), moved


def near_copies(data: ImageData, split: Split) -> dict[str, int] | None:
    """Count test and attacker's images that are nearly equal to a private one; None if only pixel hashes are known.

    The pairs have the same look (`Marks`) and similar pixels. The count is a lower bound, as a look may differ by a
    bit.
    """
    known = data.outsider_marks if split.outside else data.train_marks
    if data.train_marks is None or data.test_marks is None or known is None:
        return None
    of_look: dict[int, list[int]] = defaultdict(list)
    for row, look in zip(split.private.tolist(), data.train_marks.look[split.private.numpy()].tolist(), strict=True):
        of_look[look].append(row)
    every = range(len(data.test_images))
    found = {"test": _count_near(data.test_images, data.test_marks, every, data.train_images, of_look)}
    if split.aux_dataset is None:
        source = attackers_source(data, split)
        found["aux"] = _count_near(source, known, split.aux.tolist(), data.train_images, of_look)
    return found


def _count_near(
    images: Tensor, known: Marks, rows: Sequence[int], private: Tensor, of_look: dict[int, list[int]]
) -> int:
    count = 0
    for row in rows:
        candidates = of_look.get(int(known.look[row]), [])[:_COMPARED]
        if candidates:
            apart = (private[candidates].float() - images[row].float()).square().flatten(1).mean(1).sqrt()
            count += bool((apart <= NEAR).any())
    return count


def _keys(images: Tensor, known: Marks | None) -> Keys:
    return marks.of_images(images) if known is None else marks.keys(known.exact)


def _unseen(rows: LongTensor, found: Keys, seen: set[bytes]) -> LongTensor:
    kept = [row for row in rows.tolist() if found[row] not in seen]
    return rows if len(kept) == len(rows) else torch.tensor(kept, dtype=torch.int64)  # type: ignore[return-value]


def _check_left(name: str, split: Split, private: int, aux: int) -> None:
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
