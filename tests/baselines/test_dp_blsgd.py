"""DP-BLSGD: the line search by hand, one record's influence, and Gaussians that dominate purely private searches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from baseline_runs import FREE, NO_NOISE
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from privately_trained import convert, empty_batches, is_normal, moved, toy
from scipy.stats import norm
from torch import Tensor

from baselines import dp_blsgd
from baselines.dp_blsgd import (
    Descent,
    DpBlsgd,
    Search,
    SearchingParameters,
    dominating_mu,
    sampled_epsilon,
)
from bench.api import Context
from bench.dp_training import dp_sgd
from bench.dp_training.dp_sgd import NoisyGradients
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.privacy.noise import Noise, Source
from bench.testing import context, toy_private

SEARCH = Search(most=1.0, shrink=0.5, trials=4, slope=0.1, bound=2.0, epsilon=math.inf)


def answers(*values: float) -> Iterator[Tensor]:
    return (torch.tensor(value, dtype=torch.float64) for value in values)


def source(seed: int = 0) -> Noise:
    return Noise("cpu", seed)


# The line search


@pytest.mark.parametrize(
    ("values", "size"), [((1, 1, 1, 1), 1.0), ((-1, 0, 5, 5), 0.5), ((-1, -1, -1, 3), 0.125), ((-1, -2, -3, -4), 0.125)]
)
def test_first_size_that_passes_is_chosen(values: tuple[float, ...], size: float) -> None:
    assert SEARCH.choose(answers(*values), source()) == size


def test_search_stops_at_the_first_size_that_passes() -> None:
    asked: list[float] = []

    def decreases() -> Iterator[Tensor]:
        for value in (-1.0, 2.0, 3.0, 4.0):
            asked.append(value)
            yield torch.tensor(value, dtype=torch.float64)

    SEARCH.choose(decreases(), source())
    assert asked == [-1.0, 2.0]


class Spy(Noise):
    """Writes down scales."""

    def __init__(self) -> None:
        super().__init__("cpu", 0)
        self.scales: list[float] = []

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        self.scales.append(scale)
        return super().laplace(values, scale)


def test_search_noise_is_that_of_sparse_vector() -> None:
    """Lap(2 C_f / eps) once, Lap(4 C_f / eps) on every answer."""
    spy = Spy()
    Search(1.0, 0.5, 4, 0.1, bound=2.0, epsilon=0.5).choose(answers(*[-1e4] * 4), spy)
    assert spy.scales == [8.0, 16.0, 16.0, 16.0, 16.0]


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
        asked, noise = [*answers(*values)], Quick(seed, plays * 10)
        sizes = {size: place for place, size in enumerate(search.sizes())}
        return np.bincount([sizes[search.choose(iter(asked), noise)] for _ in range(plays)], minlength=len(sizes))

    def largest(bound: float) -> float:
        search = Search(most=1.0, shrink=0.5, trials=10, slope=0.1, bound=bound, epsilon=epsilon)
        one, other = (np.maximum(outcomes(search, values, seed), 1) for seed, values in enumerate(worlds))
        return float(np.abs(np.log(one / other)).max())

    assert 0.75 * epsilon <= largest(1.0) <= epsilon + 0.1
    assert largest(0.5) > epsilon + 0.5


def descent(sampling: float = 1.0, **given: Any) -> Descent:
    by = DpBlsgd(**{"batch": 64, "steps": 3, "loss_bound": 2.0, "network": "relu-cnn", **given})
    teacher = toy()
    torch.manual_seed(0)
    network = by._network("relu-cnn", teacher)
    noisy = NoisyGradients(network, "relu-cnn", toy_private(n=64), by.settings("toy"), context(), "test")
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

    def keep(decreases: Iterator[Tensor], noise: Noise) -> float:
        seen.extend(float(each) for each in decreases)
        return 1.0

    monkeypatch.setattr(type(made.search), "choose", lambda self, decreases, noise: keep(decreases, noise))
    g = {
        name: torch.randn(w.shape, generator=torch.Generator().manual_seed(1)) for name, w in made.noisy.weights.items()
    }
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


# What a search draws in a whole run


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [FREE, Budget(3.0)], ids=["own noise", "solved noise"])
def test_search_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    """eps_s by the ledger's Gaussian: Lap(2 C_f / eps_s) once, and Lap(4 C_f / eps_s) on every answer."""
    scales: list[list[float]] = []
    laplace, step_size = Noise.laplace, Descent.step_size

    def searched(self: Descent, g: Any) -> float:
        scales.append([])
        return step_size(self, g)

    def noised(self: Noise, values: Tensor, scale: float) -> Tensor:
        scales[-1].append(scale)
        return laplace(self, values, scale)

    monkeypatch.setattr(Descent, "step_size", searched)
    monkeypatch.setattr(Noise, "laplace", noised)
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


class Sampled(NamedTuple):
    """One Poisson sample."""

    records: int
    rate: float
    source: Source
    chosen: Tensor


@pytest.mark.thorough
def test_search_has_an_independent_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a search from a stream that nothing else is drawn from, and no other record is looked at."""
    samples: dict[Any, list[Sampled]] = {dp_sgd: [], dp_blsgd: []}
    names: list[str] = []
    seen: list[tuple[int, Tensor]] = []
    noises: list[Noise] = []
    poisson_sample, losses, laplace = dp_sgd.poisson_sample, Descent.losses, Noise.laplace
    privacy_noise = Context.privacy_noise

    def spied(module: Any) -> Any:
        def sample(records: int, rate: float, source: Source) -> Tensor:
            samples[module].append(Sampled(records, rate, source, poisson_sample(records, rate, source)))
            return samples[module][-1].chosen

        return sample

    def looked(self: Descent, weights: Any, chosen: Tensor) -> Tensor:
        seen.append((len(samples[dp_blsgd]) - 1, chosen))
        return losses(self, weights, chosen)

    def noised(self: Noise, values: Tensor, scale: float) -> Tensor:
        noises.append(self)
        return laplace(self, values, scale)

    def named(self: Context, name: str) -> Noise:
        names.append(name)
        return privacy_noise(self, name)

    for module in samples:
        monkeypatch.setattr(module, "poisson_sample", spied(module))
    monkeypatch.setattr(Descent, "losses", looked)
    monkeypatch.setattr(Noise, "laplace", noised)
    monkeypatch.setattr(Context, "privacy_noise", named)
    release = convert(DpBlsgd, batch=16, steps=12, turn=1.0, gamma=0.42)
    rate = release.ledger.entries(Unit.EXAMPLE)[0].event.sampling_probability  # type: ignore[attr-defined]
    gradients, searches = samples[dp_sgd], samples[dp_blsgd]
    assert len(searches) == release.solved["iterations"] < len(gradients) == 12
    assert {(each.records, each.rate) for each in (*searches, *gradients)} == {(64, rate)}
    chosen = [tuple(each.chosen.tolist()) for each in (*searches, *gradients)]
    assert len(set(chosen)) == len(chosen), "a sample was drawn again"
    assert len({id(each.source) for each in searches}) == 1
    assert not {id(each.source) for each in searches} & {*map(id, noises), *(id(each.source) for each in gradients)}
    assert len(set(names)) == len(names), "two streams with the same draws"
    assert {number for number, _ in seen} == set(range(len(searches)))
    assert all(torch.equal(rows, searches[number].chosen) for number, rows in seen)


# Gradients


def test_gradient_is_the_mean_of_k_noisy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty batches, one iteration of two uses and a step of 1: noise of sigma C / (B sqrt(2))."""
    empty_batches(monkeypatch)
    monkeypatch.setattr(dp_blsgd, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    monkeypatch.setattr(Descent, "step_size", lambda self, g: 1.0)
    gradient = Descent.gradient
    monkeypatch.setattr(Descent, "gradient", lambda self, uses: gradient(self, 2))
    release = convert(DpBlsgd, steps=1, batch=8, clip=0.6, multiplier=1.5)
    assert is_normal(moved(release), 1.5 * 0.6 / 8 / math.sqrt(2))


@pytest.mark.thorough
@pytest.mark.parametrize(("turn", "iterations"), [(-1.0, 30), (1.0, 10)])
def test_turning_gradients_spend_more_up_to_t(monkeypatch: pytest.MonkeyPatch, turn: float, iterations: int) -> None:
    uses: list[int] = []
    gradient = Descent.gradient

    def counted(self: Descent, many: int) -> Any:
        uses.append(many)
        return gradient(self, many)

    monkeypatch.setattr(Descent, "gradient", counted)
    monkeypatch.setattr(Descent, "step_size", lambda self, g: 0.01)
    release = convert(DpBlsgd, steps=30, batch=8, turn=turn, gamma=0.42, most_gradients=4, multiplier=5.0)
    assert sum(uses) == 30 and len(uses) == release.solved["iterations"]
    assert uses[:5] == ([1] * 5 if turn < 0 else [1, 1, 2, 4, 4]), "k is multiplied by 1.42^2 = 2.02, up to 4"
    assert max(uses) == (1 if turn < 0 else 4) and (len(uses) == iterations or turn > 0)


# Accounting


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
    assert release.claim is not None
    assert release.claim.epsilon == account(release.ledger, Unit.EXAMPLE, 1e-5).epsilon


def test_account_composes_gaussians_by_hand() -> None:
    """At q = 1 all is Gaussian: mu^2 = T (1 / sigma^2 + mu_s^2)."""
    plan = SearchingParameters(1.0, 10, 4.0, search=2.0)
    mu = math.sqrt(10 * (1 / 16 + dominating_mu(0.5) ** 2))
    found = account(plan.ledger(), Unit.EXAMPLE, 1e-5).epsilon
    delta = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_budget_determines_both_noises() -> None:
    release = convert(DpBlsgd, Budget(3.0), batch=64)
    assert release.claim is not None and 0.97 * 3.0 < release.claim.epsilon <= 3.0
    assert release.solved["search_epsilon"] == pytest.approx(1 / release.solved["sigma"])
    free = convert(DpBlsgd, NO_NOISE)
    assert free.solved["sigma"] == 0 and math.isinf(account(free.ledger, Unit.EXAMPLE, 1e-5).epsilon)
