"""Likelihood ratios of a record: its probability under the target over that under models not trained on it.

The scores of RMIA (Zarifzadeh, Liu, Shokri, ICML 2024) and of BASE (Lassila, Östman, Ngo, Graell i Amat, NeurIPS 2025)
for one record. Online with temperature 1, BASE is the logarithm of RMIA's ratio.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bench.membership.confidences import TINY, true_class_probability


def marginal(pbar: Tensor, a: float) -> Tensor:
    """Return RMIA's p(x) = ((1 + a) pbar + 1 - a) / 2: the mean over all models, from those not trained on x.

    Args:
        pbar: mean probability under models that were not trained on x; with these, p(x) is positive for a in [0, 1].
        a: constant from 0 to 1.
    """
    return ((1 + a) * pbar + 1 - a) / 2


def tempered_log_probability(probabilities: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return (n,) log-probabilities of the true class of softmax(z / T), from the probabilities softmax(z).

    log p_y = -log(1 + sum_{j != y} (p_j / p_y)^(1 / T)), without the rounding of 1 - p_y near p_y = 1.

    Args:
        probabilities: (n, classes) float64, converted from float32 responses.
        labels: (n,) int64.
        temperature: T > 0.
    """
    ratios = probabilities.clamp_min(TINY).log() - true_class_probability(probabilities, labels).log().unsqueeze(1)
    others = (ratios / temperature).scatter(1, labels.unsqueeze(1), -math.inf)
    return -softplus(torch.logsumexp(others, 1), threshold=700)


def log_mean(log_probabilities: Tensor) -> Tensor:
    """Return the logarithm of the mean probability over the first dimension."""
    return torch.logsumexp(log_probabilities, 0) - math.log(len(log_probabilities))


def rmia_log_ratio(px: Tensor, outside: Tensor, a: float) -> Tensor:
    """Return (n,) log(p(x | theta) / p(x)), the offline score of RMIA for one target.

    Args:
        px: (n,) probabilities under the target.
        outside: (k, n) probabilities under models that were not trained on x.
        a: as in `marginal`.
    """
    return px.log() - marginal(outside.mean(0), a).log()


def base_score(own: Tensor, outside: Tensor, weight: float) -> Tensor:
    """Return (n,) offline scores of BASE.

    Args:
        own: (n,) tempered log-probabilities under the target.
        outside: (k, n) tempered log-probabilities under models that were not trained on x.
        weight: from 0 to 1, of the models' log mean probability.
    """
    return own - weight * log_mean(outside)
