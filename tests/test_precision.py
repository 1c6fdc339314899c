"""The precision of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from bench import nets
from bench.pipeline import devices, job
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.teachers import Recipe

CPU = torch.device("cpu")
SMALL = devices.Training("datalens", (1, 16, 16), 10, 8)


class Clock:
    """A clock that only steps advance."""

    def __init__(self, takes: dict[bool, float]) -> None:
        self.now, self.takes, self.calls = 0.0, takes, [0, 0]

    def __call__(self) -> float:
        return self.now

    def step(self, autocast: bool) -> None:
        self.now += self.takes[autocast]
        self.calls[autocast] += 1


def test_ratio_alternates_and_compares_medians() -> None:
    clock = Clock({True: 0.01, False: 0.04})
    assert devices.ratio(clock.step, 1.0, clock) == pytest.approx(0.25)
    assert clock.calls == [21, 21], "20 calls of 0.05 s and one before them"
    slow = Clock({True: 30.0, False: 10.0})
    assert devices.ratio(slow.step, 1.0, slow) == pytest.approx(3.0)
    assert slow.calls == [2, 2], "one pair is timed if a step takes longer than a second"


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    devices.faster_precision.cache_clear()
    yield
    devices.faster_precision.cache_clear()


def timed(monkeypatch: pytest.MonkeyPatch, small: float, network: float) -> list[object]:
    """Replace measured ratios of the small convolution and of the network; return the timed steps."""
    timed_steps: list[object] = []

    def ratio(step: partial[None], seconds: float = 1.0) -> float:
        timed_steps.append(step)
        return small if step.func is devices.convolve else network

    monkeypatch.setattr(devices, "ratio", ratio)
    return timed_steps


@pytest.mark.parametrize(
    ("ratio", "found"), [(0.5, "bf16"), (0.8, "bf16"), (0.81, "fp32"), (1.0, "fp32"), (3.0, "fp32")]
)
def test_choose_precision_bf16_must_save_a_fifth(monkeypatch: pytest.MonkeyPatch, ratio: float, found: str) -> None:
    for small in (0.5, 1.9):
        timed(monkeypatch, small, ratio)
        devices.faster_precision.cache_clear()
        assert devices.choose_precision("auto", CPU, SMALL) == found


@pytest.mark.parametrize(
    ("given", "small", "network", "found", "count"),
    [("auto", 2.0, 0.1, "fp32", 1), ("bf16", 0.5, 0.5, "bf16", 0), ("fp32", 0.5, 0.5, "fp32", 0)],
    ids=["emulated", "bf16", "fp32"],
)
def test_choose_precision_does_not_time_the_network(
    monkeypatch: pytest.MonkeyPatch, given: Any, small: float, network: float, found: str, count: int
) -> None:
    timed_steps = timed(monkeypatch, small, network)
    assert devices.choose_precision(given, CPU, SMALL) == found and len(timed_steps) == count


def test_choose_precision_times_once_and_keeps_rng_state(monkeypatch: pytest.MonkeyPatch) -> None:
    timed_steps = timed(monkeypatch, 0.5, 0.5)
    before = torch.random.get_rng_state()
    assert {devices.choose_precision("auto", CPU, SMALL) for _ in range(3)} == {"bf16"} and len(timed_steps) == 2
    devices.choose_precision("auto", CPU, replace(SMALL, shape=(3, 16, 16)))
    assert len(timed_steps) == 4 and torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("arch", ["datalens", "resnet18"])
def test_training_step_runs_in_both_precisions(arch: str) -> None:
    network = nets.build(arch, (1, 28, 28), 10).train()
    weights = {name: weight.clone() for name, weight in network.named_parameters()}
    seen = []
    last = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)][-1]
    last.register_forward_hook(lambda _layer, _given, answer: seen.append((answer.dtype, len(answer))))
    for autocast in (True, False):
        devices.training_step(network, torch.rand(4, 1, 28, 28), autocast)
    assert seen == [(torch.bfloat16, 4), (torch.float32, 4)]
    assert all(torch.equal(weights[name], weight) for name, weight in network.named_parameters()), "unchanged weights"


def test_job_precision_times_teacher_or_student(monkeypatch: pytest.MonkeyPatch) -> None:
    timed_steps = []
    monkeypatch.setattr(job, "choose_precision", lambda *given: timed_steps.append(given[2]) or "fp32")
    for options in ({"method": "dpsd"}, {"method": "dp-sgd"}):
        with closing(load_job(Settings(attack=None, teacher="resnet10t", tier="smoke", **options))) as made:
            assert made.precision == "fp32"
    batch = Recipe.at("smoke").batch
    assert timed_steps == [devices.Training(arch, (1, 16, 16), 10, batch) for arch in ("resnet10t", "datalens")]
