"""Processes that stay from run to run: one serves many, one that fails is replaced, and records are the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import write_toy

from bench.cli import main
from bench.sweeps.executors import Task
from bench.sweeps.processes import end, stopping
from bench.sweeps.staying import Staff, Staying, Worker
from tests.sweeps.importable import importable

pytestmark = pytest.mark.thorough  # processes that begin, die and are begun again take seconds each

CELLS = """
import os, signal, sys
from bench.storage.provenance import peak_memory
from bench.sweeps import staying

def main(arguments):
    print("process", os.getpid(), *arguments, file=sys.stderr)
    if arguments[0] == "fill":
        bytearray(int(arguments[1]) << 20)
        print("peak", peak_memory(), file=sys.stderr)
    if arguments[0] in ("fill", "late"):
        if arguments[0] == "late":
            staying._clear = lambda: False
        return 0
    if arguments[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if arguments[0] == "raise":
        raise RuntimeError("out of order")
    if arguments[0] == "leave":
        raise SystemExit("a word")
    return int(arguments[0])
"""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return importable("staying_cells", CELLS, tmp_path, monkeypatch)


def test_a_process_serves_until_a_task_fails_and_another_takes_its_place(cells: Any) -> None:
    words = ["0", "0", "3", "0", "die", "0", "raise", "leave", "0"]
    done = list(Staying(cells.main, 1, ("cpu",)).run([Task(i, (word,)) for i, word in enumerate(words)]))
    assert [(each.index, each.status) for each in done] == [
        (0, 0), (1, 0), (2, 3), (3, 0), (4, -9), (5, 0), (6, 1), (7, 1), (8, 0),
    ]  # fmt: skip
    served = [each.tail.split()[1] for each in done]
    assert served[0] == served[1] == served[2] and served[3] == served[4] and served[5] == served[6]
    assert len(set(served)) == 5, "each that failed was the last of its process"
    told = [sum(line.startswith("process ") for line in each.tail.splitlines()) for each in done]
    assert set(told) == {1}, "what another run said is not told again"
    assert "RuntimeError: out of order" in done[6].tail
    assert not any(Path(f"/proc/{process}").exists() for process in served)


def test_a_device_that_is_out_of_order_after_a_run_costs_the_next_one_nothing(cells: Any) -> None:
    done = list(Staying(cells.main, 1, ("cpu",)).run([Task(i, (word,)) for i, word in enumerate(("late", "0", "0"))]))
    assert [each.status for each in done] == [0, 0, 0]
    first, second, third = (each.tail.split()[1] for each in done)
    assert first != second == third


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc here to forget a peak by")
def test_the_most_memory_of_a_run_is_its_own(cells: Any) -> None:
    tasks = [Task(i, ("fill", size)) for i, size in enumerate(("1", "400", "1"))]
    told = [each.tail.split() for each in Staying(cells.main, 1, ("cpu",)).run(tasks)]
    small, large, again = (int(words[words.index("peak") + 1]) for words in told)
    assert large > small + 300 and again < small + 100 and len({words[1] for words in told}) == 1


def test_one_that_has_not_begun_a_session_of_its_own_is_ended_too() -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    began = time.monotonic()
    end({process.sentinel: Worker(process, None, "cpu", Path())})  # type: ignore[arg-type]
    assert not process.is_alive() and time.monotonic() - began < 30


def test_one_that_died_while_it_had_nothing_to_do_costs_no_task(cells: Any, tmp_path: Path) -> None:
    staff = Staff(cells.main, tmp_path, ["cpu"])
    with stopping(staff.workers):
        staff.give(Task(0, ("0",)))
        (first,) = staff.over(None)
        process = int(first.tail.split()[1])
        os.kill(process, signal.SIGKILL)
        (worker,) = staff.workers.values()
        worker.process.join(60)  # threads of it may outlast it by a moment
        assert staff.may_take()
        staff.give(Task(1, ("0",)))
        (second,) = staff.over(None)
        assert second.status == 0 and second.tail.split()[1] != str(process) and len(staff.workers) == 1
        end(staff.workers)


def test_devices_are_given_out_in_turn(cells: Any) -> None:
    tasks = [Task(i, ("0",)) for i in range(6)]
    found = {each.tail.split()[-1] for each in Staying(cells.main, 2, ("cuda:0", "cuda:1")).run(tasks)}
    assert found == {"cuda:0", "cuda:1"}


@pytest.mark.slow
def test_records_are_those_of_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs in one process, of which the second fails, against three commands."""
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path, 160)
    common = ["--teacher", "datalens", "--dataset", f"npz:{tmp_path}/toy.npz", "--tier", "smoke"]
    runs = [["run", "--method", name, *common, "--epsilon", "10"] for name in ("dpsd", "not-there", "dpdfd")]
    runs += [["run", "--method", "dgd", *common, "--attack", "gmi", "--epsilon", "10"]]
    one = Staying(main, 1, ("cpu",))
    statuses = [d.status for d in one.run([Task(i, (*run, "--out", "staying")) for i, run in enumerate(runs)])]
    assert statuses == [0, 2, 0, 0]
    for run in runs:
        assert main([*run, "--out", "each", "--device", "cpu"]) == (2 if "not-there" in run else 0)

    def found(out: str) -> dict[str, Any]:
        read = [json.loads(path.read_text()) for path in (tmp_path / out / "records").glob("*/record.json")]
        return {each["hash"]: {key: each[key] for key in ("metrics", "privacy", "spec")} for each in read}

    assert len(found("each")) == 3 and found("staying") == found("each")
