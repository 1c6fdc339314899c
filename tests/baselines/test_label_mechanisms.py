"""Label privacy: exact mechanisms, losses on their outputs, the cost of a label, and the audit game."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import epsilon_of, flat, gaussian_delta, record_calls, rng
from dp_accounting import LaplaceDpEvent, NonPrivateDpEvent
from label_privacy_made import METHODS, convert, law, watched
from scipy import stats
from scipy.optimize import linprog
from torch import Tensor

from baselines.alibi import Alibi, log_likelihood, posterior_loss
from baselines.lp_2st import Lp2st, candidates, rr_with_prior
from baselines.rr import Rr, forward_loss
from baselines.rr_debiased import RrDebiased, debiased_loss
from bench.dp_training.label_privacy import respond, response_probabilities
from bench.dp_training.noisy_label_training import LabelPrivate, RowLoss, cross_entropy
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, context, toy_private

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

    monkeypatch.setattr(Noise, "integers", integers)
    return exact(monkeypatch, us, classes, lambda labels: respond(labels, classes, LN3, torch.Generator()))


def exact(monkeypatch: pytest.MonkeyPatch, us: Tensor, classes: int, mechanism: Any) -> np.ndarray:
    """(K, K): P[answer | label] of a mechanism whose uniform numbers are these."""
    monkeypatch.setattr(Noise, "chance", lambda noise, probability, n: us < probability)
    rows = [mechanism(torch.full((len(us),), label)).bincount(minlength=classes) / len(us) for label in range(classes)]
    return torch.stack(rows).double().numpy()


def exact_rr_with_prior(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> np.ndarray:
    """(K, K): P[answer | label] of `rr_with_prior` at e^epsilon = 3."""
    us, others = grid(STAYS).repeat_interleave(OTHERS), torch.arange(OTHERS).repeat(STAYS)
    monkeypatch.setattr(Noise, "bits", lambda noise, n: others)
    priors = torch.tensor(prior, dtype=torch.float64).expand(len(us), -1)
    return exact(monkeypatch, us, len(prior), lambda labels: rr_with_prior(labels, priors, LN3, torch.Generator()))


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_randomised_response_matches_its_formula(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    found = exact_rr(monkeypatch, classes)
    expected = np.full((classes, classes), 1 / (3 + classes - 1))
    np.fill_diagonal(expected, 3 / (3 + classes - 1))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert response_probabilities(classes, LN3) == pytest.approx((expected[0, 0], expected[0, 1]))


@pytest.mark.parametrize("prior", PRIORS)
def test_rr_with_prior_matches_its_formula(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> None:
    """The k* of a brute force over k; e^eps / (e^eps + k - 1), 1 / (e^eps + k - 1), and 1 / k outside.

    Two labels differ by a factor of at most e^eps.
    """
    ranked = np.argsort([-p for p in prior], kind="stable")
    worth = [3 / (3 + k - 1) * sum(prior[j] for j in ranked[:k]) for k in range(1, 5)]
    k = int(np.argmax(np.round(worth, 12))) + 1
    inside = set(ranked[:k].tolist())
    expected = np.zeros((4, 4))
    for label, answer in itertools.product(range(4), inside):
        expected[label, answer] = 1 / k if label not in inside else (3 if label == answer else 1) / (3 + k - 1)
    found = exact_rr_with_prior(monkeypatch, prior)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert all((found[one] <= 3 * found[other] + 1e-6).all() for one, other in itertools.permutations(range(4), 2))


def test_candidates_are_the_most_likely_classes() -> None:
    found = candidates(torch.tensor(PRIORS, dtype=torch.float64), LN3)
    assert found[2].tolist() == [False, True, True, False]
    assert set(found.sum(1).tolist()) == {1, 2, 3, 4}, "the priors of these tests cover all counts"


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


def test_labels_are_kept_without_noise() -> None:
    labels = torch.arange(4).repeat(50)
    assert torch.equal(respond(labels, 4, math.inf, rng()), labels)
    sure = torch.eye(4)[torch.zeros(200, dtype=torch.long)]
    assert torch.equal(rr_with_prior(labels, sure, math.inf, rng()), labels)
    assert torch.equal(Alibi()._noisy(labels, 4, 0.0, rng()), F.one_hot(labels, 4).double())


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_one_hot_noise_has_the_accounted_scale(noise: Any, factor: float) -> None:
    method, labels = Alibi(noise=noise), torch.arange(10).repeat(400)
    scale = method._scale(1.0, 1e-5)
    noisy = method._noisy(labels, 10, scale, rng()) - F.one_hot(labels, 10)
    p = stats.kstest(noisy.flatten().numpy(), law(noise, scale * factor).cdf).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-6


def test_debiased_loss_is_unbiased_for_every_label() -> None:
    """The sum over all randomised labels of P[response | label] times the loss is the cross-entropy to the label."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(5, 6, dtype=torch.float64)
    for eps in (0.1, 1.0, 4.0, 20.0):
        chances = (torch.eye(6).double() * (math.exp(eps) - 1) + 1) / (math.exp(eps) + 5)
        losses = [debiased_loss(torch.full((5,), answer), 6, eps)(logits, torch.arange(5), 0.0) for answer in range(6)]
        torch.testing.assert_close(chances @ torch.stack(losses), -logits.log_softmax(1).T, rtol=1e-9, atol=1e-9)


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
    monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate], given: dict[str, str], expected: Any
) -> None:
    *_, answers = watched(monkeypatch)
    trained = record_calls(monkeypatch, LabelPrivate, "train")
    convert(cls, Budget(1.7), **given)
    loss, (noisy,) = trained[0].arguments[4], answers
    logits, every = torch.randn(80, CLASSES, generator=rng()), torch.arange(80)
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


@pytest.mark.parametrize("eps", [0.2, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("cls", METHODS)
def test_label_costs_epsilon_and_example_is_unprotected(cls: type[LabelPrivate], eps: float) -> None:
    release = convert(cls, Budget(eps))
    found = epsilon_of(release.ledger, Unit.LABEL)
    assert found == pytest.approx(eps, rel=1e-3) and found <= eps * (1 + 1e-9)
    assert release.claim is not None and release.claim.epsilon == eps
    assert release.claim.unit == Unit.LABEL and release.claim.delta == 0
    assert release.solved["label_epsilon"] == eps
    assert math.isinf(epsilon_of(release.ledger))
    (label,), (example,) = release.ledger.entries(Unit.LABEL), release.ledger.entries(Unit.EXAMPLE)
    assert label.count == (2 if cls is Alibi else 1) and example.event == NonPrivateDpEvent()


def test_laplace_scale_is_two_over_epsilon() -> None:
    release = convert(Alibi, Budget(3.0))
    (entry,) = release.ledger.entries(Unit.LABEL)
    assert release.solved["scale"] == pytest.approx(2 / 3) and entry.event == LaplaceDpEvent(2 / 3)


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (3.0, 1e-3), (8.0, 1e-6)])
def test_gaussian_noise_meets_the_exact_curve(eps: float, delta: float) -> None:
    """mu = sqrt(2) / s."""
    release = convert(Alibi, Budget(eps, delta), noise="gaussian")
    assert 0.995 * delta < gaussian_delta(eps, math.sqrt(2) / release.solved["scale"]) <= delta
    assert release.claim is not None and 0.9999 * eps < release.claim.epsilon <= eps and release.claim.delta == delta


@pytest.mark.parametrize("cls", METHODS)
def test_options_apply_if_nothing_is_solved(cls: type[LabelPrivate]) -> None:
    for budget in (Budget(None, solve="none"), Budget(5.0, solve="none")):
        release = convert(cls, budget, label_epsilon="1.5")
        assert release.claim is not None and release.claim.epsilon == 1.5


@pytest.mark.parametrize("cls", METHODS)
def test_label_is_randomised_once_as_in_the_ledger(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    queried, noise, _ = watched(monkeypatch)
    release, labels = convert(cls, Budget(1.6), epochs="3"), toy_private()[1]
    assert noise == [release.solved["scale"]] if cls is Alibi else set(noise) == {1.6}
    assert len(queried) == (2 if cls is Lp2st else 1)
    assert torch.equal(torch.cat(queried).sort().values, labels.sort().values)


@pytest.mark.parametrize("cls", METHODS)
def test_game_uses_the_mechanism_at_the_budget(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    queried, noise, answers = watched(monkeypatch)
    game = cls().game(Budget(1.6, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    seen = [game.play(world, 50, rng()) for world in (False, True)]
    assert set(noise) == {2 / 1.6 if cls is Alibi else 1.6}
    one, other = queried[-3][::2], queried[-1][::2]  # of two calls for each world, and of two labels for each play
    assert len(one.unique()) == len(other.unique()) == 1 and one[0] != other[0]
    for row, answer in zip(seen, (answers[-3][::2], answers[-1][::2]), strict=True):
        assert torch.equal(row[:, :4], answer if cls is Alibi else F.one_hot(answer, 4).double())


@pytest.mark.parametrize("cls", METHODS)
def test_system_noise_differs_between_runs(cls: type[LabelPrivate]) -> None:
    first, again = (flat(convert(cls, Budget(0.5), ctx=replace(context(), noise="os")).student) for _ in range(2))
    assert not torch.equal(first, again)


@pytest.mark.thorough
@pytest.mark.parametrize("cls", METHODS)
def test_audit_bound_is_below_and_near_epsilon(cls: type[LabelPrivate]) -> None:
    game = cls().game(Budget(1.5, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    found = audit(game, plays=240_000)
    assert (game.claimed, game.accounted) == pytest.approx((1.5, 1.5), rel=1e-3)
    assert found.verdict == "not refuted" and found.lower_bound > 1.1
    assert audit(replace(game, claimed=0.75), plays=60_000).verdict == "refuted"


def test_tiny_epsilon_uses_the_accountants_delta() -> None:
    game = Rr().game(Budget(1e-4, unit=Unit.LABEL), "toy", 4)
    assert game.delta == 1e-5 and game.accounted < game.claimed == 1e-4
    assert audit(game, plays=5_000).verdict == "not refuted"
