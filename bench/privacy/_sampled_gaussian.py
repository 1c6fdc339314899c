"""Vectorised privacy loss distribution of a Poisson-sampled Gaussian, equal to dp_accounting's.

dp_accounting 0.6.0 inverts the privacy loss point by point in Python: one to two seconds for a grid of 400,000 points,
which the search for a noise multiplier repeats many times. Here the same deltas are computed with arrays; the connected
dots, the tails and the distribution functions are dp_accounting's. `tests/privacy/test_privacy_sampled_gaussian.py`
compares both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def sampled_gaussian(probability: float, multiplier: float, step: float) -> pld.PrivacyLossDistribution:
    """Return the losses of noise `multiplier` on a Poisson sample, for one added or removed record.

    Args:
        probability: in (0, 1), the sampling probability of every record.
        multiplier: > 0.
        step: of the grid of privacy losses, > 0.
    """
    remove, add = (_dots(probability, multiplier, step, kind) for kind in (AdjacencyType.REMOVE, AdjacencyType.ADD))
    return pld.PrivacyLossDistribution(remove, add)


def _dots(probability: float, multiplier: float, step: float, kind: AdjacencyType) -> pld_pmf.PLDPmf:
    loss = GaussianPrivacyLoss(multiplier, sampling_prob=probability, adjacency_type=kind)
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
    deltas = _deltas(loss, probability, multiplier, np.arange(low, high + 1) * step, kind)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas)


def _deltas(loss: GaussianPrivacyLoss, q: float, multiplier: float, epsilons: Array, kind: AdjacencyType) -> Array:
    """Return the hockey-stick divergence at each epsilon, P[loss >= eps] - e^eps Q[loss >= eps].

    With L(x) = -(x + 1/2) / multiplier^2 the loss of the unsampled Gaussian, the sampled loss is log(1 - q + q e^L(x))
    for a removed record, and its negative at -x for an added one.
    """
    sign = 1.0 if kind is AdjacencyType.REMOVE else -1.0
    edge = math.log1p(-q)  # no such x exists below it, or above its negative
    inner = sign * epsilons > edge
    # Epsilons outside are negative, for a removed record; for the others e^eps cannot overflow
    deltas = np.where(inner, 0.0, -np.expm1(np.minimum(epsilons, 0.0)) if kind is AdjacencyType.REMOVE else 0.0)
    eps = sign * epsilons[inner]
    with np.errstate(divide="ignore"):  # at the edge itself the unsampled loss is minus infinity
        unsampled = eps - math.log(q) + np.log1p(-np.exp(edge - eps))
    x = sign * (-0.5 - unsampled * multiplier**2)
    deltas[inner] = loss.mu_upper_cdf(x) - np.exp(epsilons[inner] + loss.mu_lower_log_cdf(x))
    return np.clip(deltas, 0.0, 1.0)
