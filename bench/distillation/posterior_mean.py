"""What an answer says of the teacher's class: the posterior mean over teachers that are sure of one class each.

The likelihood is that of the mechanism, the prior is flat. Post-processing of the answers, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SURE, OTHERS = 0.9, 0.1
"""Probabilities that a teacher is taken to give its own class, and all others together."""
LEAST_SIGMA = 0.15
"""Noise over beta below which answers are believed no more: no teacher is exactly as sure as assumed here."""


def posterior_mean_of_gradients(
    answers: Tensor, ours: Tensor, expected: Callable[[Tensor, Tensor], Tensor], beta: float, sigma: float
) -> Tensor:
    """(n, c): teachers sure of each class r, weighted by the Gaussian likelihood of the answer expected of them.

    Args:
        answers: (n, c) noisy gradients.
        ours: (n, c) the student's logits.
        expected: (n, c) student's and teacher's logits to the (n, c) answer without noise.
        beta: norm of an answer without noise.
        sigma: noise over beta.
    """
    n, classes = ours.shape
    sure = torch.full((classes, classes), OTHERS / (classes - 1), device=ours.device).fill_diagonal_(SURE)
    std = max(sigma, LEAST_SIGMA) * beta
    likely = [
        -(answers - expected(ours, sure[r].log().expand(n, -1))).square().sum(1) / (2 * std**2) for r in range(classes)
    ]
    return torch.stack(likely, 1).softmax(1) @ sure


def posterior_mean_of_response(answers: Tensor, candidates: Tensor, classes: int, epsilon: float) -> Tensor:
    """Each true class's probability given its randomised response, all classes being equally likely before.

    A candidate r answers o with probability e^epsilon / (e^epsilon + k - 1) if o = r, else 1 / (e^epsilon + k - 1);
    a class that is no candidate answers o with probability 1 / k.

    Args:
        answers: (n,) int64, among the row's candidates.
        candidates: (n, k) int64.
        classes: c.
        epsilon: of one response; may be infinite.

    Returns:
        (n, c), rows sum to 1.
    """
    k = candidates.shape[1]
    odds = math.exp(-epsilon)
    stay = 1 / (1 + (k - 1) * odds)
    likelihood = torch.full((len(answers), classes), 1 / k, device=answers.device)
    likelihood.scatter_(1, candidates, stay * odds).scatter_(1, answers[:, None], stay)
    return likelihood / likelihood.sum(1, keepdim=True)
