"""What an answer is read as: Bayes' theorem by hand, and calibrated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.posterior_mean import (
    LEAST_SIGMA,
    posterior_mean_of_gradients,
    posterior_mean_of_response,
)


def normalised(ours: Tensor, theirs: Tensor, beta: float) -> Tensor:
    g = gradient_at_output(kd_loss, ours, theirs)
    return beta * g / g.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("sigma", [1.0, 0.01])
def test_the_posterior_of_gradients_by_hand(sigma: float) -> None:
    """Teachers 90 % sure of one of 3 classes answer beta (p_s - p_r) / ||p_s - p_r||: Bayes' theorem written out."""
    beta, p_s = 0.5, torch.tensor([[0.5, 0.3, 0.2]])
    answers = torch.tensor([[0.2, -0.4, 0.3]])
    sure = torch.full((3, 3), 0.05).fill_diagonal_(0.9)
    std = max(sigma, LEAST_SIGMA) * beta
    weights = []
    for r in range(3):
        g = (p_s - sure[r])[0]
        missed = [a - beta * x / float(g.norm()) for a, x in zip(answers[0].tolist(), g.tolist(), strict=True)]
        weights.append(math.exp(-sum(m * m for m in missed) / (2 * std**2)))
    by_hand = sum(w / sum(weights) * sure[r] for r, w in enumerate(weights))
    found = posterior_mean_of_gradients(answers, p_s.log(), lambda s, t: normalised(s, t, beta), beta, sigma)
    assert torch.allclose(found[0], by_hand, atol=1e-5)


def test_the_posterior_of_gradients_is_calibrated() -> None:
    """Where teachers are as sure as it assumes, a class given probability p is right in p of all cases."""
    rng = torch.Generator().manual_seed(3)
    n, beta, sigma = 4000, 0.1, 0.4
    ours, r = torch.randn(n, 3, generator=rng), torch.randint(3, (n,), generator=rng)
    sure = torch.full((3, 3), 0.05).fill_diagonal_(0.9)
    noise = sigma * beta * torch.randn(n, 3, generator=rng)
    answers = normalised(ours, sure[r].log(), beta) + noise
    found = posterior_mean_of_gradients(answers, ours, lambda s, t: normalised(s, t, beta), beta, sigma)
    of_class = (found - 0.05) / 0.85
    right = (of_class.argmax(1) == r).float().mean()
    assert 0.5 < right < 0.99 and abs(float(of_class.amax(1).mean() - right)) < 0.02


def test_the_posterior_of_a_response_by_hand() -> None:
    """Candidates 2 and 0 of 3 classes, epsilon = ln 3: kept with 3/4, else 1/4; the class outside answers either."""
    found = posterior_mean_of_response(torch.tensor([2]), torch.tensor([[2, 0]]), 3, math.log(3))
    weights = [1 / 4, 1 / 2, 3 / 4]
    assert found[0].tolist() == pytest.approx([w / sum(weights) for w in weights])
