"""DP-BLSGD: the line search by hand, one record's influence, and Gaussians that dominate purely private searches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from baseline_runs import FREE, epsilon_of, gaussian_delta, is_normal, record_calls, rng
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from privately_trained import convert, empty_batches, moved, network
from scipy.stats import norm
from torch import Tensor

from baselines import dp_blsgd
from baselines.dp_blsgd import Descent, DpBlsgd, Search, SearchingParameters, dominating_mu, sampled_epsilon
from bench.api import Context
from bench.dp_training import dp_sgd
from bench.dp_training.dp_sgd import NoisyGradients
from bench.privacy import Budget, Unit
from bench.privacy.noise import Noise
from bench.testing import context, toy_private

SEARCH = Search(most=1.0, shrink=0.5, trials=4, slope=0.1, bound=2.0, epsilon=math.inf)


def answers(*values: float) -> Iterator[Tensor]:
    return (torch.tensor(value, dtype=torch.float64) for value in values)


@pytest.mark.parametrize(
    ("values", "size", "tried"),
    [((1, 1, 1, 1), 1.0, 1), ((-1, 2, 3, 4), 0.5, 2), ((-1, 0, 5, 5), 0.5, 2), ((-1, -1, -1, 3), 0.125, 4),
     ((-1, -2, -3, -4), 0.125, 4)],
)  # fmt: skip
def test_search_stops_at_the_first_size_that_passes(values: tuple[float, ...], size: float, tried: int) -> None:
    left = answers(*values)
    assert SEARCH.choose(left, Noise("cpu", 0)) == size
    assert len([*left]) == len(values) - tried


def test_search_noise_is_that_of_sparse_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lap(2 C_f / eps) once, Lap(4 C_f / eps) on every answer."""
    calls = record_calls(monkeypatch, Noise, "laplace")
    Search(1.0, 0.5, 4, 0.1, bound=2.0, epsilon=0.5).choose(answers(*[-1e4] * 4), Noise("cpu", 0))
    assert [call.arguments[2] for call in calls] == [8.0, 16.0, 16.0, 16.0, 16.0]


class Told(Noise):
    """Returns fixed responses to all queries."""

    def __init__(self, *given: float) -> None:
        super().__init__("cpu", 0)
        self.given = answers(*given)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return next(self.given)


@pytest.mark.parametrize(
    ("exact", "noisy", "size"),
    [(-5.0, (1.0, 0.5, 2.0), 0.5), (5.0, (1.0, 0.5, 0.0, 0.9, 0.5), 0.125), (-5.0, (-3.0, -4.0, -2.0), 0.5)],
)
def test_search_compares_noisy_values(exact: float, noisy: tuple[float, ...], size: float) -> None:
    assert SEARCH.choose(answers(*[exact] * 4), Told(*noisy)) == size


class Quick(Noise):
    """Laplace noise of numbers that are drawn beforehand."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__("cpu", seed)
        self.drawn = iter(np.random.default_rng(seed).laplace(size=count).tolist())

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return values + scale * next(self.drawn)


@pytest.mark.thorough
def test_search_loss_is_at_most_and_near_epsilon() -> None:
    """By plays of it, answers of neighbours C_f apart in the worst directions: the likelihood ratio of every outcome is
    at most e^eps and, of the rarest, nearly that; with half of the noise it is more."""
    plays, epsilon = 20_000, 2.0
    worlds = [-1.0] * 8 + [0.0], [0.0] * 8 + [-1.0]

    def outcomes(search: Search, values: list[float], seed: int) -> np.ndarray:
        queried, noise = [*answers(*values)], Quick(seed, plays * 10)
        sizes = {size: place for place, size in enumerate(search.sizes())}
        return np.bincount([sizes[search.choose(iter(queried), noise)] for _ in range(plays)], minlength=len(sizes))

    def largest(bound: float) -> float:
        search = Search(most=1.0, shrink=0.5, trials=10, slope=0.1, bound=bound, epsilon=epsilon)
        one, other = (np.maximum(outcomes(search, values, seed), 1) for seed, values in enumerate(worlds))
        return float(np.abs(np.log(one / other)).max())

    assert 0.75 * epsilon <= largest(1.0) <= epsilon + 0.1
    assert largest(0.5) > epsilon + 0.5


def descent(sampling: float = 1.0, **given: Any) -> Descent:
    by = DpBlsgd(**{"batch": 64, "steps": 3, "loss_bound": 2.0, "network": "relu-cnn", **given})
    noisy = NoisyGradients(network(), "relu-cnn", toy_private(n=64), by.settings("toy"), context(), "test")
    return Descent(by, noisy, SearchingParameters(sampling, 3, 0.0), context())


def test_losses_are_clipped_with_a_rounding_margin() -> None:
    made = descent()
    weights = {name: 1000 * w.detach() for name, w in made.noisy.weights.items()}
    found = made.losses(weights, torch.arange(64))
    assert float(found.max()) == 2.0 * 127 / 128 and float(found.min()) >= 0
    broken = {name: torch.full_like(w, math.nan) for name, w in weights.items()}
    assert made.losses(broken, torch.arange(64)).unique().tolist() == [2.0 * 127 / 128]
    assert len(made.losses(weights, torch.arange(0))) == 0


@pytest.mark.parametrize("sampling", [1.0, 0.25])
def test_armijo_condition_by_hand(monkeypatch: pytest.MonkeyPatch, sampling: float) -> None:
    """Q = sum of the losses' fall - c eta |g|^2 B, for eta = 2, 1, ...; B = q N, records expected in a sample."""
    made, every = descent(sampling, rate=2.0, trials=2, slope=0.3), torch.arange(20)
    monkeypatch.setattr(dp_blsgd, "poisson_sample", lambda n, q, rng: every)
    seen: list[float] = []
    monkeypatch.setattr(Search, "choose", lambda _, decreases, noise: (seen.extend(map(float, decreases)), 1.0)[1])
    g = {name: torch.randn(w.shape, generator=rng(1)) for name, w in made.noisy.weights.items()}
    made.step_size(g)
    start = {name: w.detach().clone() for name, w in made.noisy.weights.items()}
    length = sum(float(part.double().square().sum()) for part in g.values())
    for eta, found in zip((2.0, 1.0), seen, strict=True):
        there = {name: w - eta * g[name] for name, w in start.items()}
        fall = float((made.losses(start, every) - made.losses(there, every)).sum())
        assert found == pytest.approx(fall - 0.3 * eta * length * 64 * sampling, rel=1e-5)


@pytest.mark.parametrize("missing", [0, 20, 63])
def test_one_record_moves_a_decrease_by_at_most_the_bound(missing: int) -> None:
    made = descent()
    start = {name: w.detach() for name, w in made.noisy.weights.items()}
    there = {name: w - 30 * torch.ones_like(w) for name, w in start.items()}
    every = torch.arange(64)
    without = every[every != missing]
    falls = [(made.losses(start, chosen) - made.losses(there, chosen)).sum() for chosen in (every, without)]
    assert 0 < abs(float(falls[0] - falls[1])) <= 2.0


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [FREE, Budget(3.0)], ids=["own noise", "solved noise"])
def test_search_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    """eps_s by the ledger's Gaussian: Lap(2 C_f / eps_s) once, and Lap(4 C_f / eps_s) on every answer."""
    scales: list[list[float]] = []
    laplace, step_size = Noise.laplace, Descent.step_size
    monkeypatch.setattr(Descent, "step_size", lambda self, g: (scales.append([]), step_size(self, g))[1])
    monkeypatch.setattr(
        Noise, "laplace", lambda self, values, scale: (scales[-1].append(scale), laplace(self, values, scale))[1]
    )
    release = convert(DpBlsgd, budget, batch=16, steps=6, multiplier=2.5, search=1.5, loss_bound=3.0, turn=-1.0)
    gradients, searches = release.ledger.entries(Unit.EXAMPLE)
    unit = 3.0 / search_epsilon(searches.event, gradients.event)
    assert len(scales) == searches.count == 6
    for first, *others in scales:
        assert first == pytest.approx(2 * unit)
        assert 1 <= len(others) <= DpBlsgd.trials and others == pytest.approx([4 * unit] * len(others))


def search_epsilon(search: Any, gradient: Any) -> float:
    """eps_s of searches on Poisson samples of the gradients' rate, above each of which this Gaussian is."""
    half = 1 / search.noise_multiplier / 2
    return math.log1p((norm.cdf(half) / norm.cdf(-half) - 1) / gradient.sampling_probability)


@pytest.mark.thorough
def test_search_has_an_independent_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a search from a stream that nothing else is drawn from, and no other record is looked at."""
    gradients, searches = (record_calls(monkeypatch, module, "poisson_sample") for module in (dp_sgd, dp_blsgd))
    noises, names = record_calls(monkeypatch, Noise, "laplace"), record_calls(monkeypatch, Context, "privacy_noise")
    seen: list[tuple[int, Tensor]] = []
    losses = Descent.losses
    monkeypatch.setattr(
        Descent,
        "losses",
        lambda self, w, chosen: (seen.append((len(searches) - 1, chosen)), losses(self, w, chosen))[1],
    )
    release = convert(DpBlsgd, batch=16, steps=12, turn=1.0, gamma=0.42)
    rate = release.ledger.entries(Unit.EXAMPLE)[0].event.sampling_probability  # type: ignore[attr-defined]
    assert len(searches) == release.solved["iterations"] < len(gradients) == 12
    assert {call.arguments[:2] for call in (*searches, *gradients)} == {(64, rate)}
    chosen = [tuple(call.result.tolist()) for call in (*searches, *gradients)]
    assert len(set(chosen)) == len(chosen), "a sample was drawn again"
    own = {id(call.arguments[2]) for call in searches}
    others = {id(call.arguments[0]) for call in noises} | {id(call.arguments[2]) for call in gradients}
    assert len(own) == 1 and not own & others
    streams = [call.arguments[1] for call in names]
    assert len(set(streams)) == len(streams), "two streams with the same draws"
    assert {number for number, _ in seen} == set(range(len(searches)))
    assert all(torch.equal(rows, searches[number].result) for number, rows in seen)


def test_gradient_is_the_mean_of_k_noisy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty batches, one iteration of two uses and a step of 1: noise of sigma C / (B sqrt(2))."""
    empty_batches(monkeypatch, dp_sgd, dp_blsgd)
    monkeypatch.setattr(Descent, "step_size", lambda self, g: 1.0)
    gradient = Descent.gradient
    monkeypatch.setattr(Descent, "gradient", lambda self, uses: gradient(self, 2))
    release = convert(DpBlsgd, steps=1, batch=8, clip=0.6, multiplier=1.5)
    assert is_normal(moved(release), 1.5 * 0.6 / 8 / math.sqrt(2))


@pytest.mark.thorough
@pytest.mark.parametrize(("turn", "iterations"), [(-1.0, 30), (1.0, 10)])
def test_turning_gradients_spend_more_up_to_t(monkeypatch: pytest.MonkeyPatch, turn: float, iterations: int) -> None:
    calls = record_calls(monkeypatch, Descent, "gradient")
    monkeypatch.setattr(Descent, "step_size", lambda self, g: 0.01)
    release = convert(DpBlsgd, steps=30, batch=8, turn=turn, gamma=0.42, most_gradients=4, multiplier=5.0)
    uses = [call.arguments[1] for call in calls]
    assert sum(uses) == 30 and len(uses) == release.solved["iterations"]
    assert uses[:5] == ([1] * 5 if turn < 0 else [1, 1, 2, 4, 4]), "k is multiplied by 1.42^2 = 2.02, up to 4"
    assert max(uses) == (1 if turn < 0 else 4) and (len(uses) == iterations or turn > 0)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 30.0])
def test_dominating_gaussian_is_the_smallest(epsilon: float) -> None:
    """Hockey-stick divergences: those of randomised response, the worst of its epsilon, are nowhere larger. At 30 both
    are 1 to the last digits."""

    def gaussian(mu: float, x: np.ndarray) -> np.ndarray:
        return norm.cdf(mu / 2 - x / mu) - np.exp(x) * norm.cdf(-mu / 2 - x / mu)

    x = np.linspace(0, epsilon * (1 - 1e-9), 2001)
    pure = (math.exp(epsilon) - np.exp(x)) / (1 + math.exp(epsilon))
    mu = dominating_mu(epsilon)
    assert (gaussian(mu, x) >= pure - 1e-12).all()
    assert epsilon > 10 or (gaussian(0.99 * mu, x) < pure - 1e-9).any()


def test_dominating_mu_at_limits() -> None:
    assert dominating_mu(0.0) == pytest.approx(0, abs=1e-12) and math.isinf(dominating_mu(math.inf))
    assert 0 < dominating_mu(1e4) < math.inf and sampled_epsilon(1e4, 0.1) == pytest.approx(1e4 + math.log(0.1))
    assert sampled_epsilon(0.7, 1.0) == 0.7 and math.isinf(sampled_epsilon(math.inf, 0.1))


@pytest.mark.thorough
def test_ledger_has_every_gradient_and_search() -> None:
    release = convert(DpBlsgd, multiplier=2.5, batch=16, steps=6, search=1.5, gamma=1.0, turn=1.0)
    gradients, searches = release.ledger.entries(Unit.EXAMPLE)
    assert gradients.count == searches.count == 6
    assert gradients.event == PoissonSampledDpEvent(0.25, GaussianDpEvent(2.5))
    epsilon = math.log(1 + 0.25 * (math.exp(0.6) - 1))
    mu = 2 * norm.ppf(math.exp(epsilon) / (1 + math.exp(epsilon)))
    assert searches.event.noise_multiplier == pytest.approx(1 / mu)  # type: ignore[attr-defined]
    assert release.solved["search_epsilon"] == pytest.approx(0.6)


def test_account_composes_gaussians_by_hand() -> None:
    """At q = 1 all is Gaussian: mu^2 = T (1 / sigma^2 + mu_s^2)."""
    plan = SearchingParameters(1.0, 10, 4.0, search=2.0)
    mu = math.sqrt(10 * (1 / 16 + dominating_mu(0.5) ** 2))
    assert gaussian_delta(epsilon_of(plan.ledger()), mu) == pytest.approx(1e-5, rel=1e-3)


def test_budget_determines_both_noises() -> None:
    release = convert(DpBlsgd, Budget(3.0), batch=64)
    assert release.claim is not None and 0.97 * 3.0 < release.claim.epsilon <= 3.0
    assert release.solved["search_epsilon"] == pytest.approx(1 / release.solved["sigma"])
