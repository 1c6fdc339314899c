"""P3GM's phases one by one: the mixture's start, the warm-up's target, and the draw of each record."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from baselines.p3gm import network
from baselines.p3gm import p3gm as module
from baselines.p3gm.mixture import Mixture, Projection, initial_mixture, private_mixture
from baselines.p3gm.network import PhasedVae
from baselines.p3gm.p3gm import P3gm
from bench.config import configure
from bench.privacy import Budget
from bench.privacy.noise import Noise
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher


def smoke(**given: str) -> P3gm:
    return configure(P3gm, "smoke", {"components": "2", **given}, "method", "printed")


def synthesise(method: P3gm) -> None:
    torch.manual_seed(0)
    method.synthesise(*toy_private(), toy_teacher(), Budget(None, solve="none"), context())


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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
    scales: list[float] = []
    real = module.private_components

    def spy(records: Tensor, mean: Tensor, scale: float, *rest: Any) -> Projection:
        scales.append(scale)
        return real(records, mean, scale, *rest)

    monkeypatch.setattr(module, "private_components", spy)
    for scale in ("0", "1.5"):
        synthesise(smoke(scale=scale))
    assert scales == pytest.approx([math.sqrt(260 / 12), 1.5])


def test_warm_up_targets_are_decoded_codes() -> None:
    """Codes near 0 stand for the mean: a decoder that began elsewhere comes to give it, pixel by pixel."""
    mean = torch.linspace(0.2, 0.9, 16 * 16 + CLASSES)
    projection = Projection(mean, 1.0, torch.eye(len(mean))[:, :4], torch.full((4,), 0.01))
    mixture = Mixture(torch.ones(1), torch.zeros(1, 4), torch.full((1, 4), 1e-6))
    torch.manual_seed(0)
    vae = PhasedVae(4, 8, SHAPE, CLASSES, mixture)
    smoke(rate="0.02", warm="150", batch="8")._warm_up(vae, projection, mixture, context())
    with torch.no_grad():
        assert float((vae.decoder.body(torch.zeros(1, 4))[0] - mean).abs().max()) < 0.05


def test_draw_of_a_record_is_independent_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row i of what is drawn for all 80 records goes with record i, in every step."""
    drawn: list[Tensor] = []
    chosen: list[Tensor] = []
    used: list[Tensor] = []
    normal, sample, total = Noise.normal, network.poisson_sample, PhasedVae.clipped_sum

    def spy_normal(self: Noise, *shape: int) -> Tensor:
        found = normal(self, *shape)
        if shape == (80, 4):
            drawn.append(found)
        return found

    def spy_sample(*given: Any) -> Tensor:
        chosen.append(sample(*given))
        return chosen[-1]

    def spy_sum(self: PhasedVae, records: Tensor, means: Tensor, noise: Tensor, clip: float) -> dict[str, Tensor]:
        used.append(noise)
        return total(self, records, means, noise, clip)

    monkeypatch.setattr(Noise, "normal", spy_normal)
    monkeypatch.setattr(network, "poisson_sample", spy_sample)
    monkeypatch.setattr(PhasedVae, "clipped_sum", spy_sum)
    synthesise(smoke())
    assert len(drawn) == len(used) == len(chosen) == 3 and all(0 < len(rows) < 80 for rows in chosen)
    for all_of_them, rows, noise in zip(drawn, chosen, used, strict=True):
        assert torch.equal(noise, all_of_them[rows].to(noise))
