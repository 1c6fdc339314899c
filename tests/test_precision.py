"""The precision that networks train in."""

from __future__ import annotations

import pytest
import torch

from bench.pipeline import precision

CPU = torch.device("cpu")


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
    assert precision.ratio(clock.step, 1.0, clock) == pytest.approx(0.25)
    assert clock.turns == [21, 21], "20 turns of 0.05 s and one before them"
    slow = Clock({True: 30.0, False: 10.0})
    assert precision.ratio(slow.step, 1.0, slow) == pytest.approx(3.0)
    assert slow.turns == [2, 2], "of a step longer than a second one turn is timed"


@pytest.mark.parametrize(
    ("ratio", "found"), [(0.5, "bf16"), (0.8, "bf16"), (0.81, "fp32"), (1.0, "fp32"), (3.0, "fp32")]
)
def test_bfloat16_is_taken_where_it_buys_a_fifth(monkeypatch: pytest.MonkeyPatch, ratio: float, found: str) -> None:
    monkeypatch.setattr(precision, "ratio", lambda step: ratio)
    precision._faster.cache_clear()
    assert precision.settled("auto", CPU) == found
    precision._faster.cache_clear()


def test_what_was_asked_for_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_faster", lambda device: pytest.fail("probed"))
    assert precision.settled("bf16", CPU) == "bf16" and precision.settled("fp32", CPU) == "fp32"


def test_a_process_probes_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(precision, "ratio", lambda step: asked.append(step) or 0.5)
    precision._faster.cache_clear()
    assert {precision.settled("auto", CPU) for _ in range(3)} == {"bf16"} and len(asked) == 1
    precision._faster.cache_clear()


def test_the_step_that_is_timed_runs_in_either_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    convolved = torch.nn.functional.relu
    monkeypatch.setattr(precision.F, "relu", lambda x: seen.append(x.dtype) or convolved(x))
    precision._step(CPU, True)
    precision._step(CPU, False)
    assert seen == [torch.bfloat16, torch.float32]
