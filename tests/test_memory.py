"""The memory of a run, estimated from shapes and compared with what is free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Type, toy_job, write_toy
from torch import nn

from bench.errors import OutOfMemory
from bench.nets.footprint import footprint
from bench.pipeline import memory
from bench.pipeline.job import Job


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
