"""Images that are in two parts of a run: the same to the pixel, which are removed, and nearly the same, which are told.

Who has precedence: private images stay, of the others a copy is removed from the test set, then from the attacker's
images. The public part loses copies of test images alone: methods may look at it, and if a private record took its copy
away from there, they would see whether the record is there, which no ledger charges. Data sets without such copies are
left as they are.
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
from bench.errors import BenchError

NEAR = 16.0
"""Root of the mean squared difference of two images, in grey levels, up to which those of the same look are near."""
_COMPARED = 8
"""Private images of one look that an image is compared with."""

Keys = list[bytes]


@dataclass(frozen=True)
class Parted:
    """A data set and its split without copies, and how many images were removed of each part that had any."""

    data: ImageData
    split: Split
    removed: dict[str, int]


def without_copies(data: ImageData, split: Split, keep: Keep | None = None) -> Parted:
    """The data set and its split without test and attacker's images that are in a part before them.

    Of the public part, images of the test set are removed, by which no private record can be told.

    Raises:
        BenchError: no test image is left, or the attacker has none.
    """
    train, test = _keys(data.train_images, data.train_marks), _keys(data.test_images, data.test_marks)
    outside = train if not split.outside else _keys(attackers_source(data, split), data.outsider_marks)
    seen = {train[row] for row in split.private.tolist()}
    fresh = torch.tensor([key not in seen for key in test])
    seen |= set(test)
    public, aux = split.public, split.aux
    if public is not None:
        public = _unseen(public, outside, set(test))
        seen |= {outside[row] for row in public.tolist()}
    aux = _unseen(aux, outside, seen)
    removed = {"test": int((~fresh).sum()), "aux": len(split.aux) - len(aux)}
    removed |= {} if split.public is None or public is None else {"public": len(split.public) - len(public)}
    _check_left(data.name, split, int(fresh.sum()), len(aux))
    if removed["test"]:
        data = subset(data, torch.ones(len(train), dtype=torch.bool), fresh, keep)
    found = {part: count for part, count in removed.items() if count}
    return Parted(data, replace(split, aux=aux, public=public) if found else split, found)


def without_private(images: Tensor, data: ImageData, split: Split) -> Tensor:
    """Images of another data set without those that are private or test images of this one."""
    train, test = _keys(data.train_images, data.train_marks), _keys(data.test_images, data.test_marks)
    seen = {train[row] for row in split.private.tolist()} | set(test)
    kept = torch.tensor([key not in seen for key in marks.of_images(images)])
    return images if bool(kept.all()) else images[kept]


def near_copies(data: ImageData, split: Split) -> dict[str, int] | None:
    """How many test and attacker's images are nearly a private one; None where only their pixels are known.

    Found are pairs of the same look (`Marks`) whose pixels differ little: a lower bound, as a look may differ by a bit.
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


def _check_left(name: str, split: Split, tests: int, aux: int) -> None:
    if not tests:
        raise BenchError(f"data set '{name}': every test image is a private one too; give it other test images")
    if not aux and len(split.aux) and split.aux_dataset is None:
        raise BenchError(
            f"data set '{name}': every image of the attacker in split '{split.name}' is a private or a test image too; "
            "use another split"
        )
