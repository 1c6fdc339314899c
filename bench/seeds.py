"""Seeds derived from named parts, so that adding a plug-in moves no other's randomness. Imports nothing of ours."""

from __future__ import annotations

import hashlib

LARGEST_SEED = 2**63 - 1
"""A user may give; a larger one fits no generator, and no number of a record."""


def derive(*parts: object) -> int:
    """A seed in [0, 2^63) that depends on every named part and nothing else.

    >>> derive(0, "teacher") == derive(0, "teacher") != derive(0, "method")
    True
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def ensemble_seed(seed: int, dataset: str, split: str) -> int:
    """The seed of an ensemble of teachers on disjoint parts of a data set's private records."""
    return derive(seed, "ensemble", dataset, split)


def clients_seed(seed: int, dataset: str, split: str) -> int:
    """In [0, 2^32): who holds which private record, of an ensemble and of every federation that is simulated.

    It names no method, so that all federations of one run's seed have the same clients.
    """
    return derive(ensemble_seed(seed, dataset, split), "partition") % 2**32
