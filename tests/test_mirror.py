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


def teacher(root: Path, text: str, kind: str = "teacher", value: int = 1, **how: Any) -> Any:
    """A step of a machine's store, made with a file of this text unless it exists; with the text of the file."""

    def make(path: Path) -> None:
        (path / "part").mkdir()
        (path / "part" / "result.txt").write_text(text)

    step = Store(root, **how).step(kind, SPEC | {"value": value}, make)
    return step, (step.path / "part" / "result.txt").read_text()


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty mirror."""
    found = f"file://{tmp_path}/mirror" if request.param == "file" else f"memory://{tmp_path.name}"
    monkeypatch.setenv(VARIABLE, found)
    return found


def test_mirror_second_machine_downloads_a_teacher(url: str, tmp_path: Path) -> None:
    first, _ = teacher(tmp_path / "a", "a")
    second, text = teacher(tmp_path / "b", "b")
    assert (first.cached, second.cached, text) == (False, True, "a")
    assert second.path == tmp_path / "b" / "steps" / "teacher" / first.path.name
    assert teacher(tmp_path / "b", "c")[0].cached and teacher(tmp_path / "c", "d", value=2)[1] == "d"


def test_mirror_fresh_step_keeps_the_first_upload(url: str, tmp_path: Path) -> None:
    texts = [teacher(tmp_path / text, text, fresh=text == "b")[1] for text in "abc"]
    assert texts == ["a", "b", "a"]


def test_mirror_copies_no_releases(url: str, tmp_path: Path) -> None:
    assert [teacher(tmp_path / text, text, kind="release")[1] for text in "ab"] == ["a", "b"]


@pytest.mark.parametrize("damage", ["changed", "missing", "outside", "no manifest"])
def test_mirror_damaged_copy_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path}/mirror")
    step, _ = teacher(tmp_path / "a", "a")
    copy = tmp_path / "mirror" / "teacher" / step.path.name
    if damage == "changed":
        (copy / "part" / "result.txt").write_text("other")
    elif damage == "missing":
        (copy / "part" / "result.txt").unlink()
    else:
        outside = json.loads((copy / MANIFEST).read_text()) | {"files": {"../../escaped": "0"}}
        (copy / MANIFEST).write_text(json.dumps(outside) if damage == "outside" else "{")
    lines = list[str]()
    found, text = teacher(tmp_path / "b", "b", notify=lines.append)
    assert not found.cached and text == "b" and len(lines) == 1
    assert not list(tmp_path.rglob("escaped")) and not list(tmp_path.glob("b/steps/teacher/.making-*"))


def test_mirror_not_writable_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path}/file/mirror")
    lines = list[str]()
    assert teacher(tmp_path / "a", "a", notify=lines.append)[1] == "a"
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
