"""What a noisy answer says of the teacher's class: its likelihood under each class, and the loss that maximises it.

A row of log-likelihoods is all that is kept of an answer. Post-processing, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SURE = 0.98
"""Probability that a teacher is taken to give its own class; all others share the rest evenly."""
LEAST_SIGMA = 0.15
"""Noise over beta below which answers are believed no more: no teacher is exactly as sure as assumed here."""
LEAST_ODDS = 1e-5
"""Of an answer without noise: how likely it is under another class, as if one answer in so many were wrong."""


def response_log_likelihood(answers: Tensor, allowed: Tensor, epsilon: float) -> Tensor:
    """(n, c): log P(answer | the teacher's class is r) of randomised responses.

    A candidate r answers o with probability e^epsilon / (e^epsilon + k - 1) if o = r, else 1 / (e^epsilon + k - 1); a
    class that is no candidate answers with each of the k candidates equally often.

    Args:
        answers: (n,) int64, candidates of their rows.
        allowed: (n, c) bool, the k >= 2 candidates, whose number may differ from row to row.
        epsilon: of one response; may be infinite.
    """
    k = allowed.sum(1, keepdim=True).float()
    odds = max(math.exp(-epsilon), LEAST_ODDS)
    stay = 1 / (1 + (k - 1) * odds)
    inside = torch.where(F.one_hot(answers, allowed.shape[1]).bool(), stay, stay * odds)
    return torch.where(allowed, inside, 1 / k).log()


def more_often_wrong(epsilon: float, candidates: int) -> bool:
    """Whether randomised responses of that epsilon over k candidates are wrong more often than right: e^eps < k - 1."""
    return epsilon < math.log(max(candidates - 1, 1))


def gradient_log_likelihood(answers: Tensor, expected: Tensor, beta: float, sigma: float) -> Tensor:
    """(n, c): log P(answer | r) of noisy gradients, up to a constant per row; the largest is 0.

    Args:
        answers: (n, c) rows.
        expected: (n, c, c) or (1, c, c), the answer without noise where the teacher is sure of r, for every r.
        beta: norm of an answer without noise.
        sigma: noise over beta, >= 0.
    """
    rows, means = answers / beta, expected / beta
    squares = rows.square().sum(1, keepdim=True) - 2 * (means @ rows[:, :, None])[:, :, 0] + means.square().sum(2)
    found = -squares / (2 * max(sigma, LEAST_SIGMA) ** 2)
    return found - found.amax(1, keepdim=True)


def expected_gradients(gradient: Callable[[Tensor, Tensor], Tensor], ours: Tensor) -> Tensor:
    """(n, c, c): row r is what a teacher that is sure of class r would answer, without noise.

    Such a teacher is the same to all other classes, of which top-k keeps some: the mean over which of them.

    Args:
        gradient: (n, c) student's and (n, c) teacher's logits to (n, c) bounded gradients.
        ours: (n, c) the student's logits.
    """
    classes = ours.shape[1]
    sure = torch.full((classes, classes), (1 - SURE) / (classes - 1), device=ours.device).fill_diagonal_(SURE)
    rows = torch.stack([gradient(ours, sure[r].log().expand_as(ours)) for r in range(classes)], 1)
    # Where the student is flat, the others are tied, and top-k keeps those that happen to come first
    tied = ours.amax(1) == ours.amin(1)
    own = torch.diagonal(rows, dim1=1, dim2=2)
    others = (rows.sum(2) - own) / (classes - 1)
    even = others[:, :, None].expand_as(rows) + torch.diag_embed(own - others)
    return torch.where(tied[:, None, None], even, rows)


def likelihood_loss(logits: Tensor, log_likelihood: Tensor) -> Tensor:
    """Batch mean of -log sum_r p_s(r | x) P(answer | r): (n, c) logits of the student, (n, c) rows of an answer.

    The marginal likelihood of what was answered ("forward correction", Patrini et al., CVPR 2017).
    """
    return -(logits.log_softmax(1) + log_likelihood).logsumexp(1).mean()


def soft_loss(logits: Tensor, answers: Tensor) -> Tensor:
    """Batch mean of the cross-entropy of (n, classes) logits to answers given as log-probabilities."""
    return -(answers.exp() * logits.log_softmax(1)).sum(1).mean()
