"""Memory of a run, estimated from shapes and compared with what is free, and the precision of training."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Type, toy_job, write_toy
from torch import nn

from bench import nets
from bench.errors import OutOfMemory
from bench.nets.footprint import footprint
from bench.pipeline import devices, memory
from bench.pipeline import job as jobs
from bench.pipeline.job import Job
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.teachers import Recipe


def job(folder: Path, side: int, method: str = "dpsd", **others: Any) -> Job:
    if not (folder / "toy.npz").exists():
        write_toy(folder, 40, (1, side, side), test=8)
    return toy_job(folder, method, is_checked=False, **others)


def test_footprint_of_two_layers() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = footprint(network, torch.rand(2, 3, 2, 2))
    assert found.weights == 4 * (12 * 5 + 5 * 2)
    assert found.kept == 4 * (12 + 5), "the input of the first layer, and the output of the ReLU"
    assert found.live == 4 * (12 + 12)
    assert found.training(10) == 4 * found.weights + 10 * (found.kept + found.live)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_footprint_does_not_change_running_statistics() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    footprint(network, torch.rand(2, 1, 5, 5))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not network.training and all(value.grad is None for value in network.parameters())


def test_estimate_grows_with_pixels_queries_and_batch(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir(), large.mkdir()
    at_16, at_64 = memory.estimate(job(small, 16)), memory.estimate(job(large, 64))
    assert at_64.added > 3 * at_16.added
    many = job(large, 64, method_options=(("queries", "100000"), ("max_noise", "0")))
    assert memory.estimate(many).added - at_64.added > 2 * 100_000 * 64 * 64, "answered images and their copy"
    batch, usual = (job(large, 64, "no-defence", teacher_options=o) for o in ((("batch", "640"),), ()))
    assert memory.estimate(batch).added > 2 * memory.estimate(usual).added


def checked(monkeypatch: pytest.MonkeyPatch, given: Job, free: int | None, check: memory.Check) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    memory.check_memory(given, check)


def test_check_refuses_more_memory_than_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = job(tmp_path, 16)
    capsys.readouterr()
    with pytest.raises(OutOfMemory, match=r"^[^\n]*--memory-check warn[^\n]*$"):
        checked(monkeypatch, given, 2**20, "refuse")
    assert capsys.readouterr().err == ""
    checked(monkeypatch, given, 2**20, "warn")
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    added = memory.estimate(given).added + memory.LIBRARIES
    checked(monkeypatch, given, int(1.5 * added), "refuse")
    assert capsys.readouterr().err.count("\n") == 1, "a notice for more than half of the free memory"
    for free, check in ((3 * added, "refuse"), (None, "refuse"), (2**20, "off")):
        checked(monkeypatch, given, free, check)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_run_with_too_little_memory_trains_nothing(here: Path, monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    write_toy(here, 40, test=8)
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**20)
    said = typed("run --method no-defence --tier smoke --teacher datalens --dataset npz:toy.npz")
    assert said.status == 2 and "GiB" in said.err and not list(here.rglob("steps/teacher"))


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, used = tmp_path / "max", tmp_path / "current"
    most.write_text("1000000\n")
    used.write_text("400000\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", ((str(most), str(used), str(tmp_path / "stat")),))
    assert memory.free_memory(torch.device("cpu")) == 600_000
    (tmp_path / "stat").write_text("anon 300000\ninactive_file 100000\n")
    assert memory.free_memory(torch.device("cpu")) == 700_000, "cached files are given up"
    most.write_text("max\n")
    found = memory.free_memory(torch.device("cpu"))
    assert found is None or found > 600_000


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
    monkeypatch.setattr(jobs, "choose_precision", lambda *given: timed_steps.append(given[2]) or "fp32")
    for options in ({"method": "dpsd"}, {"method": "dp-sgd"}):
        with closing(load_job(Settings(attack=None, teacher="resnet10t", tier="smoke", **options))) as made:
            assert made.precision == "fp32"
    batch = Recipe.at("smoke").batch
    assert timed_steps == [devices.Training(arch, (1, 16, 16), 10, batch) for arch in ("resnet10t", "datalens")]
