"""Likelihood of the teacher's class given a noisy response."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.transcription.likelihoods import (
    LEAST_SIGMA,
    expected_gradients,
    gradient_log_likelihood,
    is_mostly_wrong,
    likelihood_loss,
    response_log_likelihood,
)
from bench.privacy.mechanisms import gaussian_rows, keep_top_k, normalise_rows, randomised_response

CLASSES = 5


def test_response_log_likelihood_by_hand() -> None:
    """epsilon = ln 3: of two candidates 3/4 and 1/4, of three 3/5 and 1/5; a class outside has equal responses."""
    allowed = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]).bool()
    found = response_log_likelihood(torch.tensor([1, 4]), allowed, math.log(3)).exp()
    by_hand = [[1 / 4, 3 / 4, 1 / 2, 1 / 2, 1 / 2], [1 / 5, 1 / 3, 1 / 5, 1 / 3, 3 / 5]]
    assert torch.allclose(found, torch.tensor(by_hand))


@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.5), (3, 1.0), (5, 2.0)])
def test_response_log_likelihood_matches_the_mechanism(k: int, epsilon: float) -> None:
    n, rng = 60_000, torch.Generator().manual_seed(0)
    chosen = torch.arange(k)
    allowed = torch.zeros(CLASSES, dtype=torch.bool).scatter(0, chosen, True)
    for r in range(CLASSES):
        responses = randomised_response(torch.full((n,), r), chosen.expand(n, -1), epsilon, rng)
        share = torch.bincount(responses, minlength=CLASSES) / n
        every = torch.arange(k)
        predicted = response_log_likelihood(every, allowed.expand(k, -1), epsilon).exp()[:, r]
        assert torch.allclose(share[:k], predicted, atol=5 * 0.5 / n**0.5)


def test_response_without_noise_keeps_some_doubt() -> None:
    found = response_log_likelihood(torch.tensor([2]), torch.ones(1, CLASSES).bool(), math.inf)
    assert found.isfinite().all() and found[0, 2] > -1e-3 and (found[0, [0, 1, 3, 4]] < -9).all()


def test_is_mostly_wrong_below_log_k_minus_one() -> None:
    """At e^epsilon = k - 1 half of the responses are right; one of two candidates is never mostly wrong."""
    assert is_mostly_wrong(math.log(9) - 0.01, 10) and not is_mostly_wrong(math.log(9) + 0.01, 10)
    assert not is_mostly_wrong(0.01, 2) and not is_mostly_wrong(math.inf, 10)


def bounded(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return normalise_rows(keep_top_k(gradient_at_output(kd_loss, ours, theirs), 3, "magnitude"), 0.01)


def test_expected_gradients_of_a_flat_student_by_hand() -> None:
    expected = expected_gradients(bounded, torch.zeros(1, CLASSES))[0] / 0.01
    for r in range(CLASSES):
        others = torch.cat([expected[r, :r], expected[r, r + 1 :]])
        assert expected[r, r] < -0.8 and torch.allclose(others, others[0].expand(4)) and others[0] > 0
    # u - p at a teacher that is sure with 0.98: -0.78 for its class and two of four others 0.195
    assert float(expected[0, 0]) == pytest.approx(-0.78 / math.sqrt(0.78**2 + 2 * 0.195**2), abs=5e-3)
    assert float(expected[0, 1]) == pytest.approx(0.5 * 0.195 / math.sqrt(0.78**2 + 2 * 0.195**2), abs=5e-3)


def test_expected_gradients_match_the_mechanism() -> None:
    torch.manual_seed(0)
    ours = torch.randn(4, CLASSES)
    expected = expected_gradients(bounded, ours)
    sure = torch.full((CLASSES,), 0.02 / (CLASSES - 1))
    sure[3] = 0.98
    assert torch.allclose(expected[:, 3], bounded(ours, sure.log().expand(4, -1)))


@pytest.mark.parametrize("sigma", [0.2, 0.5, 2.0])
def test_gradient_log_likelihood_is_gaussian(sigma: float) -> None:
    rng, beta = torch.Generator().manual_seed(1), 0.01
    expected = beta * F.normalize(torch.randn(1, CLASSES, CLASSES, generator=rng), dim=2)
    expected = expected * torch.linspace(0.2, 1, CLASSES)[:, None]
    responses = gaussian_rows(expected[0, [1] * 50], sigma * beta, rng)
    found = gradient_log_likelihood(responses, expected, beta, sigma)
    normal = torch.distributions.Normal(0.0, sigma * beta)
    by_hand = normal.log_prob(responses[:, None] - expected).sum(2)
    by_hand = by_hand - by_hand.amax(1, keepdim=True)
    assert torch.allclose(found, by_hand, atol=1e-3)


def test_gradient_log_likelihood_has_a_least_sigma() -> None:
    expected, responses = torch.eye(CLASSES)[None], torch.eye(CLASSES)[:1]
    quiet = gradient_log_likelihood(responses, expected, 1.0, 0.0)
    assert torch.equal(quiet, gradient_log_likelihood(responses, expected, 1.0, LEAST_SIGMA)) and quiet.isfinite().all()


def test_likelihood_loss_by_hand() -> None:
    logits, rows = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]]), torch.tensor([[0.5, 0.25], [1.0, 0.0]]).log()
    by_hand = -(math.log(0.25 * 0.5 + 0.75 * 0.25) + math.log(0.5)) / 2
    assert float(likelihood_loss(logits, rows)) == pytest.approx(by_hand)


def test_likelihood_loss_of_one_hot_is_cross_entropy() -> None:
    torch.manual_seed(2)
    logits, responses = torch.randn(7, CLASSES), torch.randint(0, CLASSES, (7,))
    rows = F.one_hot(responses, CLASSES).float().log()
    assert float(likelihood_loss(logits, rows)) == pytest.approx(float(F.cross_entropy(logits, responses)))


@pytest.mark.thorough
def test_likelihood_loss_is_smallest_at_the_true_class() -> None:
    """The best output for many noisy responses to one image is the teacher's class, though most are wrong."""
    rng, n = torch.Generator().manual_seed(3), 20_000
    allowed, everyone = torch.ones(n, CLASSES).bool(), torch.arange(CLASSES).expand(n, -1)
    responses = randomised_response(torch.full((n,), 2), everyone, 0.3, rng)
    assert (responses == 2).float().mean() < 0.3
    rows, logits = response_log_likelihood(responses, allowed, 0.3), torch.zeros(1, CLASSES, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        likelihood_loss(logits.expand(n, -1), rows).backward()
        optimizer.step()
    assert float(logits.softmax(1)[0, 2].detach()) > 0.9
