"""Canaries: mislabelled records that only a model trained on them can predict (split `canaries`).

Jagielski et al., "Students parrot their teachers", NeurIPS 2023 (arXiv 2303.03446), and audits of one training run
query such records. A network that generalises predicts clean records with or without training on them, so that they
reveal little; a mislabelled record is explained only by itself and leaks first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.errors import BadData

if TYPE_CHECKING:
    from torch import LongTensor, Tensor

SPLIT = "canaries"
MOST = 1000
_SHARE = 20
"""At most one in this many private records is mislabelled."""


def canaries(name: str, private: LongTensor) -> LongTensor:
    """Return the (m,) ascending rows of the private part to mislabel: of n records min(1000, n // 20), chosen by hash.

    Args:
        name: name of the data set.
        private: (n,) indices into its training set.

    Raises:
        BenchError: fewer than 20 private records.
    """
    import torch

    count = min(MOST, len(private) // _SHARE)
    if not count:
        raise BadData(
            f"split 'canaries' needs {_SHARE} or more private images; data set '{name}' has {len(private)}; use iid"
        )
    hashes = [_hash(f"{name}:canary {index}") for index in private.tolist()]
    chosen = sorted(range(len(hashes)), key=hashes.__getitem__)[:count]
    return torch.tensor(sorted(chosen))  # type: ignore[return-value]


def wrong_labels(where: str, indices: Iterable[int], labels: Tensor, classes: int) -> Tensor:
    """Return (m,) int64: a different class for each of (m,) labels, chosen by the hash of its index.

    Args:
        where: the set of the indices; the same index gets separate labels in the training set and the test set.
        classes: 2 or more.
    """
    import torch

    moved = [1 + int.from_bytes(_hash(f"{where} label {index}")[:8], "big") % (classes - 1) for index in indices]
    return (labels + torch.tensor(moved)) % classes


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
