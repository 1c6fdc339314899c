"""Eight processes write into one folder; one is killed, one cell fails: nothing is lost, and the others finish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BENCH

from bench.storage.records import RECORD, Record
from bench.storage.store import inspect
from tests.sweeps.importable import environment, recipe

WHOLE = 'method = ["no-defence", "label-smoothing", "dp-sgd"]\nseeds = [0, 1]\nepsilon = 5'
DIVERGING = 'method = "rr"\n"method.rate" = 1e38\nepsilon = 1'


def sweep(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*BENCH, "sweep", "toy.toml", "--tier", "smoke", "--jobs", "4"],
        cwd=folder, env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_one(out: Path, patience: float = 200) -> int:
    """Kill the first worker that is seen making a release; its process."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        for path in out.glob("steps/release/.making-*"):
            worker = int(path.name.rpartition("-")[2])
            os.kill(worker, signal.SIGKILL)
            return worker
        time.sleep(0.01)
    raise AssertionError("no worker has made a release")


def states(out: Path) -> dict[str, str]:
    """Cell to state, of the sweep that wrote its summary last."""
    content = json.loads((out / "sweeps" / "toy-smoke.json").read_text(encoding="utf-8"))
    return {outcome["name"]: outcome["state"] for outcome in content["outcomes"]}


@pytest.mark.slow
def test_two_sweeps_with_killed_worker_lose_nothing(tmp_path: Path) -> None:
    recipe(tmp_path, WHOLE, DIVERGING)
    out = tmp_path / "runs"
    started = [sweep(tmp_path), sweep(tmp_path)]
    kill_one(out)
    ended = [each.communicate(timeout=500) for each in started]
    assert [each.returncode for each in started] == [1, 1], ended
    assert sum("killed by signal 9" in said for said, _ in ended) == 1, "in the sweep of the killed worker"
    assert all("Traceback" not in "".join(said) for said in ended), ended
    last = sweep(tmp_path)
    said, told = last.communicate(timeout=300)
    assert last.returncode == 1, told
    failed = [name for name, state in states(out).items() if state not in ("ok", "cached")]
    assert failed == ["rr npz:" + f"{tmp_path}/toy.npz" + " teacher=datalens method.rate=1e+38 epsilon=1 seed=0"], said
    records = [Record.read(path) for path in out.glob(f"records/[0-9a-f]*/{RECORD}")]
    assert sorted(record.spec["release"]["method"] for record in records if record.status == "ok") == sorted(
        ["no-defence", "label-smoothing", "dp-sgd"] * 2
    )
    steps = list(out.glob("steps/*/[0-9a-f]*"))
    assert steps and all(inspect(step)[0] == [] for step in steps)
    assert len(list(out.glob("steps/teacher/[0-9a-f]*"))) == 2, "one for each seed"
