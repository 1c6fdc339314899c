"""PSG step by step: the set's start, its moves, the uses of a gradient, passes over the set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from baselines.psg import psg
from baselines.psg.gradient_matching import Released
from baselines.psg.psg import Psg
from baselines.psg.synthetic_set import fit_set
from bench.config import configure
from bench.nets import Classifier
from bench.nets.classifiers.small_cnns import ConvNet
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher


def method(**given: Any) -> Psg:
    return replace(configure(Psg, "smoke", {"replays": "1"}, "method", "printed"), **given)


def synthesise(plugin: Psg) -> None:
    torch.manual_seed(0)
    private = toy_private()
    plugin.synthesise(private, toy_teacher(), plugin.calibrate(80, Budget(None, solve="none")), context())


@pytest.mark.parametrize(("start", "mean", "deviation"), [("noise", 0.2, 0.7), ("black", 0.0, 0.07)])
def test_set_starts_as_noise_or_nearly_black(start: Any, mean: float, deviation: float) -> None:
    """In pixels: 0.2 + 0.7 x the network's input."""
    drawn = method(start=start, mean=0.2, std=0.7)._start((40, *SHAPE), torch.Generator().manual_seed(0))
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


def test_gradients_are_used_once_per_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four gradients and two replays: twelve steps, of which the share i / 12 is done."""
    used: list[int] = []
    done: list[float] = []

    def step(self: Psg, optimizer: Any, network: Any, found: Released, synthetic: Tensor, y: Any, share: float) -> None:
        used.append(id(found))
        done.append(share)

    monkeypatch.setattr(Psg, "_step", step)
    synthesise(method(iterations=2, outer=1, inner=1, batches=2, replays=2))
    assert done == pytest.approx([i / 12 for i in range(12)])
    first, again, last = used[:4], used[4:8], used[8:]
    assert len(set(first)) == 4 and sorted(first) == sorted(again) == sorted(last)


def test_network_makes_inner_passes_between_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks of three states each: two trainings of either, of five passes."""
    passes: list[tuple[int, float]] = []

    def train(network: Any, images: Tensor, labels: Tensor, count: int, rate: float, rng: Any) -> None:
        passes.append((count, rate))

    monkeypatch.setattr(psg, "train_on_set", train)
    synthesise(method(iterations=2, outer=3, inner=5, batches=1, replays=0, rate_network=0.3))
    assert passes == [(5, 0.3)] * 4


def test_student_training_has_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little to be seen in a few steps: 0.01 * 5e-4 of a weight in each."""
    options: list[tuple[float, float]] = []

    def step(self: torch.optim.SGD, closure: Any = None) -> None:
        options.append((self.param_groups[0]["momentum"], self.param_groups[0]["weight_decay"]))

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    network = Classifier(ConvNet(SHAPE, CLASSES, 2, 1))
    fit_set(network, torch.rand(4, *SHAPE), torch.arange(4), 2, False, context(), "test")
    assert options == [(0.9, 5e-4)] * 2
