"""P3GM: sensitivities and noise of every release, the gradients, the mixture's algebra, and claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, ForbiddenTeacher
from scipy import stats
from torch import Tensor

from baselines.p3gm import mixture as phases
from baselines.p3gm.accounting import P3gmParameters, sampled_renyi
from baselines.p3gm.mixture import (
    Mixture,
    Projection,
    initial_mixture,
    private_components,
    private_mean,
    private_mixture,
)
from baselines.p3gm.network import PhasedVae
from baselines.p3gm.p3gm import P3gm
from bench.api import Teacher
from bench.config import configure
from bench.dp_training import clipping
from bench.dp_training.private_gradient import PrivateGradient
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account, check_budget
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, recording_context, toy_private

AUTHORS = P3gmParameters(None, 5.0, 100.0, 1.4, 1, 20, 300 / 63_000, 840)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def toy(n: int = 80) -> Teacher:
    return Teacher(ForbiddenTeacher(), "datalens", SHAPE, CLASSES, "toy", toy_private(n=n))


def smoke(**given: str) -> P3gm:
    return configure(P3gm, "smoke", {"components": "2", **given}, "method", "printed")


def two_lumps(n: int = 2000) -> tuple[Tensor, Mixture]:
    """Codes of two well separated Gaussians in the unit disc, a quarter and three quarters; and a rough guess."""
    which = (torch.arange(n) % 4 > 0).long()
    codes = torch.tensor([[-0.5, 0.0], [0.4, 0.2]])[which] + 0.05 * torch.randn(n, 2, generator=rng())
    guess = Mixture(torch.tensor([0.5, 0.5]), torch.tensor([[-0.1, 0.0], [0.1, 0.0]]), torch.full((2, 2), 0.05))
    return codes, guess


def network(kinds: int = 2) -> PhasedVae:
    torch.manual_seed(0)
    mixture = Mixture(
        torch.full((kinds,), 1 / kinds), torch.randn(kinds, 3, generator=rng(1)) / 4, torch.full((kinds, 3), 0.1)
    )
    return PhasedVae(3, 7, (1, 2, 2), 2, mixture)


# Sensitivities: noise-free releases with and without one record.


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], float]]:
    """(shape, deviation) of every draw of noise."""
    drawn: list[tuple[tuple[int, ...], float]] = []
    gaussian = Noise.gaussian

    def spy(noise: Noise, values: Tensor, std: float) -> Tensor:
        drawn.append((tuple(values.shape), std))
        return gaussian(noise, values, std)

    monkeypatch.setattr(Noise, "gaussian", spy)
    return drawn


def test_one_record_moves_mean_within_its_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """sqrt(d) / 2 at most, reached by a black record."""
    records = torch.rand(50, 9, generator=rng())
    records[0] = 0
    drawn = spied(monkeypatch)
    whole, rest = 50 * (private_mean(records, 0.0, rng()) - 0.5), 49 * (private_mean(records[1:], 0.0, rng()) - 0.5)
    assert (whole - rest).norm().item() == pytest.approx(1.5, abs=1e-4)
    private_mean(records, 4.0, rng())
    assert drawn[-1] == ((9,), pytest.approx(4.0 * 1.5))


def test_one_record_moves_the_matrix_by_at_most_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Frobenius norm, records far outside of the ball included; noise is symmetric, of deviation sigma_p."""
    seen: list[Tensor] = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(phases.torch.linalg, "eigh", lambda m: (seen.append(m), eigh(m))[1])
    records, mean = 5 * torch.rand(40, 6, generator=rng()), torch.full((6,), 0.5)
    for rows in (records, records[1:]):
        private_components(rows, mean, 1.0, 2, 0.0, rng())
    moved = seen[0] - seen[1]
    assert moved.norm().item() == pytest.approx(1, abs=1e-5)
    assert moved.triu().norm() <= 1 + 1e-6
    private_components(records, mean, 1.0, 2, 3.0, rng())
    noise = seen[2] - seen[0]
    assert torch.allclose(noise, noise.T, atol=1e-5)


@pytest.mark.parametrize(("wrong", "fits"), [(1.0, True), (0.9, False), (1.1, False), (math.sqrt(2), False)])
def test_matrix_noise_has_its_deviation(wrong: float, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(phases.torch.linalg, "eigh", lambda m: (seen.append(m), eigh(m))[1])
    private_components(torch.full((1, 100), 0.5), torch.full((100,), 0.5), 1.0, 2, 3.0, rng())
    upper = seen[0][torch.ones(100, 100).triu().bool()]
    tail = stats.chi2.sf(float((upper / (3.0 * wrong)).square().sum()), len(upper))
    assert len(upper) == 5050 and (0.005 < tail < 0.995) == fits


@pytest.mark.parametrize("kinds", [1, 3])
def test_one_record_moves_mixture_sums_by_at_most_one(kinds: int) -> None:
    codes = F.normalize(torch.randn(60, 4, generator=rng()), dim=1)
    mixture = Mixture(
        torch.full((kinds,), 1 / kinds), torch.randn(kinds, 4, generator=rng(1)) / 2, torch.full((kinds, 4), 0.2)
    )
    for index in range(10):
        rest = codes[torch.arange(60) != index]
        pairs = list(zip(phases._sums(codes, mixture), phases._sums(rest, mixture), strict=True))
        assert all((whole - less).norm() <= 1 + 1e-6 for whole, less in pairs)
    assert (pairs[1][0] - pairs[1][1]).norm() > 0.3, "the bound is not idle"


@pytest.mark.parametrize("kinds", [1, 3])
def test_mixture_noise_is_drawn_as_in_the_ledger(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = spied(monkeypatch)
    start = Mixture(torch.full((kinds,), 1 / kinds), torch.zeros(kinds, 4), torch.full((kinds, 4), 0.2))
    private_mixture(torch.rand(30, 4, generator=rng()) / 2, start, 5, 7.0, rng())
    sums = [(kinds,)] * (kinds > 1) + [(kinds, 4), (kinds, 4)]
    assert drawn == [(shape, 7.0) for shape in 5 * sums]
    entry = replace(AUTHORS, kinds=kinds, iterations=5, mixture=7.0).ledger().entries()[1]
    assert entry.count == len(drawn) and entry.event.noise_multiplier == 7.0


# Results of the phases without noise.


def test_components_are_sorted_by_eigenvalue() -> None:
    records = 0.5 + torch.randn(400, 5, generator=rng()) * torch.tensor([0.01, 0.2, 0.05, 0.1, 0.02])
    found = private_components(records, torch.full((5,), 0.5), 2.0, 3, 0.0, rng())
    assert found.basis.abs().argmax(0).tolist() == [1, 3, 2]
    assert torch.allclose(found.basis.T @ found.basis, torch.eye(3), atol=1e-5)
    assert torch.allclose(found.variances, found.encode(records).square().mean(0), rtol=1e-3)


def test_codes_have_norm_at_most_one_and_decode() -> None:
    projection = Projection(torch.full((4,), 0.5), 2.0, torch.eye(4)[:, :3], torch.ones(3))
    records = torch.tensor([[0.9, 0.1, 0.5, 0.5], [90.0, 0.0, 0.0, 0.5]])
    codes = projection.encode(records)
    assert codes[0].tolist() == pytest.approx([0.2, -0.2, 0.0])
    assert codes[1].norm().item() == pytest.approx(1)
    assert torch.allclose(projection.decode(codes)[0], records[0])


def test_expectation_maximisation_finds_clusters() -> None:
    codes, guess = two_lumps()
    found = private_mixture(codes, guess, 20, 0.0, rng())
    assert torch.allclose(found.weights, torch.tensor([0.25, 0.75]), atol=0.01)
    assert torch.allclose(found.means, torch.tensor([[-0.5, 0.0], [0.4, 0.2]]), atol=0.01)
    assert torch.allclose(found.variances, torch.full((2, 2), 0.0025), atol=5e-4)


def test_one_component_has_the_moments() -> None:
    codes, _ = two_lumps()
    start = initial_mixture(Projection(torch.zeros(2), 1.0, torch.eye(2), torch.tensor([0.2, 0.1])), 1, rng())
    found = private_mixture(codes, start, 3, 0.0, rng())
    assert torch.allclose(found.means[0], codes.mean(0), atol=1e-4) and found.weights.item() == 1
    assert torch.allclose(found.variances[0], codes.var(0, correction=0), atol=1e-4)


def test_noisy_mixture_can_be_sampled() -> None:
    codes, guess = two_lumps()
    found = private_mixture(codes, guess, 5, 1e5, rng())
    assert bool((found.variances > 0).all()) and found.weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert bool((found.variances <= 0.05 + 1e-6).all()) and bool((found.means.abs() <= 3 * 0.05**0.5 + 1e-6).all())
    assert bool((found.weights > 0).all()) and bool(found.sample(9, rng()).isfinite().all())


def test_samples_have_the_mixtures_moments() -> None:
    mixture = Mixture(torch.tensor([0.2, 0.8]), torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.04], [0.01]]))
    drawn = mixture.sample(20_000, rng())
    assert drawn.mean().item() == pytest.approx(0.6, abs=0.03)
    low = drawn[drawn < 0]
    assert len(low) / 20_000 == pytest.approx(0.2, abs=0.015) and low.std().item() == pytest.approx(0.2, abs=0.01)


def test_log_densities_match_scipy() -> None:
    mixture = Mixture(torch.tensor([0.2, 0.8]), torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 2.0]] * 2))
    codes = torch.randn(5, 2, generator=rng())
    found = mixture.log_densities(codes)
    for k in range(2):
        density = stats.multivariate_normal(mixture.means[k].numpy(), np.diag([1.0, 2.0]))
        expected = math.log([0.2, 0.8][k]) + density.logpdf(codes.numpy())
        assert found[:, k].numpy() == pytest.approx(expected, abs=1e-5)


def test_divergence_is_exact_or_a_bound() -> None:
    mean, log_variance = torch.tensor([[0.3, -0.2]]), torch.tensor([[-1.0, 0.5]])
    one = Mixture(torch.ones(1), torch.tensor([[0.1, 0.4]]), torch.tensor([[0.5, 2.0]]))
    normal = torch.distributions.Normal
    exact = torch.distributions.kl_divergence(
        normal(mean, (log_variance / 2).exp()), normal(one.means, one.variances.sqrt())
    ).sum()
    assert one.divergence(mean, log_variance).item() == pytest.approx(exact.item(), rel=1e-5)
    two = Mixture(torch.tensor([0.3, 0.7]), torch.tensor([[0.1, 0.4], [0.5, -0.5]]), torch.tensor([[0.5, 2.0]] * 2))
    draws = normal(mean, (log_variance / 2).exp())
    z = mean + (log_variance / 2).exp() * torch.randn(200_000, 2, generator=rng())
    sampled = (draws.log_prob(z).sum(1) - two.log_densities(z).logsumexp(1)).mean().item()
    bound = two.divergence(mean, log_variance).item()
    assert sampled - 0.01 < bound < sampled + 0.5


# The gradients.


def record_loss(vae: PhasedVae) -> Callable[..., Tensor]:
    def loss(parameters: dict[str, Tensor], record: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
        def of(name: str, x: Tensor) -> Tensor:
            hidden = F.linear(x, parameters[f"{name}.first.weight"], parameters[f"{name}.first.bias"]).relu()
            return F.linear(hidden, parameters[f"{name}.last.weight"], parameters[f"{name}.last.bias"])

        log_variance = of("variance", record)
        made = of("decoder.body", mean + torch.exp(log_variance / 2) * noise)
        return (record - made).square().sum() + vae.mixture.divergence(mean[None], log_variance[None])[0]

    return loss


@pytest.mark.parametrize("clip", [1e9, 1.0, 0.01])
def test_clipped_sums_match_per_sample_gradients(clip: float) -> None:
    vae = network()
    records, means = torch.rand(9, 6, generator=rng(1)), torch.randn(9, 3, generator=rng(2)) / 4
    noise = torch.randn(9, 3, generator=rng(3))
    found = vae.clipped_sum(records, means, noise, clip)
    formed = PrivateGradient(1.0, 0.0, clip)
    expected = formed(dict(vae.named_parameters()), record_loss(vae), (records, means, noise), 9, rng())
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == torch.float64
        assert torch.allclose(found[name] / 9, value.double(), rtol=1e-3, atol=1e-6 * min(clip, 1.0)), name


def test_one_record_moves_sum_by_at_most_the_clip() -> None:
    vae = network()
    records = torch.tensor([[20.0] * 6, [0.5] * 6, [math.nan] * 6, [math.inf] * 6])
    for index, least in ((0, 0.0099), (1, 0.0099), (2, 0.0), (3, 0.0)):
        row = records[index : index + 1]
        moved = vae.clipped_sum(row, torch.zeros(1, 3), torch.ones(1, 3), 0.01)
        norm = torch.cat([v.flatten() for v in moved.values()]).norm()
        assert least <= norm <= 0.01 * (1 + 1e-4) if least else norm == 0


def test_empty_batch_releases_only_noise() -> None:
    moved = network().clipped_sum(torch.zeros(0, 6), torch.zeros(0, 3), torch.zeros(0, 3), 1.0)
    assert all(bool((value == 0).all()) for value in moved.values())


def test_steps_draw_noise_and_samples_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    import baselines.p3gm.network as module

    drawn: list[float] = []
    rates: list[float] = []
    sample, add = module.poisson_sample, clipping.add_noise
    monkeypatch.setattr(
        clipping, "add_noise", lambda t, groups, z, g: (drawn.append(z * groups[0].bound), add(t, groups, z, g))
    )
    monkeypatch.setattr(module, "poisson_sample", lambda n, q, g: (rates.append(q), sample(n, q, g))[1])
    release = smoke(clip="0.5", noise_steps="3.0").convert(toy(), "datalens", FREE, context())
    entry = release.ledger.entries()[-1]
    assert drawn == [1.5] * 3 and rates == [0.5] * 3
    assert (entry.event.sampling_probability, entry.event.event.noise_multiplier, entry.count) == (0.5, 3.0, 3)


# What is said.


def test_authors_settings_have_their_epsilon() -> None:
    """0.986 of the script for epsilon 1, delta 1e-5; the ledger's own number is below it."""
    assert AUTHORS.claim(1e-5).epsilon == pytest.approx(0.986, abs=5e-4)
    assert P3gm().calibrate(63_000, FREE) == AUTHORS
    assert 0.8 < account(AUTHORS.ledger(), Unit.EXAMPLE, 1e-5).epsilon < 0.986


@pytest.mark.parametrize(("q", "sigma"), [(0.005, 1.4), (0.2, 3.0), (0.02, 0.7)])
def test_sampled_divergences_match_dp_accounting(q: float, sigma: float) -> None:
    from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_poisson_subsampled_gaussian

    orders = [2, 5, 31]
    expected = _compute_rdp_poisson_subsampled_gaussian(q, sigma, orders)
    assert sampled_renyi(q, sigma)[[o - 2 for o in orders]] == pytest.approx(expected, rel=1e-6)


def test_claim_of_gaussians_by_hand() -> None:
    """q = 1, T = 1: R(a) = a rho, rho = 1/2 (1/4 + 3/9 + 1/16)."""
    plan = P3gmParameters(None, 2.0, 3.0, 4.0, 1, 1, 1.0, 1)
    rho = (1 / 4 + 3 / 9 + 1 / 16) / 2
    by_hand = min(a * rho + math.log(1 - 1 / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in range(2, 513))
    assert plan.renyi_epsilon(1e-5) == pytest.approx(by_hand, rel=1e-9)


def test_paid_mean_is_in_ledger_and_claim() -> None:
    paid = replace(AUTHORS, mean=20.0)
    assert [e.event.noise_multiplier for e in paid.ledger().entries()[:2]] == [20.0, 5.0]
    assert paid.renyi_epsilon(1e-5) > AUTHORS.renyi_epsilon(1e-5)
    ctx = recording_context()
    release = smoke(mean="noisy").convert(toy(), "datalens", FREE, ctx)
    assert len(release.ledger.entries()) == 4
    assert len(ctx.streams) == len(set(ctx.streams)) == 6, "two streams with the same draws"
    assert len(smoke(mean="half").convert(toy(), "datalens", FREE, context()).ledger.entries()) == 3


@pytest.mark.parametrize(
    ("account", "target", "records"),
    [("claimed", 1.0, 50_000), ("claimed", 10.0, 50_000), ("accounted", 1.0, 200), ("accounted", 10.0, 200)],
)
def test_budget_is_divided_and_met(account: Any, target: float, records: int) -> None:
    budget, method = Budget(target, account=account), P3gm(mean="noisy", components=3, share=0.6, steps=50)
    plan = method.calibrate(records, budget)
    assert plan.mean == pytest.approx(20 * plan.factor) and plan.components == pytest.approx(5 * plan.factor)
    assert plan.mixture == pytest.approx(100 * plan.factor)
    assert 0.97 * 0.6 * target < replace(plan, steps=0).cost(budget) <= 0.6 * target
    assert 0.97 * target < plan.cost(budget) <= target < replace(plan, gradients=0.98 * plan.gradients).cost(budget)
    check_budget(plan.ledger(), plan.claim(1e-5), budget)


def test_authors_budget_gives_the_authors_noise() -> None:
    plan = P3gm().calibrate(63_000, Budget(0.986))
    assert plan.factor == pytest.approx(1, abs=0.01) and plan.gradients == pytest.approx(1.4, abs=0.05)


def test_budget_determines_the_steps() -> None:
    budget = Budget(1.5, solve="steps")
    plan = P3gm().calibrate(63_000, budget)
    assert plan.factor == 1 and plan.cost(budget) <= 1.5 < replace(plan, steps=plan.steps + 1).cost(budget)


def test_overspent_first_phase_is_refused() -> None:
    with pytest.raises(BenchError, match="--solve steps") as caught:
        P3gm().calibrate(60_000, Budget(0.1, solve="steps"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("silent", ["noise_components", "noise_mixture", "noise_steps", "noise_mean"])
def test_phase_without_noise_has_infinite_epsilon(silent: str) -> None:
    plan = replace(P3gm(mean="noisy"), **{silent: 0.0}).calibrate(60_000, FREE)
    assert math.isinf(plan.renyi_epsilon(1e-5)) and math.isinf(account(plan.ledger(), Unit.EXAMPLE, 1e-5).epsilon)


@pytest.mark.parametrize("little", [1e-150, 1e-160, 1e-170, 1e-200])
def test_underflowing_noise_has_infinite_epsilon(little: float) -> None:
    plan = replace(P3gm(), noise_steps=little).calibrate(60_000, FREE)
    assert plan.renyi_epsilon(1e-5) > 1e300 and replace(plan, steps=0).renyi_epsilon(1e-5) > 0


def test_infinite_budget_has_no_noise() -> None:
    plan = P3gm(mean="noisy").calibrate(60_000, Budget(math.inf))
    assert (plan.mean, plan.components, plan.mixture, plan.gradients) == (0, 0, 0, 0)


def test_more_latents_than_pixels_are_refused() -> None:
    with pytest.raises(BenchError, match="latent is 300") as caught:
        smoke(latent="300").convert(toy(), "datalens", FREE, context())
    assert "\n" not in str(caught.value)


def quarters(method: P3gm, budget: Budget) -> float:
    """Share of generated records whose brightest quarter is that of their decoded label."""
    torch.manual_seed(0)
    private = toy(400)
    assert private.private is not None
    made = method.synthesise(*private.private, private, budget, context())
    assert made.draw is not None
    with torch.no_grad():
        images, labels = made.draw(200, rng())
    assert 0 <= images.min() <= images.max() <= 1
    light = F.avg_pool2d(images, 8).flatten(1)
    return float((light.argmax(1) == labels).float().mean())


@pytest.mark.thorough
def test_images_match_labels_unless_noise_dominates() -> None:
    given = {"latent": "3", "components": "4", "iterations": "20", "steps": "60", "warm": "150", "hidden": "64"}
    method = smoke(mean="noisy", scale="0", rate="0.005", batch="100", **given)
    assert quarters(method, Budget(math.inf)) > 0.9
    noisy = replace(method, noise_mean=1e3, noise_components=1e5, noise_mixture=1e5, noise_steps=1e3)
    assert quarters(noisy, FREE) < 0.6
