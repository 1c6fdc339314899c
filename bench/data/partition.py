"""Partition private records: disjoint parts for the teachers of an ensemble or the clients of a federation."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import BadOption, unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PARTITIONS = {
    "hash": "each record by the hash of its pixels, so that no record decides where another one goes",
    "dirichlet": "each class by Dirichlet(alpha) shares",
    "dirichlet-balanced": "as dirichlet, but a client with its equal share gets no more (DENSE)",
}
SMALLEST_CLIENT = 10
MOST_DRAWS = 1000

Parts = list["NDArray[np.int64]"]


def partition(images: Tensor, labels: Tensor, count: int, name: str, alpha: float, seed: int) -> Parts:
    """Partition records among `count` holders, the teachers of an ensemble or the clients of a federation.

    Args:
        images: (n, c, h, w) uint8.
        labels: (n,) int64.
        name: a key of `PARTITIONS`.
        alpha: > 0, concentration of the Dirichlet partitions; if it is small, each holder has few classes.
        seed: the hash's salt or the seed of the Dirichlet draws; in [0, 2^32).

    Returns:
        `count` disjoint index arrays that together contain every record; those of `hash` may be empty.

    Raises:
        BenchError: an unknown name, fewer records than holders, or Dirichlet draws that always left a holder with
            fewer than 10 records.
    """
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    if not 1 <= count <= len(images):
        raise BadOption(f"{count} teachers or clients for {len(images)} private records: expected 1 to that many")
    if name == "hash":
        return by_hash(images, count, seed)
    return by_dirichlet(labels.numpy(), count, alpha, seed, balanced=name == "dirichlet-balanced")


def with_guests(images: Tensor, labels: Tensor, guests: int, count: int, name: str, alpha: float, seed: int) -> Parts:
    """Partition as `partition`, except that the last `guests` records, an audit's canaries, are assigned by their hash.

    The guarantee is for one record of one holder, so the holders of the other records must not depend on the canaries.
    For `hash` the result is that of `partition`. Raises BenchError as `partition`.
    """
    others = len(images) - guests
    parts = partition(images[:others], labels[:others], count, name, alpha, seed)
    if not guests:
        return parts
    guest_parts = by_hash(images[others:], count, seed)
    return [np.concatenate([part, others + rows]) for part, rows in zip(parts, guest_parts, strict=True)]


def by_hash(images: Tensor, count: int, seed: int) -> Parts:
    """Assign each record to holder SHA-256(seed, its pixels) mod count, independently of its label and other records.

    So adding or removing one record changes one part, and replacing one changes at most two.
    """
    salt = f"{seed}:".encode()
    rows = np.ascontiguousarray(images.numpy()).reshape(len(images), -1)
    holder = np.array([int.from_bytes(hashlib.sha256(salt + row.tobytes()).digest()[:8]) % count for row in rows])
    return [np.flatnonzero(holder == j) for j in range(count)]


def by_dirichlet(labels: NDArray[np.int64], count: int, alpha: float, seed: int, balanced: bool) -> Parts:
    """Divide each class's shuffled records by shares drawn from Dirichlet(alpha), until every holder has 10 records.

    With fewer than 10 records per holder on average, that average, rounded down, is enough.
    `balanced` sets the share of a holder that already has its equal part of all records to 0, as the federated
    comparison of DENSE does (Zhang et al., NeurIPS 2022). If alpha is so small that all shares underflow, one random
    eligible holder gets the class, which is the limit for alpha to 0. The draws come from NumPy's legacy generator,
    which reproduces that comparison's client sizes.

    Raises:
        BenchError: `alpha` is not above 0, or 1000 draws all failed.
    """
    if not alpha > 0:
        raise BadOption(f"Dirichlet alpha {alpha}: expected more than 0, such as 0.5")
    random = np.random.RandomState(seed)
    for _ in range(MOST_DRAWS):
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(count)]
        sizes = np.zeros(count, dtype=np.int64)
        for label in range(int(labels.max()) + 1):
            members = np.flatnonzero(labels == label)
            random.shuffle(members)
            shares = random.dirichlet(np.repeat(alpha, count))
            eligible = np.flatnonzero(sizes < len(labels) / count) if balanced else np.arange(count)
            if not shares[eligible].sum() > 0:  # NaN if a tiny alpha underflows
                shares = np.eye(count)[random.choice(eligible)]
            shares = np.where(np.isin(np.arange(count), eligible), shares, 0.0)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(int)[:-1]
            for j, piece in enumerate(np.split(members, cuts)):
                parts[j].append(piece)
                sizes[j] += len(piece)
        if int(sizes.min()) >= min(SMALLEST_CLIENT, len(labels) // count):
            joined = [np.concatenate(pieces) for pieces in parts]
            for part in joined:
                random.shuffle(part)
            return joined
    raise BadOption(
        f"Dirichlet({alpha:g}) over {count} clients left one below {SMALLEST_CLIENT} of {len(labels)} records "
        f"in {MOST_DRAWS} draws: use fewer clients or a larger alpha"
    )
