"""Records with a wrong label, which nobody could guess who was not taught it: split `canaries`.

Jagielski et al., "Students parrot their teachers", NeurIPS 2023 (arXiv 2303.03446), and the audits of one training run
ask about such records: of clean ones a network that generalises tells next to nothing, and the record that a release
gives away first is the one that nothing else explains.
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
"""Of the private records at most one in so many has a wrong label."""


def canaries(name: str, private: LongTensor) -> LongTensor:
    """(m,) ascending rows of the private part whose label is wrong: of n records min(1000, n // 20), chosen by hash.

    Args:
        name: of the data set.
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
    """(m,) int64, another class for each of (m,) labels, by the hash of its index.

    Args:
        where: what the indices are into; of the training set and of the test set the same index has labels of its own.
        classes: 2 or more.
    """
    import torch

    moved = [1 + int.from_bytes(_hash(f"{where} label {index}")[:8], "big") % (classes - 1) for index in indices]
    return (labels + torch.tensor(moved)) % classes


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
