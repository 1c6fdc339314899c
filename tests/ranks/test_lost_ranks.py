"""Processes of ranks: a lost one ends the run with one line, and none outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import BENCH
from shared_parts import CPU, failing, normalised, observed, records, summed

from bench.cli import main
from bench.errors import BenchError, RunFailed
from bench.pipeline import devices
from bench.pipeline.devices import pick_devices
from bench.ranks import Ranks
from bench.storage.provenance import device_name
from bench.teachers import Recipe, fit
from bench.workers import cores
from tests.sweeps.importable import environment, has_ended


def pids(ranks: Ranks) -> list[int]:
    return [worker.process.pid or 0 for worker in ranks.workers if worker.process]


@pytest.mark.thorough
def test_ranks_killed_process_fails_the_training(ranks: Ranks) -> None:
    recipe, killed = Recipe(epochs=50, batch=16, optimizer="sgd", lr=0.01), list[int]()

    def kill(_: int) -> None:
        if not killed:
            killed.extend(pids(ranks))
            os.kill(killed[1], signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(RunFailed) as told:
        fit(normalised(), *records(64), recipe, CPU, 0, kill, ranks=ranks)
    assert all(value in str(told.value) for value in ("rank 1 of 2", "cpu", "signal 9"))
    assert time.monotonic() - start < 60 and all(map(has_ended, killed))
    fit(normalised(), *records(64), Recipe(epochs=1, batch=16), CPU, 0, ranks=ranks)
    assert len(pids(ranks)) == 2 and not set(pids(ranks)) & set(killed)


@pytest.mark.thorough
def test_ranks_exception_in_one_process_ends_all(ranks: Ranks) -> None:
    with pytest.raises(RunFailed, match=r"rank 1 of 2.*ValueError: no such thing$"):
        ranks.run(failing, ["no such thing\nand more"] * 2)
    assert not ranks.workers


@pytest.mark.thorough
def test_ranks_processes_are_reused_and_share_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    steps = list[int]()
    with Ranks((CPU, CPU)) as two:
        first, second = two.run(observed, [7, 8], steps.append), two.run(observed, [7, 8])
        assert first == second and [each[:2] for each in first] == [(7, 0), (8, 1)]
        assert all(threads == 2 and interface.startswith("lo") for *_, threads, interface in first)
        assert sum(steps) == 1, "only the steps of rank 0 count"
        assert two.run(summed, [1.0, 2.5], grouped=True) == [3.5, 3.5]
        assert pids(two) == [each[2] for each in first] and not dist.is_initialized()
    assert all(has_ended(each[2]) for each in first)


LEADER = """
import sys, threading, time
import torch
sys.path.insert(0, sys.argv[1])
from shared_parts import stuck
from bench.ranks import Ranks

if __name__ == "__main__":
    ranks = Ranks((torch.device("cpu"),) * 2)
    threading.Thread(target=lambda: (time.sleep(5), print(ranks.workers[0].process.pid, flush=True))).start()
    ranks.run(stuck, ["", ""])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be observed without /proc")
def test_ranks_killed_leader_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "leader.py"), str(Path(__file__).parent)]
    leader = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    helper = int(leader.stdout.readline())
    assert not has_ended(helper)
    leader.kill()
    leader.wait()
    until = time.monotonic() + 20
    while not has_ended(helper) and time.monotonic() < until:
        time.sleep(0.05)
    assert has_ended(helper)


@pytest.mark.parametrize(
    ("device", "count", "said"),
    [
        ("cpu", 3, "--devices 3: .* 2 CPU cores"),
        ("cuda", 5, "--devices 5: .* 4 CUDA devices"),
        ("cuda:1", 2, "--device cuda:1 --devices 2"),
        ("cpu", 0, "--devices 0"),
    ],
)
def test_pick_devices_unavailable_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, count: int, said: str
) -> None:
    monkeypatch.setattr(devices, "cores", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(BenchError, match=said):
        pick_devices(device, count)


def test_pick_devices_gpus_begin_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    found = pick_devices("cuda", 3)
    assert [str(device) for device in found] == ["cuda:0", "cuda:1", "cuda:2"]
    assert device_name(found[0], 3) == "3 x Some GPU" and device_name(found[0]) == "Some GPU"


def test_run_too_many_devices_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", "--method", "dp-sgd", "--device", "cpu", "--tier", "smoke", "--devices"]
    for count, said in (("100000", "--devices 100000"), ("two", "'two'")):
        assert main([*given, count]) == 2
        told = capsys.readouterr().err
        assert said in told and len(told.strip().splitlines()) == 1


HOURS = ["--teacher.epochs", "100000", "--teacher.max_steps", "0"]


def helpers(process: int) -> list[int]:
    """The processes that one has started, except multiprocessing's own."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    found = [int(word) for word in listed.read_text().split()] if listed.exists() else []
    return [each for each in found if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be observed without /proc")
@pytest.mark.skipif(cores() < 2, reason="two processes need two cores")
def test_run_with_killed_rank_exits_with_1(tmp_path: Path) -> None:
    where = ["--device", "cpu", "--devices", "2", "--tier", "smoke", "--teacher", "datalens", *HOURS]
    started = subprocess.Popen(
        [*BENCH, "run", "--method", "dp-sgd", *where],
        cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 200
    while len(found := helpers(started.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(2)
    os.kill(found[1], signal.SIGKILL)
    _, said = started.communicate(timeout=100)
    assert started.returncode == 1
    assert "rank 1 of 2" in said and "signal 9" in said and "Traceback" not in said
    assert not list((tmp_path / "runs").glob("steps/teacher/[0-9a-f]*"))
