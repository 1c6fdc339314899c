"""Seeds derived from named parts, so that new plug-ins do not change the randomness of others. Imports no own
module."""

from __future__ import annotations

import hashlib

LARGEST_SEED = 2**63 - 1
"""Largest seed of a user; a larger one fits neither the generators nor the numbers of a record."""


def derive(*parts: object) -> int:
    """Return a seed in [0, 2^63) that depends on every named part and nothing else.

    >>> derive(0, "teacher") == derive(0, "teacher") != derive(0, "method")
    True
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def ensemble_seed(seed: int, dataset: str, split: str) -> int:
    """Return the seed of an ensemble of teachers on disjoint parts of a data set's private records."""
    return derive(seed, "ensemble", dataset, split)


def clients_seed(seed: int, dataset: str, split: str) -> int:
    """Return the seed in [0, 2^32) of the partition of private records, for ensembles and simulated federations.

    It does not depend on the method, so that all federations with a run's seed have the same clients.
    """
    return derive(ensemble_seed(seed, dataset, split), "partition") % 2**32
