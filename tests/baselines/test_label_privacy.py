"""Label privacy: what a label's randomisation does, exactly; that it is all that is seen of a label; what it costs."""

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
from dp_accounting import LaplaceDpEvent, NonPrivateDpEvent
from scipy import stats
from scipy.optimize import linprog
from torch import Tensor, nn

from baselines import alibi, lp_2st, rr, rr_debiased
from baselines.alibi import Alibi, log_likelihood, posterior_loss
from baselines.lp_2st import Lp2st, candidates, likely, rr_with_prior, stages
from baselines.rr import Rr, forward_loss
from baselines.rr_debiased import RrDebiased, debiased_loss
from bench.api import Context, Release, Teacher
from bench.config import configure
from bench.data import to_float
from bench.dp_training.label_privacy import respond, response_probabilities
from bench.dp_training.noisy_label_training import LabelPrivate, RowLoss, cross_entropy
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.privacy.audit import audit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private

METHODS = [Rr, RrDebiased, Lp2st, Alibi]
LN3 = math.log(3)
PRIORS = [[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [0.05, 0.45, 0.4, 0.1], [0.0, 0.0, 0.4, 0.6], [0.3, 0.3, 0.3, 0.1]]


class Untouchable(nn.Module):
    """A teacher that must not be asked."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the undefended teacher was asked")


def toy(private: tuple[Tensor, Tensor] | None = None) -> Teacher:
    return Teacher(Untouchable(), "datalens", SHAPE, CLASSES, "toy", private or toy_private())


def convert(
    cls: type[LabelPrivate],
    budget: Budget | None = None,
    private: tuple[Tensor, Tensor] | None = None,
    ctx: Context | None = None,
    seed: int = 0,
    **given: str,
) -> Release:
    torch.manual_seed(seed)
    method = configure(cls, "smoke", given, "method")
    return method.convert(toy(private), "datalens", budget or Budget(2.0), ctx or context(seed))


def weights(release: Release) -> Tensor:
    return torch.cat([p.detach().flatten() for p in release.student.parameters()])


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
def test_randomised_response_answers_as_its_formula_says(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    found = exact_rr(monkeypatch, classes)
    expected = np.full((classes, classes), 1 / (3 + classes - 1))
    np.fill_diagonal(expected, 3 / (3 + classes - 1))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert response_probabilities(classes, LN3) == pytest.approx((expected[0, 0], expected[0, 1]))


@pytest.mark.parametrize("prior", PRIORS)
def test_rr_with_prior_answers_as_its_formula_says(monkeypatch: pytest.MonkeyPatch, prior: list[float]) -> None:
    """The k* of a brute force over k; e^eps / (e^eps + k - 1), 1 / (e^eps + k - 1), and 1 / k outside."""
    ranked = np.argsort([-p for p in prior], kind="stable")
    worth = [3 / (3 + k - 1) * sum(prior[j] for j in ranked[:k]) for k in range(1, 5)]
    k = int(np.argmax(np.round(worth, 12))) + 1
    inside = set(ranked[:k].tolist())
    expected = np.zeros((4, 4))
    for label, answer in itertools.product(range(4), inside):
        expected[label, answer] = 1 / k if label not in inside else (3 if label == answer else 1) / (3 + k - 1)
    np.testing.assert_allclose(exact_rr_with_prior(monkeypatch, prior), expected, atol=1e-6)


def test_priors_of_these_tests_have_every_number_of_candidates() -> None:
    sizes = candidates(torch.tensor(PRIORS, dtype=torch.float64), LN3).sum(1)
    assert set(sizes.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("prior", PRIORS)
def test_no_label_is_told_from_another_by_more_than_epsilon(
    monkeypatch: pytest.MonkeyPatch, prior: list[float]
) -> None:
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


def test_k_is_the_best_for_random_priors_and_not_the_official_codes() -> None:
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


def test_candidates_are_the_likeliest_classes() -> None:
    found = candidates(torch.tensor([[0.05, 0.45, 0.4, 0.1]]), LN3)
    assert found.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("cls", METHODS)
def test_without_noise_every_label_is_kept(cls: type[LabelPrivate]) -> None:
    labels, rng = torch.arange(4).repeat(50), torch.Generator().manual_seed(0)
    assert torch.equal(respond(labels, 4, math.inf, rng), labels)
    sure = torch.eye(4)[torch.zeros(200, dtype=torch.long)]
    assert torch.equal(rr_with_prior(labels, sure, math.inf, rng), labels)
    assert torch.equal(Alibi()._noisy(labels, 4, 0.0, rng), F.one_hot(labels, 4).double())
    release = convert(cls, Budget(math.inf))
    assert release.claim is not None and math.isinf(release.claim.epsilon)
    assert math.isinf(account(release.ledger, Unit.LABEL, 1e-5).epsilon)


# The losses.


def test_the_debiased_loss_is_unbiased_for_every_label() -> None:
    """Sum over all answers of P[answer | label] times the loss is the cross-entropy to the label."""
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


def test_the_debiased_loss_is_that_of_the_paper() -> None:
    logits, k, eps = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), 3, 1.5
    p = k / (math.exp(eps) + k - 1)
    each = -logits.log_softmax(1)[0]
    expected = (each[1] - p / k * each.sum()) / (1 - p)
    found = debiased_loss(torch.tensor([1]), k, eps)(logits, torch.tensor([0]), 0.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)
    plain = debiased_loss(torch.tensor([1]), k, math.inf)(logits, torch.tensor([0]), 0.0)
    assert float(plain) == pytest.approx(float(each[1]), rel=1e-12)


def test_the_forward_loss_is_the_cross_entropy_of_the_noisy_label() -> None:
    logits, eps = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64), 0.7
    t = (math.exp(eps) - 1) * np.eye(3) + 1
    implied = logits.softmax(1)[0].numpy() @ (t / t.sum(1, keepdims=True))
    for answer in range(3):
        found = forward_loss(torch.tensor([answer]), 3, eps)(logits, torch.tensor([0]), 0.0)
        assert float(found) == pytest.approx(-math.log(implied[answer]), rel=1e-12)
    far = torch.tensor([[500.0, 0.0]], requires_grad=True)
    forward_loss(torch.tensor([1]), 2, math.inf)(far, torch.tensor([0]), 0.0).sum().backward()
    assert far.grad is not None and far.grad.isfinite().all()


def law(noise: str, scale: float) -> Any:
    return stats.laplace(scale=scale) if noise == "laplace" else stats.norm(scale=scale)


@pytest.mark.parametrize(
    ("noise", "scale"), [("laplace", 0.25), ("laplace", 2.0), ("gaussian", 0.7), ("gaussian", 3.0)]
)
def test_alibis_target_is_the_posterior_by_bayes(noise: Any, scale: float) -> None:
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
def test_the_posterior_averages_to_the_prior(noise: Any, scale: float) -> None:
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
    assert right > 0.75, "the answer tells something"


@pytest.mark.parametrize("factor", [1.0, 1.1, 1 / 1.1])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_on_one_hot_labels_has_the_scale_that_is_accounted(noise: Any, factor: float) -> None:
    method = Alibi(noise=noise)
    scale = method._scale(1.0, 1e-5)
    labels = torch.arange(10).repeat(400)
    noisy = method._noisy(labels, 10, scale, torch.Generator().manual_seed(0)) - F.one_hot(labels, 10)
    p = stats.kstest(noisy.flatten().numpy(), law(noise, scale * factor).cdf).pvalue
    assert p > 0.01 if factor == 1 else p < 1e-6


# What it costs.


@pytest.mark.parametrize("eps", [0.2, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("cls", METHODS)
def test_a_label_costs_epsilon_itself_and_a_record_everything(cls: type[LabelPrivate], eps: float) -> None:
    release = convert(cls, Budget(eps))
    found = account(release.ledger, Unit.LABEL, 1e-5)
    assert found.epsilon == pytest.approx(eps, rel=1e-3) and found.epsilon <= eps * (1 + 1e-9)
    assert release.claim is not None and release.claim.epsilon == eps
    assert release.claim.unit == Unit.LABEL and release.claim.delta == 0
    assert release.solved["label_epsilon"] == eps
    assert math.isinf(account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon)
    (label,), (example,) = release.ledger.entries(Unit.LABEL), release.ledger.entries(Unit.EXAMPLE)
    assert label.count == (2 if cls is Alibi else 1) and example.event == NonPrivateDpEvent()


def test_laplace_noise_is_two_over_epsilon() -> None:
    release = convert(Alibi, Budget(3.0))
    (entry,) = release.ledger.entries(Unit.LABEL)
    assert release.solved["scale"] == pytest.approx(2 / 3) and entry.event == LaplaceDpEvent(2 / 3)


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (3.0, 1e-3), (8.0, 1e-6)])
def test_gaussian_noise_meets_the_exact_curve(eps: float, delta: float) -> None:
    """Balle and Wang (2018): delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = sqrt(2) / s."""
    release = convert(Alibi, Budget(eps, delta), noise="gaussian")
    mu = math.sqrt(2) / release.solved["scale"]
    found = stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
    assert 0.995 * delta < found <= delta
    assert release.claim is not None and 0.9999 * eps < release.claim.epsilon <= eps and release.claim.delta == delta


@pytest.mark.parametrize("account", ["claimed", "accounted"])
@pytest.mark.parametrize("cls", METHODS)
def test_the_release_is_within_its_budget(cls: type[LabelPrivate], account: Any) -> None:
    budget = Budget(0.7, account=account, unit=Unit.LABEL)
    release = convert(cls, budget)
    check_budget(release.ledger, release.claim, budget)


@pytest.mark.parametrize("cls", METHODS)
def test_fields_stand_where_there_is_nothing_to_solve(cls: type[LabelPrivate]) -> None:
    for budget in (Budget(None, solve="none"), Budget(5.0, solve="none")):
        release = convert(cls, budget, label_epsilon="1.5")
        assert release.claim is not None and release.claim.epsilon == 1.5


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(1.0, account="accounted"), "--unit label"),
        (Budget(1.0, unit=Unit.QUERY), "--unit query"),
        (Budget(1.0, account="accounted", unit=Unit.CLIENT), "--unit client"),
        (Budget(1.0, solve="steps"), "--solve sigma"),
        (Budget(0.5, solve="none"), "label_epsilon 1 is over --epsilon 0.5"),
    ],
)
@pytest.mark.parametrize("cls", METHODS)
def test_budgets_that_labels_cannot_keep_are_refused(cls: type[LabelPrivate], budget: Budget, says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        cls().check(budget, "mnist", 10)  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (Rr, {"label_epsilon": 0.0}),
        (Rr, {"batch": 1}),
        (Rr, {"epochs": 0}),
        (Rr, {"rate": 0.0}),
        (Rr, {"warmup": 1.0}),
        (Rr, {"momentum": 0.0}),
        (Rr, {"mixup": -1.0}),
        (RrDebiased, {"drop": -1.0}),
        (Lp2st, {"share": 1.0}),
        (Lp2st, {"temperature": -0.1}),
        (Lp2st, {"mixup": -0.5}),
        (Alibi, {"uniform": 1.5}),
        (Alibi, {"weight_decay": -1.0}),
    ],
)
def test_impossible_fields_are_refused(cls: type[LabelPrivate], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        cls(**wrong)


def test_too_few_records_are_refused_in_one_line() -> None:
    for cls, n in ((Rr, 1), (Lp2st, 3)):
        with pytest.raises(BenchError, match="private record") as caught:
            convert(cls, private=toy_private(n=n))
        assert "\n" not in str(caught.value)


# What is seen of a label.


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mechanisms that draw as before and answer about a label that is always 0."""
    for module in (rr, rr_debiased):
        monkeypatch.setattr(module, "respond", lambda y, *rest: respond(torch.zeros_like(y), *rest))
    monkeypatch.setattr(lp_2st, "rr_with_prior", lambda y, *rest: rr_with_prior(torch.zeros_like(y), *rest))
    noisy = Alibi._noisy
    monkeypatch.setattr(alibi.Alibi, "_noisy", lambda self, y, *rest: noisy(self, torch.zeros_like(y), *rest))


@pytest.mark.parametrize("cls", METHODS)
def test_training_sees_noisy_labels_and_nothing_else(monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]) -> None:
    images, labels = toy_private()
    other = (images, (labels + 1) % CLASSES)
    assert not torch.equal(weights(convert(cls)), weights(convert(cls, private=other)))
    blind(monkeypatch)
    assert torch.equal(weights(convert(cls)), weights(convert(cls, private=other)))


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], list[float], list[Tensor]]:
    """The labels that every mechanism is asked about, the epsilon or scale it is given, and its answers."""
    asked: list[Tensor] = []
    noise: list[float] = []
    answers: list[Tensor] = []

    def spy(real: Callable[..., Tensor], at: int = 0) -> Callable[..., Tensor]:
        def ask(*given: Any) -> Tensor:
            asked.append(given[at])
            noise.append(given[at + 2])
            answers.append(real(*given))
            return answers[-1]

        return ask

    for module in (rr, rr_debiased):
        monkeypatch.setattr(module, "respond", spy(respond))
    monkeypatch.setattr(lp_2st, "rr_with_prior", spy(rr_with_prior))
    monkeypatch.setattr(alibi.Alibi, "_noisy", spy(Alibi._noisy, at=1))
    return asked, noise, answers


@pytest.mark.parametrize("cls", METHODS)
def test_a_label_is_randomised_once_whatever_the_epochs_and_as_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]
) -> None:
    asked, noise, _ = watched(monkeypatch)
    images, labels = toy_private()
    release = convert(cls, Budget(1.6), private=(images, labels), epochs="3")
    assert noise == [release.solved["scale"]] if cls is Alibi else set(noise) == {1.6}
    assert len(asked) == (2 if cls is Lp2st else 1)
    assert torch.equal(torch.cat(asked).sort().values, labels.sort().values)


@pytest.mark.parametrize("cls", METHODS)
def test_an_audit_plays_the_mechanism_with_the_noise_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, cls: type[LabelPrivate]
) -> None:
    asked, noise, answers = watched(monkeypatch)
    game = cls().game(Budget(1.6, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    seen = [game.play(world, 50, torch.Generator().manual_seed(0)) for world in (False, True)]
    assert set(noise) == {2 / 1.6 if cls is Alibi else 1.6}
    one, other = asked[-2:]
    assert len(one.unique()) == len(other.unique()) == 1 and one[0] != other[0]
    for row, answer in zip(seen, answers[-2:], strict=True):
        assert torch.equal(row, answer.float() if cls is Alibi else F.one_hot(answer, 4).float())


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
def test_the_loss_reads_the_answers_by_the_noise_that_they_have(
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
def test_a_record_is_judged_by_its_own_answer_wherever_it_stands_in_a_batch(made: Callable[[Tensor], RowLoss]) -> None:
    logits, chosen = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 3, 5])
    loss = made(torch.tensor([0, 1, 2, 3, 1, 2]))
    torch.testing.assert_close(loss(logits[chosen], chosen, 0.0), loss(logits, torch.arange(6), 0.0)[chosen])


@pytest.mark.parametrize(("records", "share"), [(4, 0.1), (4, 0.9), (101, 0.6), (1000, 0.8)])
def test_stages_are_disjoint_and_complete(records: int, share: float) -> None:
    first, second = stages(records, share, torch.Generator().manual_seed(0))
    assert sorted(first.tolist() + second.tolist()) == list(range(records))
    assert len(first) == min(max(round(share * records), 2), records - 2)
    again = stages(records, share, torch.Generator().manual_seed(1))[0]
    assert records == 4 or not torch.equal(first, again)


def test_the_second_stage_asks_with_the_first_models_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior sharpened by the temperature, of records that the first stage did not see."""
    priors: list[Tensor] = []

    def spy(y: Tensor, prior: Tensor, *rest: Any) -> Tensor:
        priors.append(prior)
        return rr_with_prior(y, prior, *rest)

    trained: list[Tensor] = []
    train = LabelPrivate.train

    def watch(self: Any, model: Any, images: Tensor, records: Tensor, *rest: Any) -> None:
        train(self, model, images, records, *rest)
        trained.append(records)
        if len(trained) == 1:
            outside = [r for r in range(len(images)) if r not in set(records.tolist())]
            logits.update({r: model(images[r : r + 1].float() / 255).detach()[0] for r in outside})

    logits: dict[int, Tensor] = {}
    monkeypatch.setattr(lp_2st, "rr_with_prior", spy)
    monkeypatch.setattr(LabelPrivate, "train", watch)
    release = convert(Lp2st, Budget(2.0), temperature="0.5", share="0.5")
    first, second = priors
    assert torch.equal(first, torch.full((40, CLASSES), 1 / CLASSES))
    _, numbers = stages(80, 0.5, context().generator("lp-2st/stages"))
    expected = torch.stack([(logits[r] / 0.5).softmax(0) for r in numbers.tolist()])
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-5)
    assert set(numbers.tolist()) <= set(trained[1].tolist()) and len(trained[1]) <= 80
    assert 1 <= release.solved["mean_candidates"] <= CLASSES


def corners(model: Any, images: Tensor) -> Tensor:
    """A first model that knows the class by the brightest corner, the more surely the brighter the last pixel is."""
    x = to_float(images)
    return 8 * x[:, :, -1, -1] * F.avg_pool2d(x, 8).flatten(1)


@pytest.mark.parametrize("given", [{}, {"select": "false"}, {"resume": "false"}], ids=str)
def test_the_second_stage_learns_from_both_parts_but_for_unlikely_answers(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Of the first part, records whose noisy label is among as many of the likeliest classes as k* is on average."""
    asked, _, answers = watched(monkeypatch)
    trained: list[tuple[Any, Tensor, float]] = []
    monkeypatch.setattr(lp_2st, "ask", corners)
    monkeypatch.setattr(
        LabelPrivate,
        "train",
        lambda self, model, images, rows, loss, ctx, stage, mixup: trained.append((model, rows, mixup)),
    )
    images, labels = toy_private()
    release = convert(Lp2st, Budget(1.0), private=(images, labels), temperature="0.5", mixup="-1", share="0.5", **given)
    first, second = stages(80, 0.5, context().generator("lp-2st/stages"))
    assert torch.equal(asked[0], labels[first]) and torch.equal(asked[1], labels[second])
    sizes = candidates((corners(None, images[second]) / 0.5).softmax(1), 1.0).sum(1)
    mean = float(sizes.double().mean())
    assert release.solved["mean_candidates"] == mean and 1 < mean < 4 and mean != int(mean)
    order = corners(None, images[first]).argsort(1, descending=True)[:, : int(mean)]
    kept = torch.tensor([bool(answer in row) for answer, row in zip(answers[0], order, strict=True)])
    assert 0 < int(kept.sum()) < 40
    (one, rows, alpha), (other, both, less) = trained
    assert torch.equal(rows, first) and (alpha, less) == (16, 8)
    assert torch.equal(both, torch.cat([first if given.get("select") else first[kept], second]))
    assert (one is other) == ("resume" not in given), "goes on from the first model, or begins anew"


def test_selection_keeps_records_whose_answer_is_likely() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert likely(logits, torch.tensor([1, 2, 2]), 2).tolist() == [True, False, True]
    assert likely(logits, torch.tensor([1, 2, 2]), 1).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        (0.5, (0.8, 0.6, 16, 8)),
        (1.0, (0.8, 0.6, 16, 8)),
        (2.0, (0.7, 0.5, 8, 8)),
        (3.0, (0.6, 0.5, 8, 4)),
        (8.0, (0.6, 0.5, 4, 4)),
        (math.inf, (0.6, 0.5, 4, 4)),
    ],
)
def test_the_papers_settings_of_two_stages(eps: float, expected: tuple[float, ...]) -> None:
    assert Lp2st()._settings(eps) == expected
    assert Lp2st(share=0.3, temperature=0.9, mixup=0.0)._settings(eps) == (0.3, 0.9, 0.0, 0.0)


@pytest.mark.parametrize("cls", METHODS)
def test_noise_from_the_system_differs_from_run_to_run(cls: type[LabelPrivate]) -> None:
    first, again = (weights(convert(cls, Budget(0.5), ctx=replace(context(), noise="os"))) for _ in range(2))
    assert not torch.equal(first, again)


@pytest.mark.thorough
@pytest.mark.parametrize("cls", METHODS)
def test_the_audit_comes_near_epsilon_and_not_above(cls: type[LabelPrivate]) -> None:
    game = cls().game(Budget(1.5, unit=Unit.LABEL), "toy", 4)  # type: ignore[attr-defined]
    found = audit(game, plays=240_000)
    assert (game.claimed, game.accounted) == pytest.approx((1.5, 1.5), rel=1e-3)
    assert found.verdict == "not refuted" and found.lower_bound > 1.1
    assert audit(replace(game, claimed=0.75), plays=60_000).verdict == "refuted"


def test_a_tiny_epsilon_is_judged_at_the_delta_that_its_accountant_used() -> None:
    game = Rr().game(Budget(1e-4, unit=Unit.LABEL), "toy", 4)
    assert game.delta == 1e-5 and game.accounted < game.claimed == 1e-4
    assert audit(game, plays=5_000).verdict == "not refuted"


# Training.


def test_the_rate_rises_and_drops() -> None:
    method = Rr(warmup=0.1, drop=0.1)
    found = [method.rate_factor(step, 20) for step in (0, 1, 2, 5, 6, 11, 12, 17, 18, 19)]
    assert found == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = Rr(warmup=0.0, schedule="cosine")
    assert [cosine.rate_factor(step, 4) for step in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)
    assert Rr(warmup=0.0, schedule="constant").rate_factor(3, 4) == 1


def test_a_pass_sees_every_record_once_and_only_those_given() -> None:
    seen: list[Tensor] = []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        seen.append(chosen)
        return logits.sum(1)

    images, _ = toy_private()
    records = torch.arange(0, 80, 2)
    method = configure(Rr, "smoke", {"batch": "10", "epochs": "2"}, "method")
    model = method.network(toy(), "datalens", context())
    method.train(model, images, records, loss, context(), "test")
    assert [len(part) for part in seen] == [10] * 8
    for each in (seen[:4], seen[4:]):
        assert torch.equal(torch.cat(each).sort().values, records)
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:])) and not model.training


def test_small_data_sets_are_passed_over_more_often() -> None:
    steps: list[float] = []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        steps.append(done)
        return logits.sum(1)

    images, _ = toy_private()
    method = configure(Rr, "smoke", {"batch": "80", "epochs": "2", "least_steps": "7"}, "method")
    method.train(method.network(toy(), "datalens", context()), images, torch.arange(80), loss, context(), "test")
    assert steps == pytest.approx([step / 7 for step in range(7)])


def test_mixing_takes_images_and_losses_in_the_same_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model whose loss of record r is r: the mixed loss must be the mixed image's number."""
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1) * 30
    model, found = nn.Flatten(), []

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        found.append((logits.flatten(), images[chosen].float().flatten() / 255))
        return logits.sum(1) * 0 + weight.sum() * 0

    weight = nn.Parameter(torch.zeros(1))
    model.register_parameter("weight", weight)
    method = configure(Rr, "smoke", {"batch": "8", "augment": "false"}, "method")
    method.train(model, images, torch.arange(8), loss, context(), "test", 8.0)  # type: ignore[arg-type]
    (mixed, own), (same, partner) = found
    assert torch.equal(mixed, same)
    apart = own != partner
    shares = ((mixed - partner) / (own - partner))[apart]
    assert len(shares) > 2 and 0 < float(shares[0]) < 1
    torch.testing.assert_close(shares, shares[:1].expand(len(shares)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (Rr, {"loss": "forward"}),
        (Rr, {"mixup": "8"}),
        (Rr, {"augment": "false"}),
        (Rr, {"optimizer": "sgd"}),
        (Rr, {"schedule": "constant", "warmup": "0"}),
        (RrDebiased, {"least_steps": "4"}),
        (Lp2st, {"mixup": "-1"}),
        (Lp2st, {"resume": "false"}),
        (Lp2st, {"share": "0.3"}),
        (Lp2st, {"epochs": "20", "temperature": "0.05"}),
        (Alibi, {"noise": "gaussian"}),
        (Alibi, {"uniform": "1"}),
    ],
)
def test_every_option_runs_and_moves_the_result(cls: type[LabelPrivate], given: dict[str, str]) -> None:
    changed, plain = weights(convert(cls, **given)), weights(convert(cls))
    assert changed.isfinite().all() and not torch.equal(changed, plain)


def accuracy(release: Release, seed: int = 9) -> float:
    images, labels = toy_private(seed, 200)
    with torch.no_grad():
        return float((release.student(images.float() / 255).argmax(1) == labels).double().mean())


LEARNING = {"epochs": "6", "batch": "32"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cls", "given"),
    [(Rr, {}), (Rr, {"loss": "forward"}), (RrDebiased, {}), (Lp2st, {}), (Alibi, {"uniform": "0.2"})],
)
def test_labels_that_are_wrong_one_time_in_three_are_learnt_from(
    cls: type[LabelPrivate], given: dict[str, str]
) -> None:
    """epsilon 2 of 4 classes keeps 71 % of the labels; the classes are a bright corner each."""
    release = convert(cls, Budget(2.0), private=toy_private(n=400), **LEARNING, **given)
    assert accuracy(release) >= 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("cls", METHODS)
def test_labels_that_are_all_noise_teach_nothing(cls: type[LabelPrivate]) -> None:
    """Of two seeds, as the images of a class fall together; the same training reaches 0.9 at epsilon 2."""
    found = [accuracy(convert(cls, Budget(0.01), private=toy_private(n=400), seed=s, **LEARNING)) for s in range(2)]
    assert sum(found) / 2 < 0.6
