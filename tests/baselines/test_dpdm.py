"""DPDM: noisy copies, clipping and noise of its private gradient, and that the ledger accounts for them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_runs import is_normal, record_calls, renyi_epsilon, rng, synthesise
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import Tensor

from baselines.dpdm import Dpdm
from bench.dp_training import clipping, private_gradient
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.private_diffusion import LEVEL_DEVIATION, LEVEL_MEAN, DenoiserTraining, scaled
from bench.dp_training.record_draws import normal_of_keys, uniform_of_keys
from bench.nets.denoiser import DEVIATION
from bench.privacy import Budget, Unit
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher, weights
from bench.testing.toys import same_tensors

SMALL = Dpdm(width=4, blocks=1, steps=2, batch=40, copies=2, denoisings=3, samples=40, passes=1)
DELTA = 1.67e-6
"""1 / (n log n) of DPImageBench for 55,000 records of MNIST."""


def training(by: Dpdm, q: float = 1.0, z: float = 0.0) -> DenoiserTraining:
    torch.manual_seed(0)
    denoiser = by.denoiser(SHAPE, CLASSES)
    torch.nn.init.normal_(denoiser.network.last.weight)  # type: ignore[union-attr, arg-type]
    return DenoiserTraining(by, denoiser, CLASSES, DpSgdParameters(q, 1, z), context(), "test")


def flat_gradient(of: DenoiserTraining, images: Tensor, labels: Tensor, seed: int = 1) -> Tensor:
    found = of.noisy_gradient(images, labels, rng(seed), rng(seed + 1), rng(seed + 2))
    return torch.cat([g.flatten() for g in found.values()])


@pytest.mark.parametrize(("q", "steps", "epsilon", "sigma"), [
    (1 / 14, 2100, 1, 14.55), (1 / 14, 2100, 10, 2.00), (1 / 36, 5400, 1, 9.53), (1 / 36, 5400, 10, 1.39),
])  # fmt: skip
def test_sigma_of_published_settings(q: float, steps: int, epsilon: float, sigma: float) -> None:
    """Renyi epsilon at the sigma that the settings of DPImageBench lead to; 1 % of sigma is 1 to 3 % of epsilon."""
    delta = DELTA if q == 1 / 14 else 1 / (145_064 * math.log(145_064))
    least, most = (
        renyi_epsilon(PoissonSampledDpEvent(q, GaussianDpEvent(z)), steps, delta) for z in (1.01 * sigma, 0.99 * sigma)
    )
    assert least <= epsilon <= most


def test_ledger_has_the_sampled_gaussians_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = record_calls(monkeypatch, private_gradient, "poisson_sample")
    noises = record_calls(monkeypatch, clipping, "add_noise")
    (entry,) = synthesise(replace(SMALL, multiplier=1.5, batch=16, copies=5)).ledger.entries()
    assert entry.unit == Unit.EXAMPLE and entry.count == 2
    assert entry.event == PoissonSampledDpEvent(16 / 80, GaussianDpEvent(1.5))
    assert [call.arguments[1] for call in samples] == [16 / 80] * 2
    assert [call.arguments[2] for call in noises] == [1.5] * 2


@pytest.mark.parametrize("side", ["full", "half"])
def test_gradient_of_one_record_by_hand(side: Any) -> None:
    """w(s) mean |D(x + s e; s, y) - x|^2, averaged over the record's copies."""
    played = training(replace(SMALL, side=side, clip=1e9, copies=3))
    images, labels = toy_private(n=1)
    key = Noise.of(rng(2)).bits(1)[0]
    x = scaled(images, side)
    assert x.shape[2] == (SHAPE[1] if side == "full" else SHAPE[1] // 2)
    assert -1 <= float(x.min()) < 0 < float(x.max()) <= 1
    numbers = 3 * x.numel()
    sigma = (LEVEL_MEAN + LEVEL_DEVIATION * normal_of_keys(key, 0, 3)).exp()
    noise = normal_of_keys(key, 3, numbers).view(3, *x.shape[1:])
    assert float(uniform_of_keys(key, 3 + numbers, 1)) >= 0.1, "this record keeps its label"
    losses = []
    for s, e in zip(sigma, noise, strict=True):
        denoised = played.denoiser(x + s * e, s[None], labels)
        weight = (s**2 + DEVIATION**2) / (s * DEVIATION) ** 2
        losses.append(weight * (denoised - x).square().mean())
    slopes = torch.autograd.grad(torch.stack(losses).mean(), list(played.denoiser.parameters()))
    expected = torch.cat([slope.flatten() for slope in slopes])
    torch.testing.assert_close(flat_gradient(played, images, labels), expected, rtol=1e-3, atol=1e-5)


def test_copies_leave_the_mean_and_divide_the_variance() -> None:
    """K copies: the gradient before clipping has the same mean and 1 / K of the variance."""
    images, labels = toy_private(n=1)
    keys = Noise.of(rng(0)).bits(600)
    found = {}
    for copies in (1, 4):
        played = training(replace(SMALL, copies=copies, unlabelled=0.0))
        weights = {name: p.detach() for name, p in played.denoiser.named_parameters()}
        each = torch.func.vmap(torch.func.grad(played.loss), in_dims=(None, None, None, 0))
        rows = each(weights, images[0], labels[0], keys)
        found[copies] = torch.cat([row.flatten(1) for row in rows.values()], 1).double()
    one, four = found[1], found[4]
    assert float(four.var(0).sum() / one.var(0).sum()) == pytest.approx(0.25, rel=0.2)
    spread = (one.var(0).sum() / 600 + four.var(0).sum() / 600).sqrt()
    assert float((one.mean(0) - four.mean(0)).norm()) < 1.5 * float(spread)


def test_labels_are_dropped_once_per_record() -> None:
    """All copies of a record have the same label; a tenth of the records has none."""
    played, seen = training(replace(SMALL, copies=3)), []

    def spy(x: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return x

    played.denoiser.forward = spy
    played.denoiser.zero_grad()
    for key in Noise.of(rng(0)).bits(1000):
        played.loss({}, torch.zeros(1, 2, 2), torch.tensor(1), key)
    labels = torch.stack(seen)
    assert bool((labels == labels[:, :1]).all()) and set(labels.unique().tolist()) == {1, CLASSES}
    assert 60 < int((labels[:, 0] == CLASSES).sum()) < 140


@pytest.mark.parametrize("copies", [1, 4])
def test_noise_has_deviation_sigma_c_over_b_for_any_copies(copies: int) -> None:
    images, labels = toy_private(n=40)
    by = replace(SMALL, copies=copies, clip=0.7)
    plain, noisy = (flat_gradient(training(by, 0.25, z), images, labels) for z in (0.0, 3.0))
    assert is_normal(noisy - plain, 3.0 * 0.7 / 10)


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("missing", [0, 3, 7])
def test_one_record_moves_the_sum_by_at_most_the_clip(
    monkeypatch: pytest.MonkeyPatch, copies: int, missing: int
) -> None:
    """All records sampled or all but one, of the same public number."""
    images, labels = toy_private(n=8)
    ends = []
    for kept in (range(8), [i for i in range(8) if i != missing]):
        monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, source, kept=kept: torch.tensor(kept))
        ends.append(flat_gradient(training(replace(SMALL, copies=copies, clip=0.03), 0.5), images, labels))
    moved = 4 * float((ends[0] - ends[1]).norm())
    assert 0.9 * 0.03 < moved <= 0.03, "the bound must bind"


def test_chunks_do_not_change_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = toy_private(n=9)
    whole = flat_gradient(training(SMALL), images, labels)
    monkeypatch.setattr(DenoiserTraining, "at_once", lambda self, images: 2)
    torch.testing.assert_close(flat_gradient(training(SMALL), images, labels), whole, rtol=1e-3, atol=1e-6)


def test_unsampled_records_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """With empty batches any data give the same generator, to the last bit."""
    monkeypatch.setattr(private_gradient, "poisson_sample", lambda n, q, source: torch.zeros(0, dtype=torch.long))
    images, labels = toy_private()
    made = [synthesise(SMALL, private=data).generator for data in ((images, labels), (255 - images, labels.flip(0)))]
    assert same_tensors(*(weights(generator) for generator in made))  # type: ignore[arg-type]


def test_copies_come_from_the_privacy_noise() -> None:
    """Without noise, and with every record in every batch, runs differ with the system's generator."""
    free = Budget(math.inf)
    seeded, again, one, other = (
        synthesise(replace(SMALL, batch=80), free, ctx=replace(context(), noise=noise)).generator
        for noise in ("seeded", "seeded", "os", "os")
    )
    assert same_tensors(weights(seeded), weights(again)) and not same_tensors(weights(one), weights(other))  # type: ignore[arg-type]


def test_released_generator_draws_the_students_images() -> None:
    by = replace(SMALL, side="half")
    made = synthesise(by)
    sampler = by.sampler(SHAPE, CLASSES, "toy")
    sampler.generator.load_state_dict(made.generator.state_dict())  # type: ignore[union-attr]
    images, labels = made.draw(8, rng(4))
    with torch.no_grad():
        again = sampler.decode(sampler.latents(8, rng(4)), labels)
    assert images.shape == (8, *SHAPE) and labels.tolist() == [i % CLASSES for i in range(8)]
    torch.testing.assert_close(images, again)


def test_budget_solves_noise_or_steps() -> None:
    by = replace(SMALL, batch=16)
    noise = synthesise(by, Budget(2.0)).solved
    assert noise["sigma"] > 0.5 and noise["steps"] == 2
    steps = synthesise(replace(by, multiplier=3.0), Budget(2.0, solve="steps")).solved
    assert steps["sigma"] == 3.0 and steps["steps"] > 2


@pytest.mark.thorough
@pytest.mark.parametrize(("z", "learns"), [(0.0, True), (1000.0, False)])
def test_denoiser_learns_only_without_noise(z: float, learns: bool) -> None:
    """The loss of records on new copies, against that of a denoiser that returns no detail."""
    by = replace(SMALL, steps=150, rate=3e-3, batch=80, multiplier=z, average=0.0, copies=2)
    private, played = toy_private(), training(by)
    torch.nn.init.zeros_(played.denoiser.network.last.weight)  # type: ignore[union-attr, arg-type]
    keys = Noise.of(rng(9)).bits(len(private[0]))

    def loss() -> float:
        weights = {name: p.detach() for name, p in played.denoiser.named_parameters()}
        return float(torch.func.vmap(played.loss, in_dims=(None, 0, 0, 0))(weights, *private, keys).mean())

    before = loss()
    played.parameters = DpSgdParameters(1.0, by.steps, z)
    played.run(*private)
    assert (loss() < 0.7 * before) is learns


def test_toy_teacher_is_not_queried() -> None:
    made = SMALL.convert(replace(toy_teacher(), private=toy_private(), model=None), "datalens", Budget(3.0), context())  # type: ignore[arg-type]
    assert made.claim is not None and made.claim.epsilon <= 3.0
