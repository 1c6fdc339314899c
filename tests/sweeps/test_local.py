"""Local processes: exit statuses are kept, a failed process is replaced, none outlives its sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.popen_spawn_posix import Popen
from pathlib import Path
from typing import Any

import pytest
from conftest import write_toy

from bench.cli import main
from bench.sweeps import processes
from bench.sweeps.executors import Task
from bench.sweeps.local import Local
from tests.sweeps.importable import environment, has_ended, importable

CELLS = """
import os, signal, subprocess, sys, time
from bench.storage.provenance import peak_memory
from bench.sweeps import local

def no_sigint():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def main(arguments):
    print("process", os.getpid(), *arguments, file=sys.stderr)
    if arguments[0] == "fill":
        bytearray(int(arguments[1]) << 20)
        print("peak", peak_memory(), file=sys.stderr)
        return 0
    if arguments[0] == "late":
        local.free_memory = lambda: False
        return 0
    if arguments[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if arguments[0] == "raise":
        raise RuntimeError("out of order")
    if arguments[0] == "leave":
        raise SystemExit("a word")
    if arguments[0] == "hang":
        with open(arguments[1], "w") as stream:
            print(os.getpid(), subprocess.Popen(["sleep", "600"], preexec_fn=no_sigint).pid, file=stream, flush=True)
        time.sleep(600)
    if len(arguments) > 3:
        began = time.monotonic()
        while not os.path.exists(arguments[2]):
            assert time.monotonic() < began + 100
            time.sleep(0.02)
        with open(arguments[1], "w") as stream:
            print(began, time.monotonic(), file=stream)
    print("end", arguments[0], file=sys.stderr)
    return int(arguments[0])
"""
MANY = """
import json, sys
import cells
from bench.sweeps import local
from bench.sweeps.executors import Task

if __name__ == "__main__":
    statuses = json.loads(sys.argv[1])
    tasks = [Task(i, (str(status),)) for i, status in enumerate(statuses)]
    found = {done.index: [done.status, done.tail] for done in local.Local(cells.main, 4).run(tasks)}
    print(json.dumps([found[i] for i in range(len(statuses))]))
"""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return importable("cells", CELLS, tmp_path, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [9, pytest.param(100, marks=pytest.mark.slow)])
def test_local_many_cells_keep_their_exit_statuses(cells: Any, tmp_path: Path, number: int) -> None:
    """Run in a separate process, whose `__main__` the cells need not import."""
    statuses = [3 if i % 7 == 0 else 0 for i in range(number)]
    command = [sys.executable, "-c", MANY, json.dumps(statuses)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [status for status, _ in found] == statuses
    assert all(tail.splitlines()[-1:] == [f"end {status}"] for status, tail in found)


def all_ended(processes: list[int]) -> bool:
    """Whether they end within 20 seconds: a killed process takes a moment to end."""
    until = time.monotonic() + 20
    while not (ended := all(map(has_ended, processes))) and time.monotonic() < until:
        time.sleep(0.05)
    return ended


def pids_in(path: Path) -> list[int]:
    """Return the processes of a hanging cell, which it writes to a file."""
    until = time.monotonic() + 120
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.05)
    return [int(word) for word in path.read_text().split()]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be observed without /proc")
def test_local_closed_early_kills_tasks_and_children(cells: Any, tmp_path: Path) -> None:
    tasks = [Task(0, ("hang", str(tmp_path / "pids"))), Task(1, ("0",)), Task(2, ("0",))]
    running: Iterator[Any] = Local(cells.main, 2).run(tasks)
    assert next(running).index == 1
    hanging = pids_in(tmp_path / "pids")
    assert not any(map(has_ended, hanging))
    running.close()  # type: ignore[attr-defined]
    assert all_ended(hanging) and len(hanging) == 2, "one of them ignores interrupts"


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes cannot be observed without /proc")
def test_local_time_limit_stops_tasks_and_starts_none(cells: Any, tmp_path: Path) -> None:
    tasks = [Task(0, ("hang", str(tmp_path / "pids"))), Task(1, ("0",), seconds=600), Task(2, ("3",), seconds=0.1)]
    running = Local(cells.main, 2).run(tasks, until=time.monotonic() + 40)
    assert next(running).index == 2
    hanging = pids_in(tmp_path / "pids")
    assert list(running) == [] and all_ended(hanging) and len(hanging) == 2


@pytest.mark.thorough
def test_local_without_fitting_task_ends_early(cells: Any) -> None:
    began = time.monotonic()
    tasks = [Task(0, ("0",)), Task(1, ("0",), seconds=900), Task(2, ("0",), after=frozenset({1}))]
    assert [done.index for done in Local(cells.main, 1).run(tasks, until=began + 600)] == [0]
    assert time.monotonic() < began + 300


@pytest.mark.thorough
def test_local_process_not_started_is_a_failed_cell(cells: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, failures = Popen._launch, [OSError(11, "no process to spare"), EOFError()]

    def seldom(*given: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return launch(*given)

    monkeypatch.setattr(Popen, "_launch", seldom)
    found = {d.index: d for d in Local(cells.main, 1).run([Task(i, (str(i),)) for i in range(4)])}
    assert {index: done.status for index, done in found.items()} == {0: 1, 1: 1, 2: 2, 3: 3}
    assert "no process to spare" in found[0].tail and "EOFError" in found[1].tail


@pytest.mark.thorough
def test_local_task_waits_only_for_its_prerequisites(cells: Any, tmp_path: Path) -> None:
    """The first cannot end before the third has: an unnecessary wait would never end."""

    def task(index: int, status: int, awaits: Path, after: set[int] | None = None) -> Task:
        return Task(index, (str(status), str(tmp_path / str(index)), str(awaits)), frozenset(after or ()))

    tasks = [task(7, 1, tmp_path / "1"), task(0, 0, tmp_path, {7}), task(1, 0, tmp_path, {99})]
    done = list(Local(cells.main, 2).run(tasks))
    shown = [(each.index, each.status) for each in done]  # the first two may end in either order
    assert set(shown[:2]) == {(1, 0), (7, 1)} and shown[2:] == [(0, 0)], "a failure blocks no other task"
    times = {name: [float(word) for word in (tmp_path / name).read_text().split()] for name in ("0", "1", "7")}
    assert times["1"][1] <= times["7"][1] <= times["0"][0]


@pytest.mark.parametrize("kind", processes.INTERRUPTS)
def test_interrupt_is_delayed_while_a_process_starts(kind: signal.Signals) -> None:
    before = {each: signal.signal(each, signal.default_int_handler) for each in processes.INTERRUPTS}
    reached = False
    try:
        with pytest.raises(KeyboardInterrupt), processes.delayed_interrupts():
            os.kill(os.getpid(), kind)
            time.sleep(0.1)
            reached = True
        assert reached and signal.getsignal(kind) is signal.default_int_handler
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_hangup_interrupts_a_sweep_unless_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), processes.as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup begins it
        with processes.as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGHUP, before)


IGNORING = """
import os, signal, sys, time
from pathlib import Path
from bench.sweeps.local import run_task

def main(_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

signal.signal(signal.SIGINT, signal.SIG_IGN)
status, _ = run_task(main, [], Path(sys.argv[1]))
os._exit(status)
"""


def test_local_background_task_accepts_interrupts(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IGNORING, str(tmp_path / "log")], env=environment(), check=False)
    assert done.returncode == 130


@pytest.mark.thorough
def test_local_process_is_reused_until_a_task_fails(cells: Any) -> None:
    words = ["0", "0", "3", "0", "die", "0", "raise", "leave", "0"]
    done = list(Local(cells.main, 1, ("cpu",)).run([Task(i, (word,)) for i, word in enumerate(words)]))
    assert [(each.index, each.status) for each in done] == [
        (0, 0), (1, 0), (2, 3), (3, 0), (4, -9), (5, 0), (6, 1), (7, 1), (8, 0),
    ]  # fmt: skip
    served = [each.tail.split()[1] for each in done]
    assert served[0] == served[1] == served[2] and served[3] == served[4] and served[5] == served[6]
    assert len(set(served)) == 5, "every process ends with its first failure"
    shown = [sum(line.startswith("process ") for line in each.tail.splitlines()) for each in done]
    assert set(shown) == {1}, "the output of another run is not repeated"
    assert "RuntimeError: out of order" in done[6].tail
    assert not any(Path(f"/proc/{process}").exists() for process in served)


@pytest.mark.thorough
def test_local_process_with_broken_device_is_replaced(cells: Any) -> None:
    done = list(Local(cells.main, 1, ("cpu",)).run([Task(i, (word,)) for i, word in enumerate(("late", "0", "0"))]))
    assert [each.status for each in done] == [0, 0, 0]
    first, second, third = (each.tail.split()[1] for each in done)
    assert first != second == third


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory cannot be reset without /proc")
def test_local_peak_memory_is_reset_for_each_task(cells: Any) -> None:
    tasks = [Task(i, ("fill", size)) for i, size in enumerate(("1", "400", "1"))]
    shown = [each.tail.split() for each in Local(cells.main, 1, ("cpu",)).run(tasks)]
    small, large, again = (int(words[words.index("peak") + 1]) for words in shown)
    assert large > small + 300 and again < small + 100 and len({words[1] for words in shown}) == 1


@pytest.mark.thorough
def test_local_devices_are_assigned_in_rotation(cells: Any) -> None:
    tasks = [Task(i, ("0",)) for i in range(6)]
    done = Local(cells.main, 2, ("cuda:0", "cuda:1")).run(tasks)
    found = {each.tail.splitlines()[0].split()[-1] for each in done}
    assert found == {"cuda:0", "cuda:1"}


@pytest.mark.slow
def test_local_records_equal_those_of_separate_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare four runs in one process, of which the second fails, with four commands."""
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path, 160)
    common = ["--teacher", "datalens", "--dataset", f"npz:{tmp_path}/toy.npz", "--tier", "smoke", "--noise", "seeded"]
    runs = [["run", "--method", name, *common, "--epsilon", "10"] for name in ("dpsd", "not-there", "dpdfd")]
    runs += [["run", "--method", "dgd", *common, "--attack", "gmi", "--epsilon", "10"]]
    one = Local(main, 1, ("cpu",))
    statuses = [d.status for d in one.run([Task(i, (*run, "--out", "staying")) for i, run in enumerate(runs)])]
    assert statuses == [0, 2, 0, 0]
    for run in runs:
        assert main([*run, "--out", "each", "--device", "cpu"]) == (2 if "not-there" in run else 0)

    def found(out: str) -> dict[str, Any]:
        read = [json.loads(path.read_text()) for path in (tmp_path / out / "records").glob("*/record.json")]
        return {each["hash"]: {key: each[key] for key in ("metrics", "privacy", "spec")} for each in read}

    assert len(found("each")) == 3 and found("staying") == found("each")
