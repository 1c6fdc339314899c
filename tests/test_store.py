"""The store of finished steps, safe for several processes, and its mirror: trained networks over an fsspec URL."""

import json
import multiprocessing
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refuses
from safetensors.torch import save_file

from bench.errors import BenchError
from bench.storage import store
from bench.storage.atomic_write import write_atomically
from bench.storage.mirror import VARIABLE
from bench.storage.provenance import GitState, Origin
from bench.storage.store import MANIFEST, Store, load_tensors, publish

SPEC, OTHER = {"kind": "toy", "value": 1}, {"kind": "toy", "value": 2}
CPU, GPU = Origin(GitState("c0", True), "cpu"), Origin(GitState("c0", True), "NVIDIA H200")


def write(text: str) -> Any:
    return lambda path: (path / "result.txt").write_text(text)


def result(step: store.Step) -> str:
    return (step.path / "result.txt").read_text()


def toy(root: Path, text: str, spec: Any = SPEC, **how: Any) -> store.Step:
    """A step of the store in a folder, made with this text unless it exists."""
    return Store(root, **how).step("toy", spec, write(text))


def test_store_makes_a_step_once_for_each_spec(tmp_path: Path) -> None:
    first, again = toy(tmp_path, "a"), toy(tmp_path, "b")
    assert (first.cached, again.cached) == (False, True) and result(again) == "a"
    assert toy(tmp_path, "b", OTHER).path != first.path


def test_store_fresh_makes_every_step_once_more(tmp_path: Path) -> None:
    toy(tmp_path, "a")
    fresh = Store(tmp_path, fresh=True)
    assert [result(fresh.step("toy", SPEC, write(text))) for text in "bc"] == ["b", "b"]


def test_store_failing_step_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("x")
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        Store(tmp_path).step("toy", SPEC, fail)
    assert not [p for p in (tmp_path / "steps" / "toy").iterdir() if not p.name.endswith(".lock")]


@pytest.mark.parametrize("is_large", [True, False])
def test_store_reads_large_files_only_if_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr(store, "LARGE", 4 if is_large else 2**28)
    path = Store(tmp_path).step("toy", SPEC, write("12345")).path
    file, before = path / "result.txt", (path / "result.txt").stat()
    file.write_text("12346")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.inspect(path)[0] == ([] if is_large else ["result.txt"]), "same size and time, other content"
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert store.inspect(path)[0] == ["result.txt"]
    file.write_text("12345")
    assert store.inspect(path)[0] == [], "another time, the same content"
    file.unlink()
    assert store.inspect(path)[0] != []


@pytest.mark.parametrize("damage", ["truncate", "remove", "{", "[]", '{"files": []}'])
def test_store_damaged_step_is_moved_and_made_again(tmp_path: Path, damage: str) -> None:
    path = toy(tmp_path, "aaaa").path
    if damage == "remove":
        (path / "result.txt").unlink()
    else:
        (path / ("result.txt" if damage == "truncate" else MANIFEST)).write_text(damage[:2])
    lines: list[str] = []
    step = toy(tmp_path, "new", notify=lines.append)
    assert not step.cached and result(step) == "new"
    assert len(lines) == 1 and str(path) in lines[0] and "\n" not in lines[0]
    assert len(list(path.parent.glob(".damaged-*"))) == 1


def test_publish_interrupted_keeps_the_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_store_get_makes_tensors_once_per_key(tmp_path: Path) -> None:
    kept, calls = Store(tmp_path), []

    def make() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"w": torch.arange(3)}

    for steps in (3, 3, 4):
        assert torch.equal(kept.get("gan", {"steps": steps}, make)["w"], torch.arange(3))
    assert len(calls) == 2


def make_slowly(root: Path, text: str, started: Any) -> None:
    def make(path: Path) -> None:
        (path / "result.txt").write_text(text)
        started.set()
        time.sleep(0.5)

    Store(root, notify=lambda line: None).step("toy", SPEC, make)


@pytest.mark.parametrize("killed", [False, True])
def test_store_second_process_waits_for_a_whole_step(tmp_path: Path, killed: bool) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    first = context.Process(target=make_slowly, args=(tmp_path, "first", started))
    first.start()
    assert started.wait(10) and first.pid is not None
    if killed:
        os.kill(first.pid, signal.SIGKILL)
        first.join(10)
    lines: list[str] = []
    step = Store(tmp_path, notify=lines.append).step("toy", SPEC, write("second"))
    first.join(10)
    assert (step.cached, result(step), len(lines)) == ((False, "second", 0) if killed else (True, "first", 1))
    assert not list(step.path.parent.glob(".making-*"))


def name_of(step: store.Step) -> str:
    return f"{step.path.parent.name} {step.path.name}"


def test_log_has_the_origin_of_every_step(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    with kept.log_steps(GPU) as before:
        made = kept.step("toy", SPEC, write("a"))
    with kept.log_steps(CPU) as log:
        kept.step("toy", SPEC, write("b"))
        new = kept.step("toy", OTHER, write("c"))
    assert before.steps == {name_of(made): GPU}
    assert log.steps == {name_of(made): GPU, name_of(new): CPU}


def test_log_has_the_steps_within_a_step(tmp_path: Path) -> None:
    kept = Store(tmp_path)

    def outer(path: Path) -> None:
        (path / "result.txt").write_bytes((kept.step("inner", OTHER, write("a")).path / "result.txt").read_bytes())

    with kept.log_steps(GPU):
        part = kept.step("inner", OTHER, write("a"))
    with kept.log_steps(CPU) as first:
        whole = kept.step("toy", SPEC, outer)
    other = Store(tmp_path)
    with other.log_steps(CPU) as again:
        assert again.steps == {}
        assert other.step("toy", SPEC, outer).cached
    assert first.steps == again.steps == {name_of(part): GPU, name_of(whole): CPU}


@pytest.mark.parametrize("left_out", [(), ("made", "within"), ("made", "within", "large")])
def test_log_origin_is_none_outside_a_run(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """Steps of older versions have no such fields."""
    made = toy(tmp_path, "a")
    manifest = json.loads((made.path / MANIFEST).read_text())
    (made.path / MANIFEST).write_text(json.dumps({k: v for k, v in manifest.items() if k not in left_out}))
    kept = Store(tmp_path)
    with kept.log_steps(CPU) as log:
        assert kept.step("toy", SPEC, write("b")).cached
    assert log.steps == {name_of(made): None}


def test_origin_from_another_version_is_read(tmp_path: Path) -> None:
    plain = {"device": "cpu", "git": {"commit": "c0", "clean": True}, "precision": "bf16", "unknown": 1}
    origin = Origin.from_plain(plain)
    assert (origin.device, origin.git, origin.precision) == ("cpu", GitState("c0", True), "bf16")
    assert origin.differences(CPU) == {"precision": "bf16"}


def test_log_has_steps_of_a_scratch_store(tmp_path: Path) -> None:
    toy(tmp_path / "root", "a")
    kept = Store(tmp_path / "root", scratch=tmp_path / "scratch")
    with kept.log_steps(CPU) as log:
        existing, new = (kept.step("toy", spec, write("b")) for spec in (SPEC, OTHER))
    assert log.steps == {name_of(existing): None, name_of(new): CPU}
    assert new.path.is_relative_to(tmp_path / "scratch")


def test_store_directory_not_writable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refuses(BenchError, tmp_path / "file" / "runs"):
        Store(tmp_path / "file" / "runs")


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_atomic_write_replaces_only_after_the_disk_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    path, before = tmp_path / "a" / "b.csv", []
    write_atomically(path, "old")

    def fsync(_: int) -> None:
        before.append(path.read_text())
        if is_interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext():
        write_atomically(path, "new")
    assert before == ["old"] and path.read_text() == ("old" if is_interrupted else "new")
    assert [file.name for file in path.parent.iterdir()] == ["b.csv"]


def test_load_tensors_path_not_utf8_is_read(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    save_file({"a": torch.arange(3)}, folder / "x.safetensors")
    assert torch.equal(load_tensors(folder / "x.safetensors")["a"], torch.arange(3))


TEACHER = {"kind": "teacher", "value": 1}


def teacher(root: Path, text: str, kind: str = "teacher", value: int = 1, **how: Any) -> Any:
    """A step of a machine's store, made with a file of this text unless it exists; with the text of the file."""

    def make(path: Path) -> None:
        (path / "part").mkdir()
        (path / "part" / "result.txt").write_text(text)

    step = Store(root, **how).step(kind, TEACHER | {"value": value}, make)
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
    Store(root, notify=lambda line: None).step("teacher", TEACHER, make)


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
