"""Trained networks over an fsspec URL: made once by two machines, checked by their hashes, optional."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.storage.mirror import VARIABLE
from bench.storage.store import MANIFEST, Store

SPEC = {"kind": "teacher", "value": 1}


def write(text: str) -> Any:
    """Return a function that writes one file in a folder."""

    def make(path: Path) -> None:
        (path / "part").mkdir()
        (path / "part" / "result.txt").write_text(text)

    return make


def result(step: Any) -> str:
    return str((step.path / "part" / "result.txt").read_text())


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty mirror."""
    found = f"file://{tmp_path}/mirror" if request.param == "file" else f"memory://{tmp_path.name}"
    monkeypatch.setenv(VARIABLE, found)
    return found


def test_mirror_second_machine_downloads_a_teacher(url: str, tmp_path: Path) -> None:
    first = Store(tmp_path / "a").step("teacher", SPEC, write("a"))
    second = Store(tmp_path / "b").step("teacher", SPEC, write("b"))
    assert (first.cached, second.cached) == (False, True) and result(second) == "a"
    assert second.path == tmp_path / "b" / "steps" / "teacher" / first.path.name
    assert Store(tmp_path / "b").step("teacher", SPEC, write("c")).cached
    assert result(Store(tmp_path / "c").step("teacher", SPEC | {"value": 2}, write("d"))) == "d"


def test_mirror_fresh_step_keeps_the_first_upload(url: str, tmp_path: Path) -> None:
    Store(tmp_path / "a").step("teacher", SPEC, write("a"))
    assert result(Store(tmp_path / "b", fresh=True).step("teacher", SPEC, write("b"))) == "b"
    assert result(Store(tmp_path / "c").step("teacher", SPEC, write("c"))) == "a"


def test_mirror_copies_no_releases(url: str, tmp_path: Path) -> None:
    Store(tmp_path / "a").step("release", SPEC, write("a"))
    assert result(Store(tmp_path / "b").step("release", SPEC, write("b"))) == "b"


@pytest.mark.parametrize("damage", ["changed", "missing", "outside", "no manifest"])
def test_mirror_damaged_copy_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path}/mirror")
    step = Store(tmp_path / "a").step("teacher", SPEC, write("a"))
    copy = tmp_path / "mirror" / "teacher" / step.path.name
    file = copy / "part" / "result.txt"
    if damage == "changed":
        file.write_text("other")
    elif damage == "missing":
        file.unlink()
    elif damage == "outside":
        content = json.loads((copy / MANIFEST).read_text())
        (copy / MANIFEST).write_text(json.dumps(content | {"files": {"../../escaped": "0"}}))
    else:
        (copy / MANIFEST).write_text("{")
    lines = list[str]()
    found = Store(tmp_path / "b", notify=lines.append).step("teacher", SPEC, write("b"))
    assert not found.cached and result(found) == "b" and len(lines) == 1
    assert not list(tmp_path.rglob("escaped")) and not list(tmp_path.glob("b/steps/teacher/.making-*"))


def test_mirror_not_writable_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path}/file/mirror")
    lines = list[str]()
    assert result(Store(tmp_path / "a", notify=lines.append).step("teacher", SPEC, write("a"))) == "a"
    assert lines and all(str(tmp_path) in line for line in lines)


def test_mirror_unknown_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such://bucket")
    with pytest.raises(BenchError, match="BENCH_MIRROR=no-such://bucket: "):
        Store(tmp_path)


def train_slowly(root: Path, barrier: Any, trained: Any) -> None:
    """One of two processes with the same output directory."""

    def make(path: Path) -> None:
        with trained.get_lock():
            trained.value += 1
        multiprocessing.Event().wait(1)
        (path / "result.txt").write_text("a")

    barrier.wait(60)
    Store(root, notify=lambda line: None).step("teacher", SPEC, make)


@pytest.mark.thorough
def test_store_two_processes_train_a_teacher_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, trained = context.Barrier(2), context.Value("i", 0)
    both = [context.Process(target=train_slowly, args=(tmp_path, barrier, trained)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(100)
    assert [process.exitcode for process in both] == [0, 0] and trained.value == 1
