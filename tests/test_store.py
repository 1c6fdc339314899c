from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import BenchError
from bench.storage import store
from bench.storage.atomic_write import write_atomically
from bench.storage.store import MANIFEST, Store

SPEC = {"kind": "toy", "value": 1}


def write(text: str) -> Any:
    return lambda path: (path / "result.txt").write_text(text)


def test_a_step_is_made_once(tmp_path: Path) -> None:
    first = Store(tmp_path).step("toy", SPEC, write("a"))
    again = Store(tmp_path).step("toy", SPEC, write("b"))
    assert (first.cached, again.cached) == (False, True)
    assert (again.path / "result.txt").read_text() == "a"


def test_another_spec_is_another_step(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    assert kept.step("toy", SPEC, write("a")).path != kept.step("toy", SPEC | {"value": 2}, write("b")).path


def test_fresh_makes_every_step_once_more(tmp_path: Path) -> None:
    Store(tmp_path).step("toy", SPEC, write("a"))
    fresh = Store(tmp_path, fresh=True)
    assert (fresh.step("toy", SPEC, write("b")).path / "result.txt").read_text() == "b"
    assert (fresh.step("toy", SPEC, write("c")).path / "result.txt").read_text() == "b"


def test_a_failing_step_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("x")
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        Store(tmp_path).step("toy", SPEC, fail)
    left = [p.name for p in (tmp_path / "steps" / "toy").iterdir() if not p.name.endswith(".lock")]
    assert left == []


def test_a_large_file_is_believed_until_its_size_or_time_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LARGE", 4)
    path = Store(tmp_path).step("toy", SPEC, write("12345")).path
    file, before = path / "result.txt", (path / "result.txt").stat()
    file.write_text("12346")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.inspect(path)[0] == [], "of its size and time, and not read"
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert store.inspect(path)[0] == ["result.txt"]
    file.write_text("12345")
    assert store.inspect(path)[0] == [], "another time, and read"
    file.unlink()
    assert store.inspect(path)[0] != []


def test_a_small_file_is_always_read(tmp_path: Path) -> None:
    path = Store(tmp_path).step("toy", SPEC, write("12345")).path
    file, before = path / "result.txt", (path / "result.txt").stat()
    file.write_text("12346")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.inspect(path)[0] == ["result.txt"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "{", "[]", '{"files": []}'])
def test_a_damaged_step_is_moved_aside_and_made_again(tmp_path: Path, damage: str) -> None:
    path = Store(tmp_path).step("toy", SPEC, write("aaaa")).path
    if damage == "truncate":
        (path / "result.txt").write_text("aa")
    elif damage == "remove":
        (path / "result.txt").unlink()
    else:
        (path / MANIFEST).write_text(damage)
    lines: list[str] = []
    step = Store(tmp_path, notify=lines.append).step("toy", SPEC, write("new"))
    assert not step.cached and (step.path / "result.txt").read_text() == "new"
    assert "damaged" in lines[0] and "\n" not in lines[0]
    assert len(list(path.parent.glob(".damaged-*"))) == 1


def test_artifacts_keep_tensors_by_key(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def make() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"w": torch.arange(3)}

    for _ in range(2):
        assert torch.equal(store.get("gan", {"steps": 3}, make)["w"], torch.arange(3))
    store.get("gan", {"steps": 4}, make)
    assert len(calls) == 2


def _slow(root: Path, text: str, started: Any) -> None:
    def make(path: Path) -> None:
        (path / "result.txt").write_text(text)
        started.set()
        time.sleep(0.5)

    Store(root, notify=lambda line: None).step("toy", SPEC, make)


def test_a_second_process_waits_and_takes_the_first_ones_result(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    first = context.Process(target=_slow, args=(tmp_path, "first", started))
    first.start()
    started.wait(10)
    lines: list[str] = []
    step = Store(tmp_path, notify=lines.append).step("toy", SPEC, write("second"))
    first.join(10)
    assert step.cached and (step.path / "result.txt").read_text() == "first"
    assert "waiting for another process" in lines[0]


def test_a_killed_process_leaves_no_half_step(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_slow, args=(tmp_path, "half", started))
    process.start()
    started.wait(10)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    step = Store(tmp_path).step("toy", SPEC, write("whole"))
    assert not step.cached and (step.path / "result.txt").read_text() == "whole"
    assert list(step.path.parent.glob(".making-*")) == []


def test_an_unwritable_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot write there") as caught:
        Store(tmp_path / "file" / "runs")
    assert "\n" not in str(caught.value)


def test_atomic_write_replaces(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.csv", "1")
    write_atomically(tmp_path / "a" / "b.csv", "2")
    assert (tmp_path / "a" / "b.csv").read_text() == "2"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.csv"]
