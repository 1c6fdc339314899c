"""The precision of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

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
    """Seconds that pass only where a step says so."""

    def __init__(self, takes: dict[bool, float]) -> None:
        self.now, self.takes, self.turns = 0.0, takes, [0, 0]

    def __call__(self) -> float:
        return self.now

    def step(self, autocast: bool) -> None:
        self.now += self.takes[autocast]
        self.turns[autocast] += 1


def test_turns_are_taken_for_a_second_and_the_medians_compared() -> None:
    clock = Clock({True: 0.01, False: 0.04})
    assert devices.ratio(clock.step, 1.0, clock) == pytest.approx(0.25)
    assert clock.turns == [21, 21], "20 turns of 0.05 s and one before them"
    slow = Clock({True: 30.0, False: 10.0})
    assert devices.ratio(slow.step, 1.0, slow) == pytest.approx(3.0)
    assert slow.turns == [2, 2], "of a step longer than a second one turn is timed"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    devices.faster_precision.cache_clear()
    yield
    devices.faster_precision.cache_clear()


def timed(monkeypatch: pytest.MonkeyPatch, small: float, network: float) -> list[object]:
    """Replaces measured ratios of the small convolution and of the network; records what was timed."""
    asked: list[object] = []

    def ratio(step: partial[None], seconds: float = 1.0) -> float:
        asked.append(step)
        return small if step.func is devices.convolve else network

    monkeypatch.setattr(devices, "ratio", ratio)
    return asked


@pytest.mark.parametrize(
    ("ratio", "found"), [(0.5, "bf16"), (0.8, "bf16"), (0.81, "fp32"), (1.0, "fp32"), (3.0, "fp32")]
)
def test_bfloat16_is_taken_where_it_buys_a_fifth_of_the_network_s_time(
    monkeypatch: pytest.MonkeyPatch, ratio: float, found: str
) -> None:
    for small in (0.5, 1.9):
        timed(monkeypatch, small, ratio)
        devices.faster_precision.cache_clear()
        assert devices.choose_precision("auto", CPU, SMALL) == found


def test_where_bfloat16_is_emulated_no_network_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, 2.0, 0.1)
    assert devices.choose_precision("auto", CPU, SMALL) == "fp32" and len(asked) == 1


def test_what_was_asked_for_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, 0.5, 0.5)
    assert (
        devices.choose_precision("bf16", CPU, SMALL) == "bf16"
        and devices.choose_precision("fp32", CPU, SMALL) == "fp32"
    )
    assert not asked


def test_a_process_probes_what_is_trained_once_and_leaves_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, 0.5, 0.5)
    before = torch.random.get_rng_state()
    assert {devices.choose_precision("auto", CPU, SMALL) for _ in range(3)} == {"bf16"} and len(asked) == 2
    devices.choose_precision("auto", CPU, replace(SMALL, shape=(3, 16, 16)))
    assert len(asked) == 4 and torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("arch", ["datalens", "resnet18"])
def test_the_step_that_is_timed_is_the_network_s_in_either_precision(arch: str) -> None:
    network = nets.build(arch, (1, 28, 28), 10).train()
    weights = {name: weight.clone() for name, weight in network.named_parameters()}
    seen = []
    last = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)][-1]
    last.register_forward_hook(lambda _layer, _given, answer: seen.append((answer.dtype, len(answer))))
    for autocast in (True, False):
        devices.training_step(network, torch.rand(4, 1, 28, 28), autocast)
    assert seen == [(torch.bfloat16, 4), (torch.float32, 4)]
    assert all(torch.equal(weights[name], weight) for name, weight in network.named_parameters()), "nothing is learnt"


def test_a_job_probes_its_teacher_or_where_none_is_trained_its_student(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(job, "choose_precision", lambda *given: asked.append(given[2]) or "fp32")
    for options in ({"method": "dpsd"}, {"method": "dp-sgd"}):
        with closing(load_job(Settings(attack=None, teacher="resnet10t", tier="smoke", **options))) as made:
            assert made.precision == "fp32"
    batch = Recipe.at("smoke").batch
    assert asked == [devices.Training(arch, (1, 16, 16), 10, batch) for arch in ("resnet10t", "datalens")]
