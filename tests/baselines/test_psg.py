"""psg: the matched gradients, the spent budget, dependence on private data, and training of a student on a tiny set."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import baseline_runs as runs
import pytest
import torch
import torch.nn.functional as F
from baseline_runs import FREE, epsilon_of, is_normal, record_calls, refused, renyi_epsilon, rng, smoke
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from scipy import stats
from torch import Tensor, nn

from baselines.psg import psg
from baselines.psg.gradient_matching import Released, gradient_distance, reinitialise, train_on_set
from baselines.psg.psg import PASSES, Psg
from baselines.psg.synthetic_set import SHIFT, fit_set, moved
from bench.api import Release, Teacher
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.private_gradient import PrivateGradient
from bench.nets import Classifier
from bench.nets.classifiers.small_cnns import ConvNet
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, toy_private


def method(**given: Any) -> Psg:
    return replace(smoke(Psg, replays=1), **given)


def teacher(n: int = 80, seed: int = 0) -> Teacher:
    return runs.forbidden_teacher(n, seed)


def convert(plugin: Psg, budget: Budget = FREE, of: Teacher | None = None, seed: int = 0) -> Release:
    torch.manual_seed(seed)
    return plugin.convert(of or teacher(), "datalens", budget, context(seed))


def synthesise(plugin: Psg) -> None:
    torch.manual_seed(0)
    plugin.synthesise(toy_private(), teacher(), plugin.calibrate(80, FREE), context())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 27, 30), (3, 20, 37)])
@pytest.mark.parametrize("norm", [True, False])
def test_network_layers_and_independent_images(shape: tuple[int, int, int], norm: bool) -> None:
    torch.manual_seed(0)
    net, images = ConvNet(shape, 4, 8, 3, norm), torch.rand(3, *shape)
    cells = math.ceil(shape[1] / 8) * math.ceil(shape[2] / 8)
    assert net.features(images).shape == (3, 8 * cells)
    single = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(net(images), single, rtol=1e-4, atol=1e-5)
    assert not list(net.buffers())


def test_distance_is_one_minus_cosine_by_output() -> None:
    """A linear network on one image: row k of the gradient is (p_k - y_k) x, x = (3, 0, 0, 4)."""
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])
    weights = {"1.weight": torch.zeros(2, 4), "1.bias": torch.zeros(2)}
    theirs = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 2.0]])
    found = Released(weights, {"1.weight": theirs, "1.bias": torch.tensor([5.0, -7.0])})
    ours = [-3 / 5, 4 / 5 / math.sqrt(2)]
    distance = gradient_distance(net, found, x, torch.tensor([0])).detach()
    assert float(distance) == pytest.approx(sum(1 - cosine for cosine in ours), abs=1e-5)


def some(net: nn.Module, sign: float) -> tuple[Released, Tensor, Tensor]:
    """S, and a private gradient that is `sign` times a multiple of that of S."""
    reinitialise(net, rng())
    synthetic, targets = torch.randn(4, *SHAPE, generator=rng(1)), torch.arange(4)
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    gradients = torch.autograd.grad(F.cross_entropy(net(synthetic), targets), list(net.parameters()))
    scaled = {name: sign * 1e3 * g for name, g in zip(weights, gradients, strict=True)}
    return Released(weights, scaled), synthetic.requires_grad_(), targets


def test_distance_of_equal_and_opposite_gradients() -> None:
    net = ConvNet(SHAPE, CLASSES, 3, 2)
    rows = 3 + 3 + CLASSES
    assert float(gradient_distance(net, *some(net, 1.0)).detach()) == pytest.approx(0, abs=1e-2)
    assert float(gradient_distance(net, *some(net, -1.0)).detach()) == pytest.approx(2 * rows, abs=1e-2)


def test_steps_on_the_set_reduce_the_distance() -> None:
    net = ConvNet(SHAPE, CLASSES, 3, 2, norm=False)
    found, _, targets = some(net, 1.0)
    synthetic = torch.randn(4, *SHAPE, generator=rng(7)).requires_grad_()
    plugin = method(optimiser="adam", rate=0.1)
    optimizer = plugin._optimizer(synthetic)
    before = float(gradient_distance(net, found, synthetic, targets).detach())
    for _ in range(25):
        plugin._step(optimizer, net, found, synthetic, targets, 0.0)
    assert float(gradient_distance(net, found, synthetic, targets).detach()) < 0.6 * before


def test_set_step_is_sgd_on_the_distance() -> None:
    net = ConvNet(SHAPE, CLASSES, 3, 1)
    found, synthetic, targets = some(net, -1.0)
    start = synthetic.detach().clone()
    (slope,) = torch.autograd.grad(gradient_distance(net, found, synthetic, targets), [synthetic])
    plugin = method(rate=0.2, decay=True)
    plugin._step(plugin._optimizer(synthetic), net, found, synthetic, targets, 0.25)
    torch.testing.assert_close(synthetic.detach(), start - 0.15 * slope)


def test_reinitialised_weights_are_uniform() -> None:
    net = ConvNet((1, 16, 16), 10, 16, 2)
    for parameter in net.parameters():
        parameter.data.fill_(7.0)
    reinitialise(net, rng())
    bound = 1 / math.sqrt(16 * 9)
    drawn = net.trunk[4].weight.detach().flatten().double().numpy()
    assert stats.kstest(drawn, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.01
    assert stats.kstest(drawn, stats.uniform(-1.2 * bound, 2.4 * bound).cdf).pvalue < 1e-3
    assert (net.trunk[1].weight == 1).all() and (net.trunk[1].bias == 0).all()


def test_training_on_the_set_is_plain_sgd() -> None:
    net = ConvNet(SHAPE, CLASSES, 3, 1)
    images, labels = torch.rand(4, *SHAPE), torch.arange(4)
    slopes = torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))
    expected = [p.detach() - 0.3 * g for p, g in zip(net.parameters(), slopes, strict=True)]
    train_on_set(net, images, labels, 1, 0.3, rng())
    for p, e in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=1e-4, atol=1e-6)


def weights_at(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The weights at every use of the mechanism."""
    at, real = list[Tensor](), PrivateGradient.__call__

    def call(mechanism: PrivateGradient, weights: Any, *rest: Any) -> Any:
        at.append(torch.cat([w.detach().flatten() for w in weights.values()]))
        return real(mechanism, weights, *rest)

    monkeypatch.setattr(PrivateGradient, "__call__", call)
    return at


@pytest.mark.parametrize(("iterations", "outer", "batches", "replays"), [(3, 1, 2, 0), (2, 2, 3, 4), (1, 1, 1, 1)])
def test_mechanism_is_used_as_often_as_in_the_ledger(
    monkeypatch: pytest.MonkeyPatch, iterations: int, outer: int, batches: int, replays: int
) -> None:
    at, times = weights_at(monkeypatch), iterations * outer * batches
    release = convert(method(iterations=iterations, outer=outer, inner=1, batches=batches, replays=replays))
    assert len(at) == times == sum(entry.count for entry in release.ledger.entries(Unit.EXAMPLE))
    states = [at[i] for i in range(0, times, batches)]
    assert len({tuple(state[:20].tolist()) for state in states}) == iterations * outer
    assert all(torch.equal(at[i], states[i // batches]) for i in range(times))


def test_network_is_trained_then_reinitialised(monkeypatch: pytest.MonkeyPatch) -> None:
    at = weights_at(monkeypatch)
    convert(method(iterations=2, outer=2, inner=3, batches=1, rate_network=1e-3))
    moved_by = [float((b - a).abs().mean()) for a, b in pairwise(at)]
    assert 0 < max(moved_by[0], moved_by[2]) < 0.1 * moved_by[1]


def released(plugin: Psg, z: float, n: int, batch: int) -> Released:
    """The first private gradient of `plugin` at q = batch / n."""
    images, labels = toy_private(n=n)
    net = ConvNet(SHAPE, CLASSES, plugin.width, plugin.depth, plugin.norm)
    plan = DpSgdParameters(batch / n, 1, z)
    start = torch.zeros(4, *SHAPE)
    return next(iter(plugin._gradients(net, (images, labels), start, torch.arange(4), plan, context())))


def test_private_gradient_by_hand() -> None:
    """q = 1 and no noise, against a loop over the records; 1/128 of the norm is left to rounding errors."""
    plugin = method(clip=0.5, mean=0.2, std=0.7)
    found = released(plugin, 0.0, 6, 6)
    net = ConvNet(SHAPE, CLASSES, plugin.width, plugin.depth)
    net.load_state_dict(found.weights)
    expected = {name: torch.zeros_like(w) for name, w in found.weights.items()}
    for x, y in zip(*toy_private(n=6), strict=True):
        logits = net((x[None].float() / 255 - 0.2) / 0.7)
        slopes = torch.autograd.grad(F.cross_entropy(logits, y[None]), list(net.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in slopes))
        assert norm > 0.5
        for name, g in zip(expected, slopes, strict=True):
            expected[name] += g * 0.5 * (127 / 128) / norm / 6
    for name, value in found.gradient.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch leaves N(0, (sigma C / B)^2), B = 8 expected records."""
    monkeypatch.setattr(PrivateGradient, "sample", lambda *_: torch.zeros(0, dtype=torch.long))
    found = released(method(clip=0.5, width=8), 3.0, 40, 8)
    assert is_normal(torch.cat([g.flatten() for g in found.gradient.values()]), 3 * 0.5 / 8)


@pytest.mark.thorough
def test_ledger_epsilon_is_below_renyi() -> None:
    release = convert(method(iterations=5, batches=4, batch=16, multiplier=2.0))
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 20
    assert entry.event == PoissonSampledDpEvent(16 / 80, GaussianDpEvent(2.0))
    found, bound = epsilon_of(release.ledger), renyi_epsilon(entry.event, 20)
    assert 0.85 * bound < found <= bound


def test_steps_and_noise_are_the_papers() -> None:
    """1,000 iterations of 10 states of 10 batches; 0.972 is the noise of 10 images a class at epsilon 10 (RDP)."""
    assert Psg().calibrate(60_000, FREE) == DpSgdParameters(256 / 60_000, 100_000, 1.0) and Psg().clip == 0.1
    assert Psg(images_per_class=1).calibrate(60_000, FREE).steps == 10_000
    assert Psg(images_per_class=20)._loops() == (20, 25) and Psg(images_per_class=50)._loops() == (50, 10)
    event = PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(0.972))
    assert renyi_epsilon(event, 100_000) == pytest.approx(10, rel=0.02)


def test_budget_determines_noise_or_steps() -> None:
    plugin = method(multiplier=30.0, passes=1)
    by_noise, by_steps = convert(plugin, Budget(2.0)), convert(plugin, Budget(0.3, solve="steps"))
    assert by_noise.solved["steps"] == 4 and by_noise.solved["sigma"] > 1
    assert by_steps.solved["sigma"] == 30.0 and by_steps.solved["steps"] > 4
    assert epsilon_of(by_steps.ledger) <= 0.3


def test_set_is_balanced_and_in_pixel_range() -> None:
    plugin = method(images_per_class=3, outer=1, inner=1, rate=100.0, clamp=True)
    images, labels = plugin.synthesise(toy_private(), teacher(), plugin.calibrate(80, FREE), context())
    assert images.shape == (12, *SHAPE) and float(images.min()) >= 0 and float(images.max()) <= 1
    assert labels.bincount().tolist() == [3] * CLASSES


@pytest.mark.thorough
def test_diverging_rates_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="NaN"):
        convert(method(rate=1e38, momentum=0.99, replays=20))


@pytest.mark.thorough
@pytest.mark.parametrize(("z", "learns"), [(1e-3, True), (1e4, False)])
def test_student_learns_only_without_much_noise(z: float, learns: bool) -> None:
    plugin = method(iterations=8, batches=1, replays=6, optimiser="adam", start="black", clamp=True, decay=True,
                    width=8, norm=False, batch=80, passes=60, augment="never", multiplier=z)  # fmt: skip
    found = runs.accuracy(convert(plugin), 200, 3)
    assert found > 0.9 if learns else found < 0.7


def test_network_may_differ_from_the_student() -> None:
    assert convert(method(network="tanh-cnn")).arch == "tanh-cnn"


def test_too_many_replays_are_refused() -> None:
    with refused(r"--method\.replays 1"):
        convert(method(iterations=10_000_000))


def spots(n: int) -> Tensor:
    """Images with one bright square in the middle, of mass 16."""
    images = torch.zeros(n, 1, 20, 20)
    images[:, :, 8:12, 8:12] = 1
    return images


def test_augmented_images_are_shifted_scaled_or_rotated() -> None:
    found = moved(spots(3000), rng())
    assert float(found.min()) >= 0 and float(found.max()) <= 1 + 1e-5
    mass = found.sum((1, 2, 3))
    places = torch.arange(20.0)
    middle = torch.stack([(found.sum((1, 3)) @ places) / mass, (found.sum((1, 2)) @ places) / mass], 1) - 9.5
    shifted = (middle.abs() > 0.02).any(1)
    assert 0.30 < float(shifted.float().mean()) < 0.37
    assert 3.8 < float(middle.abs().max()) <= SHIFT + 0.01
    assert stats.kstest(middle[shifted, 0].double().numpy(), stats.uniform(-SHIFT, 2 * SHIFT).cdf).pvalue > 0.01
    resized = ~shifted & ((mass - 16).abs() > 0.5)
    assert float(mass[resized].min()) > 16 * 0.8**2 - 0.5 and float(mass[resized].max()) < 16 * 1.2**2 + 0.5
    assert not moved(torch.zeros(5, 1, 20, 20), rng()).any()


def test_rotated_images_keep_their_aspect() -> None:
    """A disc in a 12x36 image stays a disc at every angle."""
    rows, columns = torch.meshgrid(torch.arange(12) - 5.5, torch.arange(36) - 17.5, indexing="ij")
    disc = (rows.square() + columns.square() <= 16).float().expand(600, 1, 12, 36)
    found = moved(disc, rng())
    mass = found.sum((1, 2, 3))
    turned = ((mass - disc[0].sum()).abs() < 0.5) & ((found[:, 0, 5:7].sum(1) @ (torch.arange(36) - 17.5)).abs() < 0.3)
    assert turned.sum() > 100
    assert float((found[turned] - disc[turned]).abs().mean()) < 0.03


def test_student_training_is_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD 0.01, momentum 0.9, weight decay 5e-4, a tenth of the rate in the second half: against the formulas."""
    images, labels = torch.rand(4, *SHAPE, generator=rng()), torch.arange(4)
    torch.manual_seed(0)
    net = Classifier(ConvNet(SHAPE, CLASSES, 4, 1))
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    speed = {name: torch.zeros_like(w) for name, w in weights.items()}
    steps = record_calls(monkeypatch, torch.optim.SGD, "step")
    for rate in (0.01, 0.01, 0.001, 0.001):
        leaves = {name: w.requires_grad_() for name, w in weights.items()}
        loss = F.cross_entropy(torch.func.functional_call(net, leaves, (images,)), labels)
        slopes = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        speed = {name: 0.9 * speed[name] + slopes[name] + 5e-4 * weights[name].detach() for name in weights}
        weights = {name: weights[name].detach() - rate * speed[name] for name in weights}
    fit_set(net, images, labels, 4, False, context(), "test")
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), weights[name], rtol=1e-4, atol=1e-6)
    (group,) = steps[-1].arguments[0].param_groups
    assert not net.training and (group["momentum"], group["weight_decay"]) == (0.9, 5e-4)


def test_student_augmentation_follows_data_set_and_options() -> None:
    mnist, cifar = (replace(teacher(), dataset=name) for name in ("mnist", "cifar10"))
    assert Psg()._augments(mnist) and not Psg()._augments(cifar) and Psg(augment="always")._augments(cifar)
    assert not Psg(augment="never")._augments(mnist)
    assert PASSES == {True: 1000, False: 300}


def test_student_is_trained_for_the_given_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy images are not moved."""
    given: list[Any] = []
    monkeypatch.setattr(psg, "fit_set", lambda net, images, labels, passes, *rest: given.append(passes))
    for passes in (7, 0):
        convert(method(passes=passes))
    assert given == [7, 300]


@pytest.mark.parametrize(("start", "mean", "deviation"), [("noise", 0.2, 0.7), ("black", 0.0, 0.07)])
def test_set_starts_as_noise_or_nearly_black(start: Any, mean: float, deviation: float) -> None:
    """In pixels: 0.2 + 0.7 x the network's input."""
    drawn = method(start=start, mean=0.2, std=0.7)._start((40, *SHAPE), rng())
    pixels = 0.2 + 0.7 * drawn.detach()
    assert float(pixels.mean()) == pytest.approx(mean, abs=0.03)
    assert float(pixels.std()) == pytest.approx(deviation, rel=0.03)


def test_clamping_keeps_pixels_between_black_and_white(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends are reached for every mean."""
    plugin = method(clamp=True, mean=0.2, std=0.7, rate=100.0)
    synthetic = torch.zeros(2, *SHAPE, requires_grad=True)
    ways = torch.tensor([1.0, -1.0])[:, None, None, None]
    monkeypatch.setattr(psg, "gradient_distance", lambda network, found, s, targets: (ways * s).sum())
    net = ConvNet(SHAPE, CLASSES, 2, 1)
    plugin._step(plugin._optimizer(synthetic), net, Released({}, {}), synthetic, torch.arange(2), 0.0)
    pixels = 0.2 + 0.7 * synthetic.detach()
    torch.testing.assert_close(pixels, torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, *SHAPE))


def test_steps_on_the_set_have_momentum() -> None:
    """Twice along the same gradient of 1: -0.1 and then -0.1 (1 + 0.6) more."""
    synthetic = torch.zeros(1, requires_grad=True)
    optimizer = method(rate=0.1, momentum=0.6)._optimizer(synthetic)
    for _ in range(2):
        synthetic.grad = torch.ones(1)
        optimizer.step()
    assert synthetic.item() == pytest.approx(-0.1 - 0.16)


def test_gradients_are_used_once_per_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four gradients and two replays: twelve steps, of which the share i / 12 is done."""
    monkeypatch.setattr(Psg, "_step", lambda *given: None)
    calls = record_calls(monkeypatch, Psg, "_step")
    synthesise(method(iterations=2, outer=1, inner=1, batches=2, replays=2))
    assert [call.arguments[6] for call in calls] == pytest.approx([i / 12 for i in range(12)])
    used = [id(call.arguments[3]) for call in calls]
    first, again, last = used[:4], used[4:8], used[8:]
    assert len(set(first)) == 4 and sorted(first) == sorted(again) == sorted(last)


def test_network_makes_inner_passes_between_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks of three states each: two trainings of either, of five passes."""
    calls = record_calls(monkeypatch, psg, "train_on_set")
    synthesise(method(iterations=2, outer=3, inner=5, batches=1, replays=0, rate_network=0.3))
    assert [call.arguments[3:5] for call in calls] == [(5, 0.3)] * 4
