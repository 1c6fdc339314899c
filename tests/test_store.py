from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bench.errors import BenchError
from bench.storage import store
from bench.storage.atomic_write import write_atomically
from bench.storage.store import MANIFEST, Store, load_tensors, publish

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


def test_a_step_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, final = tmp_path / ".making", tmp_path / "final"
    for folder in (work, final):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self == work:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(work, final)
    assert (final / "name").read_text() == "final"
    monkeypatch.undo()
    publish(work, final)
    assert (final / "name").read_text() == ".making" and [path.name for path in tmp_path.iterdir()] == ["final"]


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


HERE, THERE = {"device": "cpu"}, {"device": "NVIDIA H200"}


def test_a_run_notes_its_steps_and_where_each_was_made(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    with kept.following(THERE) as before:
        made = kept.step("toy", SPEC, write("a"))
    with kept.following(HERE) as followed:
        kept.step("toy", SPEC, write("b"))
        new = kept.step("toy", SPEC | {"value": 2}, write("c"))
    assert before.taken == {f"toy {made.path.name}": THERE}
    assert followed.taken == {f"toy {made.path.name}": THERE, f"toy {new.path.name}": HERE}


def test_a_step_remembers_the_steps_that_it_was_made_of(tmp_path: Path) -> None:
    kept, inner = Store(tmp_path), SPEC | {"value": 2}

    def outer(path: Path) -> None:
        (path / "result.txt").write_bytes((kept.step("inner", inner, write("a")).path / "result.txt").read_bytes())

    with kept.following(THERE):
        part = kept.step("inner", inner, write("a"))
    with kept.following(HERE) as first:
        whole = kept.step("toy", SPEC, outer)
    with Store(tmp_path).following(HERE) as again:
        pass
    assert again.taken == {}
    other = Store(tmp_path)
    with other.following(HERE) as again:
        assert other.step("toy", SPEC, outer).cached
    assert first.taken == again.taken == {f"inner {part.path.name}": THERE, f"toy {whole.path.name}": HERE}


def test_a_step_made_for_no_run_or_before_steps_said_so_is_of_unknown_origin(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    path = kept.step("toy", SPEC, write("a")).path
    manifest = json.loads((path / MANIFEST).read_text())
    for left_out in ((), ("made", "within"), ("made", "within", "large")):
        (path / MANIFEST).write_text(json.dumps({k: v for k, v in manifest.items() if k not in left_out}))
        with kept.following(HERE) as followed:
            assert kept.step("toy", SPEC, write("b")).cached
        assert followed.taken == {f"toy {path.name}": None}


def test_what_a_scratch_store_makes_is_noted_too(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Store(root).step("toy", SPEC, write("a"))
    kept = Store(root, scratch=tmp_path / "scratch")
    with kept.following(HERE) as followed:
        there = kept.step("toy", SPEC, write("b"))
        new = kept.step("toy", SPEC | {"value": 2}, write("c"))
    assert followed.taken == {f"toy {there.path.name}": None, f"toy {new.path.name}": HERE}
    assert new.path.is_relative_to(tmp_path / "scratch")


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


def test_an_interrupted_atomic_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    write_atomically(tmp_path / "b.csv", "old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "b.csv", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["b.csv"] and (tmp_path / "b.csv").read_text() == "old"


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "b.csv", []
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_text()))
    write_atomically(path, "new")
    assert seen == ["old"] and path.read_text() == "new"


def test_load_tensors_reads_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    save_file({"a": torch.arange(3)}, folder / "x.safetensors")
    assert torch.equal(load_tensors(folder / "x.safetensors")["a"], torch.arange(3))
