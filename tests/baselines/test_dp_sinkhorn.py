"""DP-Sinkhorn: transport against linear programmes and closed forms, clipping, noise and cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import baseline_runs as runs
import pytest
import torch
from baseline_runs import FREE, NO_NOISE, epsilon_of, is_normal, record_calls, refused, synthesise
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import optimize
from torch import Tensor, nn

from baselines.dp_sinkhorn import dp_sinkhorn
from baselines.dp_sinkhorn.accounting import SinkhornParameters
from baselines.dp_sinkhorn.dp_sinkhorn import DpSinkhorn, annealing, clipped, ground_cost, plan, transport, with_labels
from bench.privacy import Budget, Unit
from bench.privacy.accountant import check_budget
from bench.testing import CLASSES, SHAPE, context, toy_private

SIZES = pytest.mark.parametrize(("n", "m"), [(6, 6), (5, 8), (1, 4), (4, 1)])


def smoke(**given: Any) -> DpSinkhorn:
    return runs.smoke(DpSinkhorn, **{"batch": 8, **given})


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(cost: Tensor) -> float:
    """Unregularised transport of uniform weights by linear programming."""
    n, m = cost.shape
    rows, columns = torch.eye(n).repeat_interleave(m, 1), torch.eye(m).repeat(1, n)
    sums = [1 / n] * n + [1 / m] * m
    return float(optimize.linprog(cost.flatten().numpy(), A_eq=torch.cat([rows, columns]).numpy(), b_eq=sums).fun)


def entropic(cost: Tensor, scale: float) -> float:
    """W_lambda's value, iterated to the end."""
    pi = plan(cost, annealing(10.0, scale, 3000))
    return float((pi * cost).sum() + scale * (pi * (pi * cost.numel()).log()).sum())


@SIZES
def test_plan_with_small_lambda_is_the_linear_programme(n: int, m: int) -> None:
    cost = ground_cost(randn(n, 3), randn(m, 3, seed=1), 1.0)
    assert float(transport(cost, annealing(50.0, 0.05, 2000))) == pytest.approx(exact(cost), rel=2e-4)


@SIZES
def test_converged_plan_has_both_marginals(n: int, m: int) -> None:
    pi = plan(ground_cost(randn(n, 3), randn(m, 3, seed=1), 1.0), annealing(50.0, 2.0, 1000))
    assert torch.allclose(pi.sum(1), torch.full((n,), 1 / n, dtype=pi.dtype), atol=1e-12)
    assert torch.allclose(pi.sum(0), torch.full((m,), 1 / m, dtype=pi.dtype), atol=1e-8)


@pytest.mark.parametrize("c", [0.1, 1.0, 7.0])
def test_plan_of_two_points_by_hand(c: float) -> None:
    """By symmetry f = g: half of 1 / (1 + e^(-c / lambda)) on the diagonal."""
    pi = plan(torch.tensor([[0.0, c], [c, 0.0]], dtype=torch.float64), [0.7])
    assert float(pi[0, 0]) == pytest.approx(0.5 / (1 + math.exp(-c / 0.7)))
    assert torch.allclose(pi, pi.T)


def test_one_iteration_has_exact_row_sums() -> None:
    pi = plan(1e4 * randn(5, 7).abs().float(), [0.05])
    assert pi.isfinite().all() and torch.allclose(pi.sum(1), torch.full((5,), 0.2))


def test_plan_with_large_lambda_is_independent() -> None:
    assert torch.allclose(plan(randn(3, 4), [1e9]), torch.full((3, 4), 1 / 12, dtype=torch.float64))


def test_ground_cost_by_hand() -> None:
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, -2.0], [1.0, 2.0]])
    assert ground_cost(x, y, 3.0).flatten().tolist() == pytest.approx([25 + 3 * 7, 0])
    assert ground_cost(x, y, 0.0).flatten().tolist() == pytest.approx([25, 0])


@pytest.mark.thorough
def test_gradient_is_that_of_the_converged_value() -> None:
    x, y = randn(4, 3).requires_grad_(), randn(5, 3, seed=1)
    transport(ground_cost(x, y, 1.0), annealing(10.0, 0.5, 3000)).backward()
    assert x.grad is not None
    for i, j in ((0, 0), (2, 1), (3, 2)):
        step = torch.zeros_like(x)
        step[i, j] = 1e-5
        up, down = (entropic(ground_cost(x.detach() + sign * step, y, 1.0), 0.5) for sign in (1, -1))
        assert float(x.grad[i, j]) == pytest.approx((up - down) / 2e-5, rel=1e-4)


def some(n: int, further: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(seed)
    made = [torch.rand(count, *SHAPE, generator=rng) * 2 - 1 for count in (n, further) if count]
    return made, torch.arange(n) % CLASSES


def real(count: int, seed: int = 5) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(count, *SHAPE, generator=rng) * 2 - 1, torch.arange(count) % CLASSES
    return with_labels(images, labels, CLASSES, 15.0)


def test_gradient_of_one_image_and_record_by_hand() -> None:
    """n = 1, p = 1: X' is the further image, plans are certain; 2 d c(x, y) - d c(x, x')."""
    (x, other), label = some(1, 1)
    y = real(1)
    found = smoke(batch="2").gradients([x.clone(), other.clone()], label, y, CLASSES)
    image = y[:, :-CLASSES].view_as(x)
    first = 2 * (2 * (x - image) + (x - image).sign()) - (2 * (x - other) + (x - other).sign())
    assert torch.allclose(found[0], first, atol=1e-4)
    assert torch.allclose(found[1], 2 * (x - other) + (x - other).sign(), atol=1e-4)


def test_debias_zero_compares_the_set_with_itself() -> None:
    """p = 0: W(X, X) with far images is transport of each image to itself, without gradient."""
    made, labels = some(4, 0)
    y = real(6)
    with_self = smoke().gradients([x.clone() for x in made], labels, y, CLASSES)[0]
    x = made[0].clone().requires_grad_()
    rows = with_labels(x, labels, CLASSES, 15.0)
    scales = annealing(math.sqrt(4 * 256 + 4 * 225), 0.05, 1)
    (single,) = torch.autograd.grad(2 * transport(ground_cost(rows, y, 1.0), scales), x)
    assert torch.allclose(with_self, single, atol=1e-5)


def test_further_images_do_not_depend_on_records() -> None:
    """Whatever the batch, empty or not, their gradient is the same; the first images' is not."""
    made, labels = some(6, 2)
    batches = [real(0), real(1), real(9), real(9, seed=6)]
    found = [smoke().gradients([x.clone() for x in made], labels, y, CLASSES) for y in batches]
    assert all(torch.equal(found[0][1], other[1]) for other in found[1:])
    assert found[0][1].abs().sum() > 0 and not found[0][0].any(), "an empty batch releases only noise"
    assert not torch.equal(found[2][0], found[3][0])


def test_transport_depends_on_labels() -> None:
    """With a large weight a record attracts only images with its label."""
    made, labels = some(4, 0)
    images = torch.full((4, *SHAPE), -1.0)
    images[1] = 1.0
    y = with_labels(images, labels, CLASSES, 1000.0)
    found = replace(smoke(), label_weight=1000.0).gradients(made, labels, y, CLASSES)[0]
    assert (found[1] < 0).all() and (found[[0, 2, 3]] > 0).all()


@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_clipping_bounds_the_effect_of_a_record(clipping: Any) -> None:
    bound = 0.5 if clipping == "batch" else 0.5 * math.sqrt(7)
    for seed in range(20):
        x = randn(7, *SHAPE, seed=seed) * 10 ** (seed - 10)
        made = clipped(x, 0.5, clipping)
        assert float(made.norm()) <= bound * (1 + 1e-6)
        cosine = (made * x).sum() / (made.norm() * x.norm())
        assert float(cosine) == pytest.approx(1, abs=1e-9) or clipping == "image"
    small = randn(7, *SHAPE) * 1e-4
    assert torch.equal(clipped(small, 0.5, clipping), small)


def test_clipping_bound_is_reached() -> None:
    """The worst case: opposite gradients are 2 C apart, or 2 C sqrt(n); so the ledger charges no less."""
    x = torch.ones(9, *SHAPE, dtype=torch.float64)
    assert float((clipped(x, 0.5, "batch") - clipped(-x, 0.5, "batch")).norm()) == pytest.approx(1.0)
    assert float((clipped(x, 0.5, "image") - clipped(-x, 0.5, "image")).norm()) == pytest.approx(3.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradient_counts_as_zero(bad: float) -> None:
    x = torch.ones(3, *SHAPE)
    x[1, 0, 0, 0] = bad
    assert not clipped(x, 0.5, "batch").any()
    assert clipped(x, 0.5, "image")[[0, 2]].all() and not clipped(x, 0.5, "image")[1].any()


def test_noise_has_its_deviation() -> None:
    assert is_normal(dp_sinkhorn.noisy(torch.zeros(50, 1, 20, 20), 1.7, runs.rng()), 1.7)


@pytest.mark.thorough
@pytest.mark.parametrize("clipping", ["batch", "image"])
def test_noise_over_sensitivity_is_that_of_the_ledger(clipping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deviation / (2 C) for the batch; / (2 C sqrt(n)) for single images."""
    calls = record_calls(monkeypatch, dp_sinkhorn, "noisy")
    method = replace(smoke(), clipping=clipping, clip=0.3)
    (entry,) = synthesise(method).ledger.entries(Unit.EXAMPLE)
    added = [call.arguments[1] for call in calls]
    reach = 2 * 0.3 * (1 if clipping == "batch" else math.sqrt(8))
    assert len(added) == entry.count == 3 and len(set(added)) == 1
    assert entry.event == PoissonSampledDpEvent(8 / 80, GaussianDpEvent(pytest.approx(added[0] / reach)))


def test_release_shape_is_independent_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    noises = record_calls(monkeypatch, dp_sinkhorn, "noisy")
    samples = record_calls(monkeypatch, dp_sinkhorn, "poisson_sample")
    synthesise(smoke(steps=25, batch=2))
    sizes = {len(call.result) for call in samples}
    assert {call.arguments[0].shape for call in noises} == {(2, *SHAPE)} and len(sizes) > 2 and 0 in sizes


class Shade(nn.Module):
    """A generator of one shade, plus a tenth for each label."""

    def __init__(self) -> None:
        super().__init__()
        self.shade = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        return (self.shade + 0.1 * labels)[:, None, None, None].expand(-1, *SHAPE)


def test_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels from -1 to 1, the first labels again for the further images, both gradients clipped, Adam's options.

    All records are in the batch; gradients of 1 in every pixel are of norm sqrt(256 n) before they are clipped.
    """
    images, labels = toy_private(n=8)
    seen: list[Any] = []
    sent: list[list[Tensor]] = []
    options: list[tuple[float, float]] = []

    def gradients(self: DpSinkhorn, made: list[Tensor], y: Tensor, rows: Tensor, classes: int) -> list[Tensor]:
        seen.append((made, y, rows))
        return [torch.ones_like(x) for x in made]

    def step(self: torch.optim.Adam, closure: Any = None) -> None:
        options.append((self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]))

    monkeypatch.setattr(DpSinkhorn, "gradients", gradients)
    monkeypatch.setattr(torch.autograd, "backward", lambda made, found: sent.append([g.clone() for g in found]))
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    method = smoke(debias="0.5", clip="0.5", rate="0.01", weight_decay="0.002", decay="true", steps="99")
    method._train(Shade(), SinkhornParameters(1.0, 8, 4, 0.0, "batch"), images, labels, CLASSES, context())
    assert len(seen) == 4 and [len(x) for x in seen[0][0]] == [8, 4]
    for made, y, rows in seen:
        for x in made:
            assert torch.allclose(x[:, 0, 0, 0], 2 * (0.1 + 0.1 * y[: len(x)]) - 1)
        assert torch.equal(rows, with_labels(2 * (images / 255) - 1, labels, CLASSES, 15.0))
    assert any(not torch.equal(y[:4], y[4:]) for _, y, _ in seen), "else the last labels would do"
    for first, further in sent:
        assert float(first.norm()) == pytest.approx(0.5, rel=0.01)
        assert float(further.norm()) == pytest.approx(0.5, rel=0.01)
    assert options == [(pytest.approx(0.01 * (1 - t / 4)), 0.002) for t in range(4)]


CLASSIC = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 128, 256, 512]


def classic(rate: float, sigma: float, count: int) -> float:
    """Epsilon by Renyi divergences at few orders and rho + log(1 / delta) / (alpha - 1), as in the released code."""
    accountant = RdpAccountant(CLASSIC)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), count)
    return float(min(accountant._rdp[i] - math.log(1e-5) / (a - 1) for i, a in enumerate(CLASSIC)))


@pytest.mark.thorough
def test_defaults_have_renyi_epsilon_10() -> None:
    fields = smoke(batch="50", steps=str(DpSinkhorn().steps)).calibrate(60_000, FREE)
    assert classic(50 / 60_000, 1.1, fields.steps) == pytest.approx(10, abs=0.02)
    claim = fields.claim(1e-5)
    assert claim.epsilon == epsilon_of(fields.ledger())
    assert 8 < claim.epsilon < 10 and claim.disputed == ""


def test_per_image_claim_is_below_account_and_disputed() -> None:
    """The paper's 160,000 steps at sigma = 1.5: 50 samples a step are 10 by its accountant; jointly 1.5 / sqrt(50)."""
    fields = SinkhornParameters(50 / 60_000, 50, 160_000, 1.5, "image")
    assert classic(50 / 60_000, 1.5, 50 * 160_000) == pytest.approx(10.06, abs=0.02)
    claim = fields.claim(1e-5)
    assert 8 < claim.epsilon < 10.06 and claim.disputed == "per-image-composition"
    (entry,) = fields.ledger().entries(Unit.EXAMPLE)
    assert entry.count == 160_000
    assert entry.event == PoissonSampledDpEvent(50 / 60_000, GaussianDpEvent(pytest.approx(1.5 / math.sqrt(50))))
    assert epsilon_of(fields.ledger()) > 10 * claim.epsilon


def test_per_image_counts_agree_without_sampling() -> None:
    """n T Gaussians of multiplier sigma equal T of sigma / sqrt(n); only their amplification is disputed."""
    fields = SinkhornParameters(1.0, 9, 20, 30.0, "image")
    assert fields.claim(1e-5).epsilon == pytest.approx(epsilon_of(fields.ledger()))


@pytest.mark.parametrize("against", ["claimed", "accounted"])
@pytest.mark.parametrize("clipping", ["batch", "image"])
@pytest.mark.parametrize("solved", ["sigma", "steps"])
def test_budget_is_met_and_nearly_spent(clipping: Any, against: Any, solved: Any) -> None:
    """All records in every batch, which has a closed form and is quick."""
    budget = Budget(3.0, account=against, solve=solved)
    method = smoke(clipping=clipping, batch=10, steps=20, sigma=100.0)
    found = method.calibrate(10, budget)
    check_budget(found.ledger(), found.claim(1e-5), budget)
    assert 0.97 * 3.0 < epsilon_of(found.ledger()) <= 3.0
    assert (found.steps == 20) == (solved == "sigma")


def test_budget_that_cannot_be_met_is_refused() -> None:
    with refused("--solve steps"):
        smoke(sigma=0.01).calibrate(8, Budget(0.01, solve="steps"))


@pytest.mark.thorough
def test_per_image_budget_limits_the_chosen_account() -> None:
    found = smoke(clipping="image", sigma=3.0).calibrate(80, FREE)
    claimed, proved = found.cost(Budget(3.0)), found.cost(Budget(3.0, account="accounted"))
    assert claimed == found.claim(1e-5).epsilon < proved == epsilon_of(found.ledger())


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (12, 1), (16, 3), (28, 1), (32, 3), (64, 3)])
def test_generator_makes_every_size(side: int, channels: int) -> None:
    torch.manual_seed(0)
    made = dp_sinkhorn.SinkhornGenerator((channels, side, side), 3, 4, 2, 4)(torch.rand(2, 4), torch.tensor([0, 2]))
    assert made.shape == (2, channels, side, side) and 0 <= made.min() < made.max() <= 1


def test_generator_size_by_hand() -> None:
    """(16 + 8) 256 49 + 256 128 16 + 128 64 16 + 64 9 + 1 weights, 80 of the labels, 2 (256 + 128 + 64) of norms."""
    made = dp_sinkhorn.SinkhornGenerator((1, 28, 28), 10, 16, 8, 64)
    convolutions = 24 * 256 * 49 + 256 * 128 * 16 + 128 * 64 * 16 + 64 * 9 + 1
    assert sum(p.numel() for p in made.parameters()) == convolutions + 80 + 2 * (256 + 128 + 64)


@pytest.mark.thorough
def test_noiseless_images_resemble_their_class() -> None:
    method = smoke(steps=60, rate=0.01, batch=20, width=8, iterations=3)
    assert runs.class_share(synthesise(method, NO_NOISE)) > 0.9
