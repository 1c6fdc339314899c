"""`bench sweep` as typed: dry runs, failures that stop no other cell, interrupts, killed runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BENCH

from bench.cli import main
from bench.sweeps.executors import Task
from bench.sweeps.local import Local
from bench.sweeps.processes import threads_each
from tests.sweeps.importable import environment, recipe

Bench = Callable[..., subprocess.CompletedProcess[str]]
Sweep = Callable[..., tuple[int, str, str]]


def outcomes(out: Path) -> dict[str, dict[str, Any]]:
    """The summary of the toy sweep by cell, without the options that all have."""
    (path,) = (out / "sweeps").glob("*.json")
    return {o["name"].split()[0] + " " + o["name"].split()[-1]: o for o in json.loads(path.read_text())["outcomes"]}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """A function that runs `bench sweep` at tier smoke in the folder of the recipe: status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, path: str = "toy.toml") -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["sweep", path, "--tier", "smoke", *options])
        return status, *capsys.readouterr()

    return run


def test_dry_run_lists_every_cell_and_writes_nothing(tmp_path: Path, sweep: Sweep) -> None:
    own = 'method = ["no-defence", "not-there"]'
    recipe(tmp_path, own, 'method = "rr"\naccount = "accounted"', 'method = "rr"\ndataset = "stl10"')
    status, out, _ = sweep("--dry-run")
    listed = " ".join(out.split())
    assert status == 0 and "1 ready, 1 refused, 2 planned; 4 in all" in listed
    assert all(value in listed for value in ("'not-there'", "'stl10'", "--unit label"))
    assert not (tmp_path / "runs").exists()
    assert sweep("--dry-run", "--out", "new/runs")[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {"toy.npz", "toy.toml"}


def test_dry_run_of_image_files_reads_decoded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: Sweep
) -> None:
    from PIL import Image

    for part, count in (("train", 60), ("test", 10)):
        for label in ("a", "b"):
            (folder := tmp_path / "set" / part / label).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(np.random.default_rng(i).integers(0, 255, (16, 16), np.uint8)).save(folder / f"{i}.png")
    recipe(tmp_path, 'method = "no-defence"', dataset='"imagefolder:set@16"')
    assert sweep("--dry-run")[0] == 0 and not (tmp_path / "runs").exists()
    line = "run --method no-defence --teacher datalens --dataset imagefolder:set@16 --tier smoke"
    assert main(line.split()) == 0
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("bench.data.image_files.decode_files", None)  # nothing is decoded a second time
    assert sweep("--dry-run")[0] == 0 and sorted(tmp_path.rglob("*")) == before


def test_dry_run_title_and_negative_numbers_are_literal(tmp_path: Path, sweep: Sweep) -> None:
    path = recipe(tmp_path, 'method = "no-defence"\n"teacher.lr" = -1e-5')
    path.write_text('title = "Ours [table 3] and [/new]"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    status, out, _ = sweep("--dry-run")
    assert status == 0 and "Ours [table 3] and [/new]" in out
    assert "expected one argument" not in out and "-1e-05" in out


def test_dry_run_states_a_shared_reason_once(tmp_path: Path, sweep: Sweep) -> None:
    unread = 'method = ["no-defence", "pate"]\ndataset = "mnist"\nseeds = [0, 1, 2]'
    recipe(tmp_path, unread, 'method = "no-such"')
    status, out, _ = sweep("--data-root", "nowhere", "--dry-run")
    lines = out.splitlines()
    assert status == 0 and sum("(1)" in line for line in lines) == 7, "six cells and the reason"
    (reason,) = [line for line in lines if line.startswith("(1) ")]
    assert "nowhere" in reason and not any("(2)" in line for line in lines)
    assert any("'no-such'" in line for line in lines)


@pytest.mark.thorough
def test_sweep_continues_after_failures_and_is_cached(bench: Bench, tmp_path: Path, sweep: Sweep) -> None:
    path = recipe(
        tmp_path,
        'method = ["no-defence", "label-smoothing", "not-there"]',
        'method = "pate"\n"method.teachers" = 500',
        'method = "rr"\nnote = "diverges"\n"method.rate" = 1e38\nepsilon = 1',
        seeds="[0, 1]",
    )
    done = bench("sweep", path, "--tier", "smoke", "--jobs", 2)
    assert done.returncode == 1, done.stderr
    found = outcomes(tmp_path / "runs")
    states = {name: outcome["state"] for name, outcome in found.items()}
    assert states == {
        **{f"{method} seed={s}": "ok" for method in ("no-defence", "label-smoothing") for s in (0, 1)},
        **{f"not-there seed={s}": "planned" for s in (0, 1)},
        **{f"pate seed={s}": "refused" for s in (0, 1)},
        **{f"rr seed={s}": "failed" for s in (0, 1)},
    }
    assert "RuntimeError" in found["rr seed=0"]["reason"] and "500 teachers" in found["pate seed=1"]["reason"]
    assert "failed: rr " in done.stdout and "RuntimeError" in done.stdout
    assert re.search(r"2 failed.*, in \d+ (s|min)\n", done.stdout), done.stdout
    lines = re.findall(r"^\[(\d)/6\] .*?(left)?$", done.stdout + done.stderr, re.MULTILINE)
    assert lines == [(str(n), "left" if n < 6 else "") for n in range(1, 7)]
    teachers = list((tmp_path / "runs" / "steps" / "teacher").glob("[0-9a-f]*"))
    assert len(teachers) == 2, "runs with one seed share a teacher"
    status, again, _ = sweep("--dry-run")
    assert status == 0 and "4 cached" in again and "2 ready" in again, again


def test_sweep_old_option_executor_is_accepted(tmp_path: Path, sweep: Sweep) -> None:
    recipe(tmp_path, 'method = "no-defence"')
    status, out, notice = sweep("--executor", "ray", "--gpus", "1", "--dry-run")
    assert status == 0 and "1 ready" in out and "--backend ray" in notice.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.toml"], "no.toml"),
        (["toy.toml", "--devices", "tpu"], "--device tpu"),
        (["toy.toml", "--dataset", "mnist"], "--dataset mnist"),
        (["toy.toml", "--dataset", ","], "--dataset ,"),
        (["toy.toml", "--set", "teacher"], "OPTION=VALUE"),
        (["toy.toml", "--set", "=x"], "OPTION=VALUE"),
        (["toy.toml", "--set", "out=x"], "--out"),
        (["toy.toml", "--set=--tier=paper"], "--tier"),
        (["toy.toml", "--set", "seeds=5,6"], "--seeds"),
        (["toy.toml", "--jobs", "0"], "--jobs 0"),
        (["toy.toml", "--backend", "ray", "--gpus", "inf"], "--gpus inf"),
        (["toy.toml", "--out", "taken"], "--out taken"),
        (["toy.toml", "--backend", "ray", "--devices", "cpu"], "--gpus"),
        (["toy.toml", "--backend", "ray", "--address", "auto", "--jobs", "2"], "--jobs"),
        (["toy.toml", "--backend", "slurm", "--address", "auto"], "--address"),
        (["toy.toml", "--slurm", "time=9"], "--slurm"),
        (["toy.toml", "--gpus", "1"], "--gpus"),
        (["toy.toml", "--backend", "slurm", "--slurm", "time"], "--slurm time"),
        (["toy.toml", "--backend", "slurm", "--slurm", "array=3"], "array"),
        (["toy.toml", "--seeds", "a"], "--seeds a"),
        (["toy.toml", "--seeds", ""], "--seeds"),
        (["toy.toml", "--out", "x" * 256], "255"),
    ],
)
def test_sweep_bad_option_exits_with_2_and_one_line(
    tmp_path: Path, sweep: Sweep, arguments: list[str], said: str
) -> None:
    recipe(tmp_path, 'method = "no-defence"')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "sweeps").touch()
    status, _, error = sweep(*arguments[1:], path=arguments[0])
    assert status == 2 and said in error and len(error.strip().splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("device", "given"), [("cpu", {3: "a b", 4: "c"}), ("cuda", {3: "a b", 4: "c"})])
def test_local_task_has_its_device_and_threads(device: str, given: dict[int, str]) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    before = dict(os.environ)
    tasks = [Task(index, tuple(words.split())) for index, words in given.items()]
    found = list(Local(said, 2, (device,)).run(tasks))
    assert sorted(done.index for done in found) == sorted(given) and {done.status for done in found} == {5}
    lines = {done.index: done.tail.splitlines()[-1] for done in found}
    threads = threads_each(2)
    assert lines == {index: f"{words} --device {device} {threads} {threads}" for index, words in given.items()}
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("jobs", "wished", "threads"),
    [(1, "", 8), (3, "", 2), (20, "", 1), (2, "1", 1), (2, "4", 4), (2, "6", 4), (1, "0", 8), (1, "2,4", 8)],
)
def test_threads_each_shares_cores_within_omp_num_threads(
    monkeypatch: pytest.MonkeyPatch, jobs: int, wished: str, threads: int
) -> None:
    monkeypatch.setattr("bench.sweeps.processes.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", wished)
    assert threads_each(jobs) == threads


def said(arguments: Sequence[str]) -> int:
    """Replaces the command: prints its arguments and its number of threads."""
    print("not this", flush=True)
    print(*arguments, os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), file=sys.stderr, flush=True)
    return 5


def accept_interrupts() -> None:
    """Restore default handlers: a shell that runs tests in the background may let them ignore interrupts."""
    for kind in (signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, signal.SIG_DFL)


HOURS = 'method = "dpsd"\nvariant = "printed"\n"method.iterations" = 1000000\nepsilon = "none"'


def start_sweep(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a sweep of two cells; return it, and the process of the first cell, which would take hours."""
    path = recipe(tmp_path, HOURS, 'method = "no-defence"')
    started = subprocess.Popen(
        [*BENCH, "sweep", str(path), "--tier", "smoke", "--jobs", "1"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=accept_interrupts,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not (made := list((tmp_path / "runs").glob("steps/release/.making-*"))) and time.monotonic() < until:
        time.sleep(0.2)
        assert started.poll() is None, started.communicate()
    return started, int(made[0].name.rpartition("-")[2])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [signal.SIGINT, *(pytest.param(k, marks=pytest.mark.slow) for k in (signal.SIGTERM, signal.SIGHUP))]
)
def test_sweep_interrupted_ends_children_and_continues(tmp_path: Path, sweep: Sweep, kind: signal.Signals) -> None:
    started, child = start_sweep(tmp_path)
    os.kill(child, 0)
    os.kill(started.pid, kind)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130 and said
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    status, listed, error = sweep("--dry-run")
    assert status == 0 and "2 ready" in listed, listed + error


def test_sweep_cell_beyond_time_limit_stays_ready(tmp_path: Path, sweep: Sweep) -> None:
    recipe(tmp_path, 'method = ["no-defence", "fedavg"]\nepsilon = "none"')
    status, out, error = sweep("--within", "1e-6")
    assert status == 0 and "2 ready" in out and "2 of 2" in error + out
    assert {outcome["state"] for outcome in outcomes(tmp_path / "runs").values()} == {"ready"}


@pytest.mark.slow
def test_sweep_at_time_limit_keeps_finished_cells(tmp_path: Path, sweep: Sweep) -> None:
    recipe(tmp_path, HOURS, 'method = "no-defence"')
    began = time.monotonic()
    assert sweep("--jobs", "2", "--within", "1")[0] == 0 and 55 < time.monotonic() - began < 100
    states = {name.split()[0]: outcome["state"] for name, outcome in outcomes(tmp_path / "runs").items()}
    assert states == {"dpsd": "ready", "no-defence": "ok"}
    assert not list((tmp_path / "runs").glob("steps/release/.making-*")), "it is removed"
    status, listed, _ = sweep("--jobs", "2", "--dry-run")
    assert status == 0 and "1 cached, 1 ready" in listed
