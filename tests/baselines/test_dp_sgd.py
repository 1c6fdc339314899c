"""DP-SGD: noise, Poisson sampling, a step by hand, and its cost against other accountants."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import epsilon_of, flat, gaussian_delta, is_normal, record_calls, refused, renyi_epsilon, rng
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_sgd_made import PLAIN, ROOM, network, records
from scipy import stats
from torch import Tensor, nn

from bench.dp_training import dp_sgd
from bench.dp_training.accounting import DpSgdParameters, calibrate
from bench.dp_training.clipping import ClippingGroup, add_noise, clipping_groups, poisson_sample
from bench.dp_training.dp_sgd import WeightAverage, refuse_mixing, train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.nets import Classifier, SmallNet
from bench.privacy import Budget, Unit
from bench.testing import context, toy_private


def linear() -> Classifier:
    """One linear layer on the pixels, its gradient easily written by hand."""
    torch.manual_seed(0)
    made = SmallNet()
    made.trunk, made.head = nn.Sequential(nn.Flatten()), nn.Linear(4, 2)
    return Classifier(made, 0.0, 1.0)


def trained(data: tuple[Tensor, Tensor], settings: DpSgdSettings, q: float, steps: int, z: float, **ctx: Any) -> Tensor:
    """The weights of the network after these steps."""
    model = network()
    train(model, "tanh-cnn", data, settings, DpSgdParameters(q, steps, z), replace(context(), **ctx), "test")
    return flat(model)


@pytest.mark.parametrize("kind", ["flat", "layer"])
def test_group_shares_compose_to_one_gaussian(kind: Any) -> None:
    """mu^2 = sum of (C_g / std_g)^2 = 1 / z^2, and the bounds add up to C."""
    groups = clipping_groups(["a.weight", "b.weight", "c.weight"], 2.0, kind)
    assert sum(g.share for g in groups) == pytest.approx(1)
    assert math.sqrt(sum(g.bound**2 for g in groups)) == pytest.approx(2.0)
    assert sum((g.bound / (3 * g.bound / math.sqrt(g.share))) ** 2 for g in groups) == pytest.approx(1 / 9)


def test_noise_has_the_deviation_of_its_group() -> None:
    groups = [ClippingGroup(("a",), 0.5, 0.25), ClippingGroup(("b",), 2.0, 0.75)]
    total = {"a": torch.zeros(4000), "b": torch.zeros(4000)}
    add_noise(total, groups, 3.0, rng())
    for name, std in (("a", 3 * 0.5 / 0.5), ("b", 3 * 2 / math.sqrt(0.75))):
        assert is_normal(total[name], std)


@pytest.mark.parametrize("views", [1, 3])
def test_noise_is_divided_by_the_expected_batch(monkeypatch: pytest.MonkeyPatch, views: int) -> None:
    """Empty batches: T steps of rate 1 move a weight by N(0, T (z C / B)^2), B = 8 expected records, not 0."""
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    settings, start = replace(PLAIN, clip=0.7, views=views), flat(network())
    found = trained(records(64), settings, 8 / 64, 4, 1.5)
    assert is_normal(found - start, math.sqrt(4) * 1.5 * 0.7 / 8)
    assert torch.equal(trained(records(64), settings, 8 / 64, 2, 0.0), start), "without noise nothing changes"
    other = trained(records(64), settings, 8 / 64, 4, 1.5, noise="os")
    assert not torch.equal(other, found), "the system's noise"


def test_system_noise_also_draws_the_samples() -> None:
    """Amplification needs secret samples: without noise two runs on the system's entropy differ by their samples."""
    for noise, same in (("seeded", True), ("os", False)):
        one, other = (trained(records(40), PLAIN, 0.5, 2, 0.0, noise=noise) for _ in range(2))
        assert torch.equal(one, other) == same


@pytest.mark.parametrize("way", GRADIENTS)
def test_step_is_clipped_sum_over_expected_batch(way: Any) -> None:
    """q = 1 takes every record. One linear layer on two records: gradient (p - e_y) x^T, worked here by hand."""
    model = linear()
    images = torch.tensor([[255, 0, 0, 0], [0, 255, 255, 0]], dtype=torch.uint8).view(2, 1, 2, 2)
    labels = torch.tensor([0, 1])
    weight, bias = (p.detach().clone() for p in model.body.head.parameters())
    expected_w, expected_b = torch.zeros_like(weight), torch.zeros_like(bias)
    for x, y in zip(images.float().flatten(1) / 255, labels, strict=True):
        error = (weight @ x + bias).softmax(0) - F.one_hot(y, 2)
        norm = math.sqrt(float(error.square().sum()) * (float(x.square().sum()) + 1))
        expected_w += torch.outer(error, x) * min(1.0, ROOM * 0.8 / norm)
        expected_b += error * min(1.0, ROOM * 0.8 / norm)
    settings = replace(PLAIN, clip=0.8, rate=0.3, gradients=way, chunk=1)
    train(model, "linear", (images, labels), settings, DpSgdParameters(1.0, 1, 0.0), context(), "test")
    torch.testing.assert_close(model.body.head.weight.detach(), weight - 0.3 * expected_w / 2)
    torch.testing.assert_close(model.body.head.bias.detach(), bias - 0.3 * expected_b / 2)
    assert not model.training and all(p.grad is None and p.requires_grad for p in model.parameters())


def test_chunks_do_not_change_the_noise() -> None:
    """The same samples and the same noise, whether gradients are held one by one or all at once.

    Sums that differ by rounding may fall into neighbouring cells of the grid that is released, 2^-9 wide here.
    """
    one, other = (trained(records(24), replace(PLAIN, chunk=chunk), 0.5, 2, 3.0) for chunk in (1, 256))
    apart, cell = (one - other).abs(), 2.0**-9 / 12
    assert apart.max() < 1.01 * 2 * cell
    assert (apart > 1e-5).sum() < 0.001 * len(apart)


def test_every_step_draws_a_new_poisson_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, dp_sgd, "poisson_sample")
    trained(records(40), PLAIN, 0.3, 4, 1.0)
    assert [call.arguments[:2] for call in calls] == [(40, 0.3)] * 4
    assert len({tuple(call.result.tolist()) for call in calls}) == 4


def test_opacus_hooks_are_removed() -> None:
    model = network()
    names = set(model.state_dict())
    train(model, "tanh-cnn", records(12), PLAIN, DpSgdParameters(0.5, 2, 1.0), context(), "test")
    assert set(model.state_dict()) == names
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    assert not any("opacus" in type(module).__module__ for module in model.modules())
    assert not any(hasattr(p, "grad_sample") and p.grad_sample is not None for p in model.parameters())


@pytest.mark.parametrize(("q", "fits"), [(0.1, True), (0.11, False), (0.09, False)])
def test_poisson_batches_are_binomial_and_independent(q: float, fits: bool) -> None:
    n, draws, source = 300, 4000, rng()
    samples = [poisson_sample(n, 0.1, source) for _ in range(draws)]
    sizes = torch.tensor([len(s) for s in samples])
    observed = torch.bincount(sizes, minlength=n + 1).double().numpy()
    cuts = [0, 22, 25, 27, 29, 31, 33, 35, 38, n + 1]
    expected = [draws * (stats.binom.cdf(b - 1, n, q) - stats.binom.cdf(a - 1, n, q)) for a, b in pairwise(cuts)]
    p = stats.chisquare([observed[a:b].sum() for a, b in pairwise(cuts)], expected).pvalue
    assert p > 0.01 if fits else p < 1e-6
    counts = torch.bincount(torch.cat(samples), minlength=n)
    assert abs(counts.float().var() / (draws * 0.1 * 0.9) - 1) < 0.3, "every record equally often, up to chance"
    both = sum(bool((s == 0).any() and (s == 1).any()) for s in samples)
    assert stats.binomtest(both, draws, 0.01).pvalue > 0.001


def test_poisson_sample_at_limits() -> None:
    assert poisson_sample(5, 1.0, rng()).tolist() == [0, 1, 2, 3, 4]
    assert len(poisson_sample(5, 1e-12, rng())) == 0


@pytest.mark.parametrize("arch", ["resnet18", "evaluator-cnn"])
def test_network_with_batch_norm_is_refused(arch: str) -> None:
    with refused(f"{arch}.*tanh-cnn"):
        train(network(arch), arch, records(8), PLAIN, DpSgdParameters(1.0, 1, 1.0), context(), "test")


@pytest.mark.parametrize("arch", ["tanh-cnn", "relu-cnn", "tanh-vgg", "relu-vgg", "datalens"])
def test_network_without_batch_norm_is_accepted(arch: str) -> None:
    refuse_mixing(network(arch), arch)


def averaged(start: float, *given: Any) -> float:
    """The average of weights that are 1, 2 and 6 after three steps."""
    weights = {"w": nn.Parameter(torch.full((1,), start))}
    average = WeightAverage(weights, *given)
    for value in (1.0, 2.0, 6.0):
        weights["w"].data.fill_(value)
        average.update()
    average.apply()
    return weights["w"].item()


def test_weight_average_starts_as_the_plain_mean() -> None:
    assert averaged(0.0, 0.9) == pytest.approx(3.0)


def test_weight_average_warms_up_as_tensorflow() -> None:
    """Decay (1 + t) / (10 + t) at t = 0, 1, 2: 0.1, 2/11 and 3/12, the last one limited to 0.2."""
    first = 0.1 * 5 + 0.9 * 1
    second = 2 / 11 * first + 9 / 11 * 2
    assert averaged(5.0, 0.2, "tensorflow") == pytest.approx(0.2 * second + 0.8 * 6)


def test_non_finite_weights_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="NaN"):
        trained(records(8), replace(PLAIN, rate=3e38), 1.0, 3, 100.0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("batch", 0), ("steps", 0), ("clip", 0.0), ("clip", 0.9e-10), ("clip", 1.1e10), ("chunk", 257), ("rate", 0.0),
     ("multiplier", -1.0), ("momentum", 1.0), ("average", 1.0)],
)  # fmt: skip
def test_settings_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        replace(PLAIN, **{option: value})  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("clipping", ["flat", "layer"])
def test_training_learns_only_without_much_noise(clipping: Any) -> None:
    settings = replace(PLAIN, batch=64, clip=1.0, rate=0.5, clipping=clipping)
    images, labels = toy_private(1, 128)

    def accuracy(z: float) -> float:
        model = network()
        train(model, "tanh-cnn", (images, labels), settings, DpSgdParameters(0.5, 20, z), context(), "test")
        with torch.no_grad():
            return float((model(images.float() / 255).argmax(1) == labels).float().mean())

    assert accuracy(0.0) > 0.95
    assert accuracy(300.0) < 0.7


@pytest.mark.parametrize(("q", "z", "steps"), [(0.02, 2.0, 600), (0.5, 5.0, 80)])
def test_epsilon_is_below_and_near_renyi(q: float, z: float, steps: int) -> None:
    bound = renyi_epsilon(PoissonSampledDpEvent(q, GaussianDpEvent(z)), steps)
    assert 0.9 * bound < epsilon_of(DpSgdParameters(q, steps, z).ledger()) <= bound


def test_epsilon_matches_another_accountant() -> None:
    """opacus' PRV accountant (Gopi et al. 2021), whose own error is at most 0.01."""
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(1.0, 0.004, 1000)]
    found = epsilon_of(DpSgdParameters(0.004, 1000, 1.0).ledger())
    assert found == pytest.approx(other.get_epsilon(1e-5), abs=0.02)


def test_epsilon_without_sampling_is_the_gaussian() -> None:
    """mu = sqrt(T) / z."""
    found = epsilon_of(DpSgdParameters(1.0, 50, 10.0).ledger())
    assert gaussian_delta(found, math.sqrt(50) / 10.0) == pytest.approx(1e-5, rel=1e-3)


def test_ledger_has_every_noise_of_a_schedule() -> None:
    plan = DpSgdParameters(0.1, 5, 2.0, lambda step, steps: 1.0 if step < 2 else 0.5)
    entries = plan.ledger().entries(Unit.EXAMPLE)
    assert sorted((e.event.event.noise_multiplier, e.count) for e in entries) == [(1.0, 3), (2.0, 2)]
    assert plan.multipliers() == [2.0, 2.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("target", "records"), [(1.0, 100), (8.0, 50)])
def test_budget_determines_the_noise(target: float, records: int) -> None:
    plan = calibrate(replace(PLAIN, batch=50, steps=40).parameters(records), Budget(target))
    assert plan.sampling == 50 / records and plan.steps == 40
    spent = plan.claim(1e-5, "x").epsilon
    assert 0.97 * target < spent <= target
    assert replace(plan, multiplier=plan.multiplier / 1.1).claim(1e-5, "x").epsilon > target


def test_budget_determines_the_steps() -> None:
    plan = calibrate(replace(PLAIN, batch=50, multiplier=20.0).parameters(50), Budget(1.0, solve="steps"))
    assert plan.multiplier == 20.0 and plan.steps > 1
    assert plan.claim(1e-5, "x").epsilon <= 1.0 < replace(plan, steps=plan.steps + 1).claim(1e-5, "x").epsilon


@pytest.mark.parametrize(
    ("budget", "z"), [(Budget(None, solve="none"), 0.7), (Budget(3.0, solve="none"), 0.7), (Budget(math.inf), 0.0)]
)
def test_parameters_are_unchanged_if_nothing_is_solved(budget: Budget, z: float) -> None:
    """The rate of sampling is at most 1."""
    found = calibrate(replace(PLAIN, multiplier=0.7, batch=500).parameters(100), budget)
    assert (found.multiplier, found.sampling) == (z, 1.0)
    assert math.isinf(found.claim(1e-5, "x").epsilon) == (z == 0)


@pytest.mark.parametrize(
    ("budget", "named"), [(Budget(1.0, unit=Unit.QUERY), "example"), (Budget(0.001, solve="steps"), "--solve steps")]
)
def test_budget_that_cannot_be_met_is_refused(budget: Budget, named: str) -> None:
    with refused(named):
        calibrate(replace(PLAIN, multiplier=0.5).parameters(8), budget)
