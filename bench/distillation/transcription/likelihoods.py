"""Readings of noisy responses: the likelihood of a response under each class of the teacher, and losses that use it.

A reading is a row log P(response | r), r = 1, ..., c. It is all that is stored of a response, and post-processing of
it, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CONFIDENCE = 0.98
"""Assumed probability that a teacher gives to its predicted class; the rest is shared evenly by the other classes."""
LEAST_SIGMA = 0.15
"""Smallest noise over beta used in likelihoods: real teachers are never exactly as confident as assumed here."""
LEAST_ODDS = 1e-5
"""Smallest odds of an error used in likelihoods, so that no class has likelihood 0 for a response without noise."""


def response_log_likelihood(responses: Tensor, allowed: Tensor, epsilon: float) -> Tensor:
    """Return (n, c): log P(response | the teacher's class is r) of randomised responses (DPSD, Eq. 4).

    For a candidate r, response o has probability e^epsilon / (e^epsilon + k - 1) if o = r, else 1 / (e^epsilon + k -
    1); for a class that is not a candidate, each of the k candidates is equally likely.

    Args:
        responses: (n,) int64, each a candidate of its row.
        allowed: (n, c) bool, the k >= 2 candidates, whose number may differ between rows.
        epsilon: epsilon of one response; may be infinite.
    """
    k = allowed.sum(1, keepdim=True).float()
    odds = max(math.exp(-epsilon), LEAST_ODDS)
    stay = 1 / (1 + (k - 1) * odds)
    inside = torch.where(F.one_hot(responses, allowed.shape[1]).bool(), stay, stay * odds)
    return torch.where(allowed, inside, 1 / k).log()


def is_mostly_wrong(epsilon: float, candidates: int) -> bool:
    """Return whether randomised response over k candidates is more often wrong than right: e^epsilon < k - 1."""
    return epsilon < math.log(max(candidates - 1, 1))


def gradient_log_likelihood(gradients: Tensor, expected: Tensor, beta: float, sigma: float) -> Tensor:
    """Return (n, c): log P(response | r) of noisy gradients, up to a constant per row; the largest is 0.

    The response g is Gaussian around the noiseless response m_r of a teacher that is confident of class r:
    log P(g | r) = -||g - m_r||^2 / (2 sigma^2 beta^2).

    Args:
        gradients: (n, c) noisy gradients g.
        expected: (n, c, c) or (1, c, c), m_r for every r.
        beta: norm of a noiseless response.
        sigma: noise over beta, >= 0.
    """
    rows, means = gradients / beta, expected / beta
    squares = rows.square().sum(1, keepdim=True) - 2 * (means @ rows[:, :, None])[:, :, 0] + means.square().sum(2)
    found = -squares / (2 * max(sigma, LEAST_SIGMA) ** 2)
    return found - found.amax(1, keepdim=True)


def expected_gradients(gradient: Callable[[Tensor, Tensor], Tensor], student: Tensor) -> Tensor:
    """Return (n, c, c): row r is the noiseless response of a teacher that is confident of class r.

    Such a teacher is indifferent between all other classes, of which top-k keeps some; the result averages over that
    choice.

    Args:
        gradient: maps (n, c) student and (n, c) teacher logits to (n, c) bounded gradients.
        student: (n, c) student logits.
    """
    classes = student.shape[1]
    confident = torch.full((classes, classes), (1 - CONFIDENCE) / (classes - 1), device=student.device).fill_diagonal_(
        CONFIDENCE
    )
    rows = torch.stack([gradient(student, confident[r].log().expand_as(student)) for r in range(classes)], 1)
    # For a flat student the other classes are tied, and top-k keeps the first ones by index
    tied = student.amax(1) == student.amin(1)
    own = torch.diagonal(rows, dim1=1, dim2=2)
    others = (rows.sum(2) - own) / (classes - 1)
    even = others[:, :, None].expand_as(rows) + torch.diag_embed(own - others)
    return torch.where(tied[:, None, None], even, rows)


def likelihood_loss(logits: Tensor, log_likelihood: Tensor) -> Tensor:
    """Return the batch mean of -log sum_r p_s(r | x) P(response | r), for (n, c) student logits and (n, c) readings.

    This is the marginal likelihood of the responses ("forward correction", Patrini et al., CVPR 2017).
    """
    return -(logits.log_softmax(1) + log_likelihood).logsumexp(1).mean()


def soft_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of (n, classes) logits to (n, classes) targets given as log-probabilities."""
    return -(targets.exp() * logits.log_softmax(1)).sum(1).mean()
