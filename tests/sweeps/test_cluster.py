"""Sweeps on a Ray cluster: a task's environment, a worker that is killed, and a head that dies."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import BENCH
from test_sweep import outcomes

from bench.sweeps.executors import devices_of
from bench.sweeps.ray_cluster import is_listening, tasks_per_node
from tests.sweeps.importable import environment, free_ports, recipe, sweep_in_python

KILLER = """
import os, signal, subprocess, sys, time
until = time.monotonic() + 200
while time.monotonic() < until:
    rows = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    busy = [int(row.split()[0]) for row in rows if "ray::run_on_cluster" in row]
    if busy and os.path.isdir(sys.argv[1]):
        os.kill(busy[0], signal.SIGKILL)
        print("killed", busy[0])
        break
    time.sleep(0.1)
"""


NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
"""Clusters are started without a token, which ray 2.60 requires."""


@pytest.mark.slow
def test_ray_killed_worker_is_restarted(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dp-distill-bench[ray]'")
    path = recipe(
        tmp_path,
        'method = ["no-defence", "label-smoothing", "fedavg"]\nepsilon = "inf"',
        'method = "rr"\n"method.rate" = 1e38\nepsilon = 1',
    )
    out = tmp_path / "runs"
    killer = subprocess.Popen(
        [sys.executable, "-c", KILLER, str(out / "steps" / "release")], stdout=subprocess.PIPE, text=True
    )
    done = subprocess.run(
        [*BENCH, "sweep", str(path), "--tier", "smoke", "--backend", "ray", "--jobs", "2"],
        cwd=tmp_path, env=environment(**NO_TOKEN), capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert "killed" in killer.communicate(timeout=250)[0], "the test has killed no worker"
    states = {name.split()[0]: outcome["state"] for name, outcome in outcomes(out).items()}
    assert states == {"no-defence": "ok", "label-smoothing": "ok", "fedavg": "ok", "rr": "failed"}, done.stderr
    assert done.returncode == 1


@pytest.mark.thorough
def test_ray_python_sweep_returns_runs_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'dp-distill-bench[ray]'")
    for name, value in environment(**NO_TOKEN).items():
        monkeypatch.setenv(name, value)
    sweep_in_python(tmp_path / "runs", backend="ray", workers=2)
    assert not ray.is_initialized()


@contextmanager
def head(folder: Path) -> Iterator[tuple[str, int]]:
    """A cluster of this machine: its address, and the process that holds it together, which may be killed."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port", str(port), "--num-cpus", "2",
               "--temp-dir", str(folder), "--disable-usage-stats", "--include-dashboard=false", "--block"]  # fmt: skip
    with subprocess.Popen(
        command,
        env=environment(**NO_TOKEN, RAY_worker_niceness="0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as started:
        try:
            yield f"127.0.0.1:{port}", child(started.pid, "gcs_server")
        finally:
            started.terminate()
            started.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def child(process: int, name: str) -> int:
    until = time.monotonic() + 120
    listed = Path(f"/proc/{process}/task/{process}/children")
    while time.monotonic() < until:
        for number in listed.read_text().split():
            if name in Path(f"/proc/{number}/cmdline").read_text():
                return int(number)
        time.sleep(0.1)
    raise AssertionError(f"no {name}")


def ended(out: Path) -> list[str]:
    if not list(out.glob("sweeps/*.json")):
        return []
    return [name for name, outcome in outcomes(out).items() if outcome["state"] == "ok"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be observed without /proc")
def test_ray_lost_head_ends_a_sweep_that_can_continue(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dp-distill-bench[ray]'")
    hours = 'method = "dpsd"\nvariant = "printed"\n"method.iterations" = 500\nepsilon = "none"'
    path = recipe(tmp_path, 'method = ["no-defence", "label-smoothing"]\nepsilon = "inf"', hours)
    command = [*BENCH, "sweep", str(path), "--tier", "smoke", "--backend", "ray", "--address"]
    # Ray's sockets lie below its folder, and their paths may have 107 characters
    folder = Path("/tmp") / f"ray-{os.getpid()}"
    with head(folder / "1") as (address, gcs):
        time.sleep(10)
        started = subprocess.Popen(
            [*command, address], cwd=tmp_path, env=environment(**NO_TOKEN),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until = time.monotonic() + 200
        while not ended(tmp_path / "runs") and time.monotonic() < until:
            time.sleep(0.2)
        os.kill(gcs, signal.SIGKILL)
        _, said = started.communicate(timeout=100)
    assert started.returncode == 1, said
    assert address in said.splitlines()[-1]
    done = ended(tmp_path / "runs")
    with head(folder / "2") as (address, _):
        time.sleep(10)
        again = subprocess.run(
            [*command, address], cwd=tmp_path, env=environment(**NO_TOKEN), capture_output=True, text=True, timeout=300
        )
    assert again.returncode == 0, again.stderr
    states = {name: outcome["state"] for name, outcome in outcomes(tmp_path / "runs").items()}
    assert done and len(states) == 3 and set(states.values()) == {"ok", "cached"}
    assert all(states[name] == "cached" for name in done), "finished cells are not run again"


@pytest.mark.parametrize(
    ("gpus", "given"),
    [(0, "--device cpu"), (0.5, "--device cuda"), (1, "--device cuda"), (2, "--device cuda --devices 2")],
)
def test_task_options_use_all_requested_gpus(gpus: float, given: str) -> None:
    assert " ".join(devices_of(gpus)) == given


def test_is_listening_closed_port_is_false() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_listening(f"127.0.0.1:{port}")
    assert not is_listening(f"127.0.0.1:{port}")


SLEEPER = """
import time
from pathlib import Path

def main(arguments):
    Path(arguments[0]).touch()
    time.sleep(float(arguments[1]))
    return 0
"""
WITH_AN_END = """
import time
import sleeper
from bench.sweeps.ray_cluster import Ray
from bench.sweeps.executors import Task

tasks = [Task(0, ("first", "20")), Task(1, ("long", "110"), seconds=110), Task(2, ("short", "0"), seconds=1)]
for done in Ray(sleeper.main, jobs=1).run(tasks, until=time.monotonic() + 120):
    print(done.index, done.status, flush=True)
"""


@pytest.mark.slow
def test_ray_waiting_task_beyond_limit_is_not_started(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dp-distill-bench[ray]'")
    (tmp_path / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    found = environment(**NO_TOKEN)
    found["PYTHONPATH"] = os.pathsep.join([str(tmp_path), found["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", WITH_AN_END], cwd=tmp_path, env=found, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split() == ["0", "0", "2", "0"], done.stderr
    assert (tmp_path / "first").exists() and (tmp_path / "short").exists() and not (tmp_path / "long").exists()


@pytest.mark.parametrize(
    ("requested", "node", "expected"),
    [
        ({"CPU": 1, "GPU": 0}, {"CPU": 3.0, "memory": 1e9}, 3),
        ({"CPU": 2, "GPU": 0}, {"CPU": 3.0}, 1),
        ({"CPU": 1, "GPU": 0.5}, {"CPU": 16.0, "GPU": 2.0}, 4),
        ({"CPU": 1, "GPU": 1}, {"CPU": 16.0}, 0),
        ({"CPU": 1, "GPU": 0.2}, {"CPU": 64.0, "GPU": 1.0}, 5),
        ({"CPU": 1, "GPU": 0.1}, {"CPU": 64.0, "GPU": 1.0}, 10),
        ({"CPU": 1, "GPU": 0.6}, {"CPU": 64.0, "GPU": 2.0}, 2),
        ({"CPU": 1, "GPU": 2}, {"CPU": 64.0, "GPU": 8.0}, 4),
        ({"CPU": 0.1, "GPU": 0}, {"CPU": 0.6}, 6),
        ({"CPU": 0, "GPU": 0}, {"CPU": 16.0}, float("inf")),
    ],
)
def test_tasks_per_node_divides_cpus_and_gpus(
    requested: dict[str, float], node: dict[str, float], expected: float
) -> None:
    assert tasks_per_node(requested, node) == expected
