"""DP-SGD: amount and frequency of noise, Poisson sampling, a step by hand, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from baseline_runs import record_calls
from dp_sgd_made import CLASSES, PLAIN, ROOM, SHAPE, network, records
from scipy import stats
from torch import Tensor, nn

from bench.dp_training import dp_sgd
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.clipping import (
    ClippingGroup,
    add_noise,
    clipping_groups,
    poisson_sample,
)
from bench.dp_training.dp_sgd import WeightAverage, refuse_mixing, train
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.errors import BenchError
from bench.nets import Classifier, SmallNet
from bench.testing import context, recording_context


class Linear(SmallNet):
    """One linear layer on the pixels, its gradient easily written by hand."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten())
        self.head = nn.Linear(size, classes)


def linear() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Linear(4, 2), 0.0, 1.0)


def test_group_shares_compose_to_one_gaussian() -> None:
    """mu^2 = sum of (C_g / std_g)^2 = 1 / z^2, and the bounds add up to C."""
    for clipping in ("flat", "layer"):
        groups = clipping_groups(["a.weight", "b.weight", "c.weight"], 2.0, clipping)  # type: ignore[arg-type]
        assert sum(g.share for g in groups) == pytest.approx(1)
        assert math.sqrt(sum(g.bound**2 for g in groups)) == pytest.approx(2.0)
        assert sum((g.bound / (3 * g.bound / math.sqrt(g.share))) ** 2 for g in groups) == pytest.approx(1 / 9)


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
def test_noise_has_the_deviation_of_its_group(scale: float) -> None:
    groups = [ClippingGroup(("a",), 0.5, 0.25), ClippingGroup(("b",), 2.0, 0.75)]
    total = {"a": torch.zeros(4000), "b": torch.zeros(4000)}
    add_noise(total, groups, 3.0, torch.Generator().manual_seed(0))
    for name, std in (("a", 3 * 0.5 / 0.5), ("b", 3 * 2 / math.sqrt(0.75))):
        p = stats.kstest(total[name].double().numpy(), stats.norm(0, std * scale).cdf).pvalue
        assert p > 0.01 if scale == 1.0 else p < 1e-6


def moved_without_data(monkeypatch: pytest.MonkeyPatch, z: float, steps: int, seed: int = 0, views: int = 1) -> Tensor:
    """Return the change of the weights after `steps` steps of rate 1 with empty batches: only noise."""
    monkeypatch.setattr(dp_sgd, "poisson_sample", lambda n, q, rng: torch.zeros(0, dtype=torch.long))
    model = network()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    settings = replace(PLAIN, clip=0.7, views=views)
    train(model, "tanh-cnn", records(64), settings, DpSgdParameters(8 / 64, steps, z), context(seed), "test")
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5, math.sqrt(2)])
def test_noise_is_divided_by_the_expected_batch(monkeypatch: pytest.MonkeyPatch, scale: float, views: int) -> None:
    """Empty batches: T steps of rate 1 move a weight by N(0, T (z C / B)^2), B = 8 expected records, not 0."""
    moved = moved_without_data(monkeypatch, z=1.5, steps=4, views=views)
    p = stats.kstest(moved.double().numpy(), stats.norm(0, math.sqrt(4) * 1.5 * 0.7 / 8 * scale).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6


def test_empty_batch_without_noise_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not moved_without_data(monkeypatch, z=0.0, steps=2).any()


def test_noise_depends_on_the_context_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (moved_without_data(monkeypatch, 1.0, 1, seed=1) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, moved_without_data(monkeypatch, 1.0, 1, seed=2))


def test_system_noise_differs_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = context()
    monkeypatch.setitem(globals(), "context", lambda seed=0: replace(seeded, noise="os"))
    first, again = (moved_without_data(monkeypatch, 1.0, 1) for _ in range(2))
    assert not torch.equal(first, again)


def test_system_noise_also_draws_the_samples() -> None:
    """Amplification needs secret samples: without noise two runs on the system's entropy differ by their samples."""

    def end(noise: Any) -> Tensor:
        model = network()
        train(
            model, "tanh-cnn", records(40), PLAIN, DpSgdParameters(0.5, 2, 0.0), replace(context(), noise=noise), "test"
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(end("seeded"), end("seeded"))
    assert not torch.equal(end("os"), end("os"))


def test_privacy_noise_streams_are_distinct() -> None:
    ctx = recording_context()
    train(network(), "tanh-cnn", records(8), replace(PLAIN, views=2), DpSgdParameters(0.5, 1, 1.0), ctx, "test")
    assert len(ctx.streams) == len(set(ctx.streams)) == 3, "two streams with the same draws"


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
    ends = []
    for chunk in (1, 256):
        model = network()
        train(
            model, "tanh-cnn", records(24), replace(PLAIN, chunk=chunk), DpSgdParameters(0.5, 2, 3.0), context(), "test"
        )
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    apart, cell = (ends[0] - ends[1]).abs(), 2.0**-9 / 12
    assert apart.max() < 1.01 * 2 * cell
    assert (apart > 1e-5).sum() < 0.001 * len(apart)


def test_every_step_draws_a_new_poisson_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, dp_sgd, "poisson_sample")
    train(network(), "tanh-cnn", records(40), PLAIN, DpSgdParameters(0.3, 4, 1.0), context(), "test")
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
    rebuilt = network()
    rebuilt.load_state_dict(model.state_dict())
    images = torch.rand(3, *SHAPE)
    assert torch.equal(rebuilt.eval()(images), model(images))


@pytest.mark.parametrize(("q", "fits"), [(0.1, True), (0.11, False), (0.09, False)])
def test_poisson_batches_are_binomial_and_independent(q: float, fits: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    n, draws = 300, 4000
    samples = [poisson_sample(n, 0.1, rng) for _ in range(draws)]
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
    rng = torch.Generator().manual_seed(0)
    assert poisson_sample(5, 1.0, rng).tolist() == [0, 1, 2, 3, 4]
    assert len(poisson_sample(5, 1e-12, rng)) == 0


@pytest.mark.parametrize("arch", ["resnet18", "evaluator-cnn"])
def test_network_with_batch_norm_is_refused(arch: str) -> None:
    with pytest.raises(BenchError, match=f"{arch}.*tanh-cnn") as caught:
        train(network(arch), arch, records(8), PLAIN, DpSgdParameters(1.0, 1, 1.0), context(), "test")
    assert "\n" not in str(caught.value)


def test_network_without_batch_norm_is_accepted() -> None:
    for arch in ("tanh-cnn", "relu-cnn", "tanh-vgg", "relu-vgg", "datalens"):
        refuse_mixing(network(arch), arch)


def test_weight_average_starts_as_the_plain_mean() -> None:
    weights = {"w": nn.Parameter(torch.zeros(1))}
    average = WeightAverage(weights, 0.9)
    for value in (1.0, 2.0, 6.0):
        weights["w"].data.fill_(value)
        average.update()
    average.apply()
    assert weights["w"].item() == pytest.approx(3.0)


def test_weight_average_warms_up_as_tensorflow() -> None:
    """Decay (1 + t) / (10 + t) at t = 0, 1, 2: 0.1, 2/11 and 3/12, the last one limited to 0.2."""
    weights = {"w": nn.Parameter(torch.full((1,), 5.0))}
    average = WeightAverage(weights, 0.2, "tensorflow")
    for value in (1.0, 2.0, 6.0):
        weights["w"].data.fill_(value)
        average.update()
    average.apply()
    first = 0.1 * 5 + 0.9 * 1
    second = 2 / 11 * first + 9 / 11 * 2
    assert weights["w"].item() == pytest.approx(0.2 * second + 0.8 * 6)


def test_non_finite_weights_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="NaN"):
        train(
            network(),
            "tanh-cnn",
            records(8),
            replace(PLAIN, rate=3e38),
            DpSgdParameters(1.0, 3, 100.0),
            context(),
            "test",
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"steps": 0},
        {"clip": 0.0},
        {"clip": 0.9e-10},
        {"clip": 1.1e10},
        {"chunk": 257},
        {"rate": 0.0},
        {"multiplier": -1.0},
        {"momentum": 1.0},
        {"average": 1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(PLAIN, **wrong)


def easy(n: int) -> tuple[Tensor, Tensor]:
    """Four classes of 16x16 noise, each bright in its own quarter."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng, dtype=torch.uint8)
    labels = torch.arange(n) % CLASSES
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = divmod(label, 2)
        image[:, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += 150
    return images, labels


@pytest.mark.thorough
@pytest.mark.parametrize("clipping", ["flat", "layer"])
def test_training_learns_only_without_much_noise(clipping: Any) -> None:
    settings = replace(PLAIN, batch=64, clip=1.0, rate=0.5, clipping=clipping)
    images, labels = easy(128)

    def accuracy(z: float) -> float:
        model = network()
        train(model, "tanh-cnn", (images, labels), settings, DpSgdParameters(0.5, 20, z), context(), "test")
        with torch.no_grad():
            return float((model(images.float() / 255).argmax(1) == labels).float().mean())

    assert accuracy(0.0) > 0.95
    assert accuracy(300.0) < 0.7
