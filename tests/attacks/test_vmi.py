from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from inversion_made import SHAPE, TINY_GAN, Quadrants, SmoothGenerator
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from attacks.vmi.distributions import flow, gaussian, start_flow
from attacks.vmi.vmi import Vmi
from bench.api import Target, Tensors
from bench.testing import context

TINY: dict[str, Any] = TINY_GAN | {"flow_steps": 2, "hidden": 5, "iterations": 4, "samples": 3}
TINY |= {"lr": 0.05, "optimiser": "adam"}
AUX = torch.rand(16, *SHAPE, generator=torch.Generator().manual_seed(0))
FAMILIES = ("full", "diagonal", "flow")


class Bowl(nn.Module):
    """Two classes; -log p_0 at the latent z is exactly (z - a)' K (z - a) / 2."""

    def __init__(self, k: Tensor, a: Tensor) -> None:
        super().__init__()
        self.k, self.a = k, a

    def forward(self, x: Tensor) -> Tensor:
        gap = x.flatten(1).logit() - self.a
        u = torch.einsum("ni,ij,nj->n", gap, self.k, gap) / 2 + 1e-4
        return torch.stack([-u, (-torch.expm1(-u)).log()], 1)


class Sigmoid(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.sigmoid().view(-1, 1, 1, z.shape[1])


def target(model: nn.Module | None = None) -> Target:
    return Target(model or Quadrants(20.0), "weights", SHAPE, 4)


@pytest.fixture
def smooth(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = SmoothGenerator(slope=2.0)
    monkeypatch.setattr(Vmi, "gan", lambda *_: (generator, None))


def random_flow(count: int, latent: int, steps: int, hidden: int, size: float = 0.4) -> Tensors:
    rng = torch.Generator().manual_seed(3)
    q = start_flow(count, latent, steps, hidden, rng)
    return {name: size * torch.randn(value.shape, generator=rng) for name, value in q.items()}


def test_gaussian_by_hand() -> None:
    """d = 2, m = (1, -2), L = [[2, 0], [3, 0.5]]; entries of `below` above the diagonal do not count."""
    q = {
        "mean": torch.tensor([[1.0, -2.0]]),
        "log_scale": torch.tensor([[2.0, 0.5]]).log(),
        "below": torch.tensor([[[7.0, 9.0], [3.0, 7.0]]]),
    }
    z, kl = gaussian(q, torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, -2.0]]]))
    torch.testing.assert_close(z, torch.tensor([[[3.0, 1.0], [1.0, -1.5], [3.0, 0.0]]]))
    assert kl.item() == pytest.approx((4 + 9 + 0.25 + 1 + 4 - 2) / 2 - math.log(2 * 0.5))


def test_kl_agrees_with_torch() -> None:
    rng = torch.Generator().manual_seed(0)
    q = {name: torch.randn(5, 3, generator=rng, dtype=torch.float64) for name in ("mean", "log_scale")}
    eps = torch.randn(5, 2, 3, generator=rng, dtype=torch.float64)
    own = Normal(q["mean"], q["log_scale"].exp())
    expected = kl_divergence(own, Normal(torch.zeros(5, 3).double(), 1.0)).sum(1)
    torch.testing.assert_close(gaussian(q, eps)[1], expected)
    q["below"] = torch.randn(5, 3, 3, generator=rng, dtype=torch.float64)
    factor = q["below"].tril(-1) + torch.diag_embed(q["log_scale"].exp())
    full = MultivariateNormal(q["mean"], scale_tril=factor)
    prior = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double())
    torch.testing.assert_close(gaussian(q, eps)[1], kl_divergence(full, prior))


@pytest.mark.parametrize("latent", [2, 5, 6])
def test_flow_starts_as_the_prior(latent: int) -> None:
    q = start_flow(3, latent, 3, 4, torch.Generator().manual_seed(0))
    eps = torch.randn(3, 7, latent, generator=torch.Generator().manual_seed(1))
    z, kl = flow(q, eps)
    torch.testing.assert_close(z, eps.flip(-1))
    torch.testing.assert_close(kl, torch.zeros(3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("latent", [2, 5])
def test_flow_changes_volume_as_its_kl_says(latent: int) -> None:
    """log q(z) by the determinant of the Jacobian, sample by sample; each flow has separate parameters."""
    q = {name: value.double() for name, value in random_flow(2, latent, 4, 6).items()}
    eps = torch.randn(2, 3, latent, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z, kl = flow(q, eps)
    normal = Normal(torch.zeros(latent).double(), 1.0)
    for i in range(2):
        alone = {name: value[i : i + 1] for name, value in q.items()}
        gaps = []
        for j in range(3):
            jacobian = torch.autograd.functional.jacobian(
                lambda e, p=alone: flow(p, e.view(1, 1, -1))[0].flatten(), eps[i, j]
            )
            log_q = normal.log_prob(eps[i, j]).sum() - torch.linalg.slogdet(jacobian)[1]
            gaps.append(log_q - normal.log_prob(z[i, j]).sum())
        assert kl[i].item() == pytest.approx(torch.stack(gaps).mean().item())
    assert (jacobian.abs() > 1e-6).sum() > latent


def test_flow_without_couplings_has_the_gaussians_kl() -> None:
    """One step: z = scale eps + shift in reversed order; its KL estimated by many samples."""
    q = start_flow(1, 3, 1, 2, torch.Generator().manual_seed(0))
    q["log_scale"][0, 0], q["shift"][0, 0] = torch.tensor([0.3, -0.5, 0.1]), torch.tensor([1.0, 0.0, -2.0])
    exact = gaussian({"mean": q["shift"][:, 0], "log_scale": q["log_scale"][:, 0]}, torch.zeros(1, 1, 3))[1]
    estimate = flow(q, torch.randn(1, 200_000, 3, generator=torch.Generator().manual_seed(0)))[1]
    assert estimate.item() == pytest.approx(exact.item(), abs=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_fit_finds_a_known_posterior(family: str) -> None:
    """For -log p_0 = (z - a)' K (z - a) / 2 the best N(m, S) has m = (K + gI)^-1 K a and S = g (K + gI)^-1.

    With a diagonal S, its variances are g / (K_ii + g).
    """
    k, a, gamma = torch.tensor([[2.0, 1.2], [1.2, 1.5]]), torch.tensor([0.8, -0.5]), 0.5
    changes = {"family": family, "latent": 2, "iterations": 500, "samples": 64, "lr": 0.02, "kl_weight": gamma}
    attack, ctx, first = Vmi(**TINY | changes), context(), torch.tensor([0])
    bowl = Target(Bowl(k, a), "weights", (1, 1, 2), 2)
    q = attack._fit(first, first, attack._priors(1, ctx), Sigmoid(), bowl, ctx, lambda _: None)
    precise = torch.linalg.inv(k + gamma * torch.eye(2))
    torch.testing.assert_close(q["mean"][0], precise @ k @ a, atol=0.05, rtol=0)
    factor = torch.diag(q["log_scale"][0].exp())
    if family == "diagonal":
        torch.testing.assert_close((factor @ factor).diag(), gamma / (k.diag() + gamma), atol=0.03, rtol=0)
        return
    factor = factor + q["below"][0].tril(-1)
    expected = gamma * precise
    assert abs(expected[0, 1]) > 0.1
    torch.testing.assert_close(factor @ factor.T, expected, atol=0.05, rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_fit_reaches_the_class_unless_kl_weight_is_large(smooth: None, family: str, optimiser: str) -> None:
    settings = {**TINY, "family": family, "optimiser": optimiser, "iterations": 120, "samples": 8}
    settings["lr"] = 0.05 if optimiser == "adam" else 0.01

    def confidence(**changes: Any) -> Tensor:
        found = Vmi(**{**settings, **changes}).run(target(), AUX, context())
        return target().scores(found.images).gather(1, found.targets[:, None])

    free, held = confidence(kl_weight=1e-3), confidence(kl_weight=5.0)
    assert free.mean() > 0.8 > 0.45 > held.mean()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [1, 7])
def test_result_does_not_depend_on_the_batch(smooth: None, family: str, optimiser: str, batch: int) -> None:
    settings = {**TINY, "family": family, "optimiser": optimiser}
    whole = Vmi(**settings).run(target(), AUX, context())
    chunked = Vmi(**settings, batch=batch).run(target(), AUX, context())
    torch.testing.assert_close(chunked.images, whole.images, rtol=0, atol=1e-5)
    assert torch.equal(chunked.targets, whole.targets)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_and_classes_have_separate_noise(smooth: None, family: str) -> None:
    attack = Vmi(**{**TINY, "family": family})
    one, same, other = (attack.run(target(), AUX, context(seed)).images for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert len(torch.unique(one.flatten(1), dim=0)) == len(one)


def test_label_smoothing_limits_confidence(smooth: None) -> None:
    settings = {**TINY, "family": "diagonal", "iterations": 150, "kl_weight": 0.0}
    sure, smoothed = (Vmi(**settings, label_smoothing=share).run(target(), AUX, context()) for share in (0.0, 0.8))
    ours = [target().scores(r.images).gather(1, r.targets[:, None]).mean().item() for r in (sure, smoothed)]
    assert ours[0] > 0.8 > ours[1]
