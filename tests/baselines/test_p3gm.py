"""P3GM: sensitivities and noise of every release, the gradients, the mixture's algebra, and claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import baseline_runs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, epsilon_of, forbidden_teacher, record_calls, refused, rng, synthesise
from scipy import stats
from torch import Tensor

from baselines.p3gm import mixture as phases
from baselines.p3gm import network as vae
from baselines.p3gm import p3gm
from baselines.p3gm.accounting import P3gmParameters, sampled_renyi
from baselines.p3gm.mixture import Mixture, Projection, initial_mixture, private_components, private_mixture
from baselines.p3gm.network import PhasedVae
from baselines.p3gm.p3gm import P3gm
from bench.api import Context, Release
from bench.dp_training import clipping
from bench.dp_training.private_gradient import PrivateGradient
from bench.privacy import Budget
from bench.privacy.accountant import check_budget
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, recording_context, toy_private

AUTHORS = P3gmParameters(None, 5.0, 100.0, 1.4, 1, 20, 300 / 63_000, 840)


def smoke(**given: Any) -> P3gm:
    return baseline_runs.smoke(P3gm, **{"components": 2, **given})


def convert(ctx: Context | None = None, **given: Any) -> Release:
    return smoke(**given).convert(forbidden_teacher(), "datalens", FREE, ctx or context())


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


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], float]]:
    """(shape, deviation) of every draw of noise."""
    drawn: list[tuple[tuple[int, ...], float]] = []
    gaussian = Noise.gaussian

    def spy(noise: Noise, values: Tensor, std: float) -> Tensor:
        drawn.append((tuple(values.shape), std))
        return gaussian(noise, values, std)

    monkeypatch.setattr(Noise, "gaussian", spy)
    return drawn


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The noisy matrices whose eigenvectors are taken."""
    seen: list[Tensor] = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(phases.torch.linalg, "eigh", lambda m: (seen.append(m), eigh(m))[1])
    return seen


def test_one_record_moves_mean_within_its_sensitivity(drawn: list[Any]) -> None:
    """sqrt(d) / 2 at most, reached by a black record."""
    records = torch.rand(50, 9, generator=rng())
    records[0] = 0
    whole, rest = (
        50 * (phases.private_mean(records, 0.0, rng()) - 0.5),
        49 * (phases.private_mean(records[1:], 0.0, rng()) - 0.5),
    )
    assert (whole - rest).norm().item() == pytest.approx(1.5, abs=1e-4)
    phases.private_mean(records, 4.0, rng())
    assert drawn[-1] == ((9,), pytest.approx(4.0 * 1.5))


def test_one_record_moves_the_matrix_by_at_most_one(decomposed: list[Tensor]) -> None:
    """In Frobenius norm, records far outside of the ball included; noise is symmetric."""
    records, mean = 5 * torch.rand(40, 6, generator=rng()), torch.full((6,), 0.5)
    for rows, noise in ((records, 0.0), (records[1:], 0.0), (records, 3.0)):
        private_components(rows, mean, 1.0, 2, noise, rng())
    whole, rest, noisy = decomposed
    assert (whole - rest).norm().item() == pytest.approx(1, abs=1e-5)
    assert (whole - rest).triu().norm() <= 1 + 1e-6
    assert torch.allclose(noisy - whole, (noisy - whole).T, atol=1e-5)


@pytest.mark.parametrize(("wrong", "fits"), [(1.0, True), (0.9, False), (1.1, False), (math.sqrt(2), False)])
def test_matrix_noise_has_its_deviation(wrong: float, fits: bool, decomposed: list[Tensor]) -> None:
    private_components(torch.full((1, 100), 0.5), torch.full((100,), 0.5), 1.0, 2, 3.0, rng())
    upper = decomposed[0][torch.ones(100, 100).triu().bool()]
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
def test_mixture_noise_is_drawn_as_in_the_ledger(kinds: int, drawn: list[Any]) -> None:
    start = Mixture(torch.full((kinds,), 1 / kinds), torch.zeros(kinds, 4), torch.full((kinds, 4), 0.2))
    private_mixture(torch.rand(30, 4, generator=rng()) / 2, start, 5, 7.0, rng())
    sums = [(kinds,)] * (kinds > 1) + [(kinds, 4), (kinds, 4)]
    assert drawn == [(shape, 7.0) for shape in 5 * sums]
    entry = replace(AUTHORS, kinds=kinds, iterations=5, mixture=7.0).ledger().entries()[1]
    assert entry.count == len(drawn) and entry.event.noise_multiplier == 7.0


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
    normal, deviation = torch.distributions.Normal, (log_variance / 2).exp()
    one = Mixture(torch.ones(1), torch.tensor([[0.1, 0.4]]), torch.tensor([[0.5, 2.0]]))
    exact = torch.distributions.kl_divergence(normal(mean, deviation), normal(one.means, one.variances.sqrt())).sum()
    assert one.divergence(mean, log_variance).item() == pytest.approx(exact.item(), rel=1e-5)
    two = Mixture(torch.tensor([0.3, 0.7]), torch.tensor([[0.1, 0.4], [0.5, -0.5]]), torch.tensor([[0.5, 2.0]] * 2))
    z = mean + deviation * torch.randn(200_000, 2, generator=rng())
    sampled = (normal(mean, deviation).log_prob(z).sum(1) - two.log_densities(z).logsumexp(1)).mean().item()
    assert sampled - 0.01 < two.divergence(mean, log_variance).item() < sampled + 0.5


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
    """An empty batch does not move it."""
    for value, least in ((20.0, 0.0099), (0.5, 0.0099), (math.nan, 0.0), (math.inf, 0.0), (None, 0.0)):
        row = torch.zeros(0, 6) if value is None else torch.full((1, 6), value)
        moved = network().clipped_sum(row, torch.zeros(len(row), 3), torch.ones(len(row), 3), 0.01)
        norm = torch.cat([v.flatten() for v in moved.values()]).norm()
        assert least <= norm <= 0.01 * (1 + 1e-4) if least else norm == 0


def test_steps_draw_noise_and_samples_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    noises, samples = record_calls(monkeypatch, clipping, "add_noise"), record_calls(monkeypatch, vae, "poisson_sample")
    entry = convert(clip="0.5", noise_steps="3.0").ledger.entries()[-1]
    assert [call.arguments[2] * call.arguments[1][0].bound for call in noises] == [1.5] * 3
    assert [call.arguments[1] for call in samples] == [0.5] * 3
    assert (entry.event.sampling_probability, entry.event.event.noise_multiplier, entry.count) == (0.5, 3.0, 3)


def test_authors_settings_have_their_epsilon() -> None:
    """0.986 of the script for epsilon 1, delta 1e-5; the ledger's own number is below it."""
    assert AUTHORS.claim(1e-5).epsilon == pytest.approx(0.986, abs=5e-4)
    assert P3gm().calibrate(63_000, FREE) == AUTHORS
    assert 0.8 < epsilon_of(AUTHORS.ledger()) < 0.986
    solved = P3gm().calibrate(63_000, Budget(0.986))
    assert solved.factor == pytest.approx(1, abs=0.01) and solved.gradients == pytest.approx(1.4, abs=0.05)


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
    paid, ctx = replace(AUTHORS, mean=20.0), recording_context()
    assert [e.event.noise_multiplier for e in paid.ledger().entries()[:2]] == [20.0, 5.0]
    assert paid.renyi_epsilon(1e-5) > AUTHORS.renyi_epsilon(1e-5)
    assert len(convert(ctx, mean="noisy").ledger.entries()) == 4
    assert len(ctx.streams) == len(set(ctx.streams)) == 6, "two streams with the same draws"
    assert len(convert(mean="half").ledger.entries()) == 3


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


def test_budget_determines_the_steps() -> None:
    budget = Budget(1.5, solve="steps")
    plan = P3gm().calibrate(63_000, budget)
    assert plan.factor == 1 and plan.cost(budget) <= 1.5 < replace(plan, steps=plan.steps + 1).cost(budget)


def test_overspent_first_phase_and_many_latents_are_refused() -> None:
    with refused("--solve steps"):
        P3gm().calibrate(60_000, Budget(0.1, solve="steps"))
    with refused("latent is 300"):
        convert(latent="300")


@pytest.mark.parametrize("silent", ["noise_components", "noise_mixture", "noise_steps", "noise_mean"])
def test_phase_without_noise_has_infinite_epsilon(silent: str) -> None:
    plan = replace(P3gm(mean="noisy"), **{silent: 0.0}).calibrate(60_000, FREE)
    assert math.isinf(plan.renyi_epsilon(1e-5)) and math.isinf(epsilon_of(plan.ledger()))


@pytest.mark.parametrize("little", [1e-150, 1e-160, 1e-170, 1e-200])
def test_underflowing_noise_has_infinite_epsilon(little: float) -> None:
    plan = replace(P3gm(), noise_steps=little).calibrate(60_000, FREE)
    assert plan.renyi_epsilon(1e-5) > 1e300 and replace(plan, steps=0).renyi_epsilon(1e-5) > 0


@pytest.mark.thorough
def test_images_match_labels_unless_noise_dominates() -> None:
    given = {"latent": "3", "components": "4", "iterations": "20", "steps": "60", "warm": "150", "hidden": "64"}
    method = smoke(mean="noisy", scale="0", rate="0.005", batch="100", **given)
    assert baseline_runs.class_share(synthesise(method, baseline_runs.NO_NOISE, toy_private(n=400)), 200) > 0.9
    noisy = replace(method, noise_mean=1e3, noise_components=1e5, noise_mixture=1e5, noise_steps=1e3)
    assert baseline_runs.class_share(synthesise(noisy, FREE, toy_private(n=400)), 200) < 0.6


def test_initial_means_have_eigenvalue_deviations() -> None:
    variances = torch.tensor([0.25, 0.01])
    start = initial_mixture(Projection(torch.zeros(2), 1.0, torch.eye(2), variances), 4000, rng())
    assert start.means.std(0).tolist() == pytest.approx([0.5, 0.1], rel=0.05)
    assert torch.equal(start.variances, variances.expand(4000, 2)) and start.weights.sum().item() == pytest.approx(1)


def test_empty_component_keeps_a_small_weight() -> None:
    """All 1,000 codes belong to the first of two components: counts of 1,000 and, held, 1,000 / 2 / 100."""
    codes = 0.01 * torch.randn(1000, 2, generator=rng())
    guess = Mixture(torch.full((2,), 0.5), torch.tensor([[0.0, 0.0], [0.9, 0.0]]), torch.full((2, 2), 0.001))
    found = private_mixture(codes, guess, 1, 0.0, rng())
    assert found.weights.tolist() == pytest.approx([1000 / 1005, 5 / 1005], rel=1e-4)


def test_default_clipping_norm_is_that_of_uniform_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """d = 16 x 16 pixels and 4 labels: sqrt(260 / 12)."""
    calls = record_calls(monkeypatch, p3gm, "private_components")
    for scale in ("0", "1.5"):
        synthesise(smoke(scale=scale))
    assert [call.arguments[2] for call in calls] == pytest.approx([math.sqrt(260 / 12), 1.5])


def test_warm_up_targets_are_decoded_codes() -> None:
    """Codes near 0 stand for the mean: a decoder that began elsewhere comes to give it, pixel by pixel."""
    mean = torch.linspace(0.2, 0.9, 16 * 16 + CLASSES)
    projection = Projection(mean, 1.0, torch.eye(len(mean))[:, :4], torch.full((4,), 0.01))
    mixture = Mixture(torch.ones(1), torch.zeros(1, 4), torch.full((1, 4), 1e-6))
    torch.manual_seed(0)
    made = PhasedVae(4, 8, SHAPE, CLASSES, mixture)
    smoke(rate="0.02", warm="150", batch="8")._warm_up(made, projection, mixture, context())
    with torch.no_grad():
        assert float((made.decoder.body(torch.zeros(1, 4))[0] - mean).abs().max()) < 0.05


def test_draw_of_a_record_is_independent_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row i of what is drawn for all 80 records goes with record i, in every step."""
    normal, chosen = record_calls(monkeypatch, Noise, "normal"), record_calls(monkeypatch, vae, "poisson_sample")
    used = record_calls(monkeypatch, PhasedVae, "clipped_sum")
    synthesise(smoke())
    drawn = [call.result for call in normal if call.arguments[1:] == (80, 4)]
    assert len(drawn) == len(used) == len(chosen) == 3 and all(0 < len(call.result) < 80 for call in chosen)
    for all_of_them, sample, total in zip(drawn, chosen, used, strict=True):
        assert torch.equal(total.arguments[3], all_of_them[sample.result].to(total.arguments[3]))
