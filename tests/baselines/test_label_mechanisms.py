"""Exact distributions of label randomisation: probabilities, candidates, noise, and that labels stay within epsilon."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from label_privacy_made import METHODS, convert, law
from scipy import stats
from scipy.optimize import linprog
from torch import Tensor

from baselines.alibi import Alibi
from baselines.lp_2st import candidates, rr_with_prior
from bench.dp_training.label_privacy import respond, response_probabilities
from bench.dp_training.noisy_label_training import LabelPrivate
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.noise import Noise

LN3 = math.log(3)
PRIORS = [[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [0.05, 0.45, 0.4, 0.1], [0.0, 0.0, 0.4, 0.6], [0.3, 0.3, 0.3, 0.1]]


# The mechanisms, their randomness replaced by every case there is.

STAYS, OTHERS = 60, 12
"""Midpoints that e^epsilon = 3 and up to four classes divide evenly: counting them gives exact probabilities."""


def grid(points: int) -> Tensor:
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def exact_rr(monkeypatch: pytest.MonkeyPatch, classes: int) -> np.ndarray:
    """(K, K): P[answer | label] of `respond` at e^epsilon = 3."""
    cases = list(itertools.product(grid(STAYS).tolist(), range(1, classes)))
    us, shifts = torch.tensor([u for u, _ in cases], dtype=torch.float64), torch.tensor([s for _, s in cases])

    def integers(noise: Noise, low: int, high: int, n: int) -> Tensor:
        assert (low, high, n) in ((1, classes, len(cases)), (0, classes, len(cases)))
        return shifts if low == 1 else torch.zeros(n).long()

    rows = []
    with monkeypatch.context() as patch:
        patch.setattr(Noise, "chance", lambda noise, probability, n: us < probability)
        patch.setattr(Noise, "integers", integers)
        for label in range(classes):
            answers = respond(torch.full((len(cases),), label), classes, LN3, torch.Generator())
            rows.append(torch.bincount(answers, minlength=classes) / len(cases))
    return torch.stack(rows).double().numpy()


def exact_rr_with_prior(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> np.ndarray:
    """(K, K): P[answer | label] of `rr_with_prior` at e^epsilon = 3."""
    n, classes = STAYS * OTHERS, len(prior)
    us, others = grid(STAYS).repeat_interleave(OTHERS), torch.arange(OTHERS).repeat(STAYS)
    rows = []
    with monkeypatch.context() as patch:
        patch.setattr(Noise, "chance", lambda noise, probability, n: us < probability)
        patch.setattr(Noise, "bits", lambda noise, n: others)
        for label in range(classes):
            priors = torch.tensor(prior, dtype=torch.float64).expand(n, -1)
            answers = rr_with_prior(torch.full((n,), label), priors, LN3, torch.Generator())
            rows.append(torch.bincount(answers, minlength=classes) / n)
    return torch.stack(rows).double().numpy()


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_randomised_response_matches_its_formula(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    found = exact_rr(monkeypatch, classes)
    expected = np.full((classes, classes), 1 / (3 + classes - 1))
    np.fill_diagonal(expected, 3 / (3 + classes - 1))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert response_probabilities(classes, LN3) == pytest.approx((expected[0, 0], expected[0, 1]))


@pytest.mark.parametrize("prior", PRIORS)
def test_rr_with_prior_matches_its_formula(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> None:
    """The k* of a brute force over k; e^eps / (e^eps + k - 1), 1 / (e^eps + k - 1), and 1 / k outside."""
    ranked = np.argsort([-p for p in prior], kind="stable")
    worth = [3 / (3 + k - 1) * sum(prior[j] for j in ranked[:k]) for k in range(1, 5)]
    k = int(np.argmax(np.round(worth, 12))) + 1
    inside = set(ranked[:k].tolist())
    expected = np.zeros((4, 4))
    for label, answer in itertools.product(range(4), inside):
        expected[label, answer] = 1 / k if label not in inside else (3 if label == answer else 1) / (3 + k - 1)
    np.testing.assert_allclose(exact_rr_with_prior(monkeypatch, prior), expected, atol=1e-6)


def test_test_priors_cover_all_candidate_counts() -> None:
    sizes = candidates(torch.tensor(PRIORS, dtype=torch.float64), LN3).sum(1)
    assert set(sizes.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("prior", PRIORS)
def test_label_ratio_is_at_most_exp_epsilon(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> None:
    p = exact_rr_with_prior(monkeypatch, prior)
    for one, other in itertools.permutations(range(4), 2):
        assert (p[one] <= 3 * p[other] + 1e-6).all()


@pytest.mark.parametrize("prior", PRIORS)
def test_no_private_mechanism_keeps_more_labels(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> None:
    """The paper's Theorem 3 by a linear program over all 4x4 epsilon-private mechanisms."""
    n = 4
    gain = [-prior[y] if y == o else 0.0 for y in range(n) for o in range(n)]
    ratios = []
    for y, z, o in itertools.product(range(n), range(n), range(n)):
        row = np.zeros(n * n)
        row[y * n + o] += 1
        row[z * n + o] -= 3
        ratios.append(row)
    sums = np.kron(np.eye(n), np.ones(n))
    best = -linprog(gain, np.array(ratios), np.zeros(len(ratios)), sums, np.ones(n), bounds=(0, 1)).fun
    found = float((np.diag(exact_rr_with_prior(monkeypatch, prior)) * prior).sum())
    assert found == pytest.approx(best, abs=1e-6)


def test_k_is_optimal_unlike_the_official_codes() -> None:
    rng = np.random.default_rng(0)
    shifted = 0
    for eps in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        priors = rng.dirichlet([0.3] * 10, size=100)
        sizes = candidates(torch.tensor(priors), eps).sum(1).tolist()
        for prior, size in zip(priors, sizes, strict=True):
            sums = np.sort(prior)[::-1].cumsum()
            w = [math.exp(eps) / (math.exp(eps) + k - 1) * sums[k - 1] for k in range(1, 11)]
            assert w[size - 1] == pytest.approx(max(w), rel=1e-12)
            shifted += size != 1 + int(np.argmax([sums[k - 1] / (1 + (k - 2) * math.exp(-eps)) for k in range(1, 11)]))
    assert shifted > 50
    uniform = torch.full((1, 10), 0.1)
    assert candidates(uniform, 0.5).all(), "with the set size one too small a single class would be left"


def test_candidates_are_the_most_likely_classes() -> None:
    found = candidates(torch.tensor([[0.05, 0.45, 0.4, 0.1]]), LN3)
    assert found.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("cls", METHODS)
def test_labels_are_kept_without_noise(cls: type[LabelPrivate]) -> None:
    labels, rng = torch.arange(4).repeat(50), torch.Generator().manual_seed(0)
    assert torch.equal(respond(labels, 4, math.inf, rng), labels)
    sure = torch.eye(4)[torch.zeros(200, dtype=torch.long)]
    assert torch.equal(rr_with_prior(labels, sure, math.inf, rng), labels)
    assert torch.equal(Alibi()._noisy(labels, 4, 0.0, rng), F.one_hot(labels, 4).double())
    release = convert(cls, Budget(math.inf))
    assert release.claim is not None and math.isinf(release.claim.epsilon)
    assert math.isinf(account(release.ledger, Unit.LABEL, 1e-5).epsilon)


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_one_hot_noise_has_the_accounted_scale(noise: Any, factor: float) -> None:
    method = Alibi(noise=noise)
    scale = method._scale(1.0, 1e-5)
    labels = torch.arange(10).repeat(400)
    noisy = method._noisy(labels, 10, scale, torch.Generator().manual_seed(0)) - F.one_hot(labels, 10)
    p = stats.kstest(noisy.flatten().numpy(), law(noise, scale * factor).cdf).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-6
