"""The privacy loss distribution of a Poisson-sampled Gaussian, as dp_accounting makes it, a grid at a time.

dp_accounting 0.6.0 inverts the privacy loss point by point in Python: a second or two for a grid of 400,000, which a
search for a noise multiplier asks for again and again. Here the same deltas are computed by arrays; the connected dots,
the tails and the distribution functions are dp_accounting's. `tests/privacy/test_privacy_sampled_gaussian.py` compares.
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
    """One use of noise `multiplier` times the sensitivity on a Poisson sample, under adding or removing one record.

    Args:
        probability: in (0, 1), of every record.
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
    """The hockey-stick divergence at each epsilon: P[loss >= eps] - e^eps Q[loss >= eps], both by where it begins.

    With L(x) = -(x + 1/2) / multiplier^2 the loss of the Gaussian that is not sampled, that of the sampled one is
    log(1 - q + q e^L(x)) where a record is removed, and its negative at -x where one is added.
    """
    sign = 1.0 if kind is AdjacencyType.REMOVE else -1.0
    edge = math.log1p(-q)  # below it, or above its negative, there is no such x
    inner = sign * epsilons > edge
    # Those outside are negative, where a record is removed, and no e^eps of the others overflows
    deltas = np.where(inner, 0.0, -np.expm1(np.minimum(epsilons, 0.0)) if kind is AdjacencyType.REMOVE else 0.0)
    eps = sign * epsilons[inner]
    with np.errstate(divide="ignore"):  # at the edge itself the unsampled loss is minus infinity
        unsampled = eps - math.log(q) + np.log1p(-np.exp(edge - eps))
    x = sign * (-0.5 - unsampled * multiplier**2)
    deltas[inner] = loss.mu_upper_cdf(x) - np.exp(epsilons[inner] + loss.mu_lower_log_cdf(x))
    return np.clip(deltas, 0.0, 1.0)
