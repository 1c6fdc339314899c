"""Entropies, capacities and channels, computed by their definitions."""

from __future__ import annotations

import numpy as np


def entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def mutual_information(joint: np.ndarray) -> float:
    """Return the mutual information of the two axes of a table of probabilities, in nats."""
    return entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint.ravel())
