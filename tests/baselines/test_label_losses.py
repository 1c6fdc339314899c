"""Losses on randomised labels: unbiased, by Bayes, by the noise of the labels, each record by its own label."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from label_privacy_made import convert, law, watched
from torch import Tensor

from baselines.alibi import Alibi, log_likelihood, posterior_loss
from baselines.rr import Rr, forward_loss
from baselines.rr_debiased import RrDebiased, debiased_loss
from bench.dp_training.noisy_label_training import LabelPrivate, RowLoss, cross_entropy
from bench.privacy import Budget
from bench.testing import CLASSES

# The losses.


def test_debiased_loss_is_unbiased_for_every_label() -> None:
    """The sum over all randomised labels of P[response | label] times the loss is the cross-entropy to the label."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(5, 6, dtype=torch.float64)
    for eps in (0.1, 1.0, 4.0, 20.0):
        kept = math.exp(eps) / (math.exp(eps) + 5)
        other = 1 / (math.exp(eps) + 5)
        for label in range(6):
            mean = torch.zeros(5, dtype=torch.float64)
            for answer in range(6):
                noisy = torch.full((5,), answer)
                chance = kept if answer == label else other
                mean += chance * debiased_loss(noisy, 6, eps)(logits, torch.arange(5), 0.0)
            exact = F.cross_entropy(logits, torch.full((5,), label), reduction="none")
            torch.testing.assert_close(mean, exact, rtol=1e-9, atol=1e-9)


def test_debiased_loss_matches_the_paper() -> None:
    logits, k, eps = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), 3, 1.5
    p = k / (math.exp(eps) + k - 1)
    each = -logits.log_softmax(1)[0]
    expected = (each[1] - p / k * each.sum()) / (1 - p)
    found = debiased_loss(torch.tensor([1]), k, eps)(logits, torch.tensor([0]), 0.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)
    plain = debiased_loss(torch.tensor([1]), k, math.inf)(logits, torch.tensor([0]), 0.0)
    assert float(plain) == pytest.approx(float(each[1]), rel=1e-12)


def test_forward_loss_by_hand() -> None:
    logits, eps = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), 0.7
    t = (math.exp(eps) - 1) * np.eye(3) + 1
    implied = logits.softmax(1)[0].numpy() @ (t / t.sum(1, keepdims=True))
    for answer in range(3):
        found = forward_loss(torch.tensor([answer]), 3, eps)(logits, torch.tensor([0]), 0.0)
        assert float(found) == pytest.approx(-math.log(implied[answer]), rel=1e-12)
    far = torch.tensor([[500.0, 0.0]], requires_grad=True)
    forward_loss(torch.tensor([1]), 2, math.inf)(far, torch.tensor([0]), 0.0).sum().backward()
    assert far.grad is not None and far.grad.isfinite().all()


@pytest.mark.parametrize(
    ("noise", "scale"), [("laplace", 0.25), ("laplace", 2.0), ("gaussian", 0.7), ("gaussian", 3.0)]
)
def test_alibi_target_is_the_bayes_posterior(noise: Any, scale: float) -> None:
    """Against the product of K densities per class; the target is the loss's gradient plus the softmax."""
    rng = np.random.default_rng(0)
    observed = rng.normal(size=(7, 4)) * 2
    logits = torch.tensor(rng.normal(size=(7, 4)), requires_grad=True)
    densities = np.stack([law(noise, scale).pdf(observed - np.eye(4)[c]).prod(1) for c in range(4)], 1)
    evidence = log_likelihood(torch.tensor(observed), scale, noise)
    for uniform, prior in ((0.0, logits.detach().softmax(1).numpy()), (1.0, np.full((7, 4), 0.25))):
        bayes = prior * densities / (prior * densities).sum(1, keepdims=True)
        loss = posterior_loss(evidence, uniform)(logits, torch.arange(7), 0.5)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        np.testing.assert_allclose(logits.detach().softmax(1).numpy() - gradient.numpy(), bayes, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(("noise", "scale"), [("laplace", 0.5), ("gaussian", 0.8)])
def test_posterior_averages_to_the_prior(noise: Any, scale: float) -> None:
    """Integrated over all noisy labels of two classes, on a fine grid, and over the label."""
    x = np.arange(-12, 13, 0.02) + 0.01
    o = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    prior = np.array([0.8, 0.2])
    density = np.stack([law(noise, scale).pdf(o - np.eye(2)[c]).prod(1) for c in range(2)], 1)
    evidence = log_likelihood(torch.tensor(o), scale, noise).numpy()
    posterior = prior * np.exp(evidence - evidence.max(1, keepdims=True))
    posterior /= posterior.sum(1, keepdims=True)
    cell = 0.02**2
    assert (density.sum(0) * cell) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose((density @ prior)[:, None].T @ posterior * cell, prior[None], atol=1e-3)
    right = sum(prior[c] * (density[:, c] * posterior[:, c]).sum() * cell for c in range(2))
    assert right > 0.75, "the label is informative"


@pytest.mark.parametrize(
    ("cls", "given", "expected"),
    [
        (Rr, {}, cross_entropy),
        (Rr, {"loss": "forward"}, lambda noisy: forward_loss(noisy, CLASSES, 1.7)),
        (RrDebiased, {}, lambda noisy: debiased_loss(noisy, CLASSES, 1.7)),
        (Alibi, {}, lambda noisy: posterior_loss(log_likelihood(noisy, 2 / 1.7, "laplace").float(), 0.0)),
        (Alibi, {"uniform": "0.6"}, lambda noisy: posterior_loss(log_likelihood(noisy, 2 / 1.7, "laplace"), 1.0)),
    ],
)
def test_loss_uses_the_noise_of_the_labels(
    monkeypatch: pytest.MonkeyPatch,
    cls: type[LabelPrivate],
    given: dict[str, str],
    expected: Callable[[Tensor], RowLoss],
) -> None:
    *_, answers = watched(monkeypatch)
    losses: list[RowLoss] = []
    monkeypatch.setattr(LabelPrivate, "train", lambda self, model, images, records, loss, *rest: losses.append(loss))
    convert(cls, Budget(1.7), **given)
    (loss,), (noisy,) = losses, answers
    logits, every = torch.randn(80, CLASSES, generator=torch.Generator().manual_seed(0)), torch.arange(80)
    torch.testing.assert_close(loss(logits, every, 0.5), expected(noisy)(logits, every, 0.5), check_dtype=False)


@pytest.mark.parametrize(
    "made",
    [
        cross_entropy,
        lambda noisy: forward_loss(noisy, 4, 1.0),
        lambda noisy: debiased_loss(noisy, 4, 1.0),
        lambda noisy: posterior_loss(2.0 * F.one_hot(noisy, 4), 0.0),
    ],
)
def test_loss_is_independent_of_batch_position(made: Callable[[Tensor], RowLoss]) -> None:
    logits, chosen = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 3, 5])
    loss = made(torch.tensor([0, 1, 2, 3, 1, 2]))
    torch.testing.assert_close(loss(logits[chosen], chosen, 0.0), loss(logits, torch.arange(6), 0.0)[chosen])
