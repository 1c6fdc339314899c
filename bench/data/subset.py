"""Select records of a data set together with all their attributes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.data.images import ImageData
from bench.data.request import Keep
from bench.data.rows import take

if TYPE_CHECKING:
    from torch import Tensor

ONE_IN = 6
"""One in this many records is held out if a data set has no test part."""


def subset(data: ImageData, train: Tensor, test: Tensor, keep: Keep | None) -> ImageData:
    """Select training and test records by masks, (n,) and (m,) bool; a part that is kept whole is not copied."""
    rows = {"train": train.nonzero().flatten(), "test": test.nonzero().flatten()}
    content = data.fingerprint
    images = {"train": data.train_images, "test": data.test_images}
    taken = {part: take(images[part], rows[part], keep, f"{content}-{part}") for part in rows}
    return replace(
        data,
        train_images=taken["train"],
        train_labels=data.train_labels[train],
        test_images=taken["test"],
        test_labels=data.test_labels[test],
        train_people=None if data.train_people is None else data.train_people[train],
        test_people=None if data.test_people is None else data.test_people[test],
        train_marks=None if data.train_marks is None else data.train_marks[rows["train"].numpy()],
        test_marks=None if data.test_marks is None else data.test_marks[rows["test"].numpy()],
    )


def held_out(count: int) -> Tensor:
    """Return (n,) bool: the sixth of n records whose indices have the smallest SHA-256.

    The choice depends only on the indices, so that no record decides whether another one is private.
    """
    import torch

    order = sorted(range(count), key=lambda number: hashlib.sha256(f"test:{number}".encode()).digest())
    is_test = torch.zeros(count, dtype=torch.bool)
    is_test[order[: count // ONE_IN]] = True
    return is_test
