"""Refused exports: their messages, and that they leave no files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import found, read, record_of

from bench.bundle import export, find, writing
from bench.cli import main
from bench.errors import BadOption, BenchError
from bench.storage.records import Record
from bench.storage.specs import canonical, digest


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two finished runs in a separate output directory."""
    for kind in ("rr", "no-defence"):
        for source, target in ((record_of(kind), "records"), (found(kind).step, "steps/release")):
            shutil.copytree(source, tmp_path / "runs" / target / source.name)
    return tmp_path / "runs"


@pytest.fixture
def rr(runs: Path) -> Path:
    return runs / "records" / record_of("rr").name


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a refused export; return its one line. It leaves no new files."""

    def export_and_refuse(run: object, folder: object = "new", *options: object) -> str:
        before = sorted(path.name for path in tmp_path.iterdir())
        assert main(["export", str(run), str(tmp_path / str(folder)), *map(str, options)]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("bench: error: ") and said.err.count("\n") == 1 and not said.out, said.err
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        return said.err

    return export_and_refuse


def edit_record(run: Path, change: Callable[[Record], object]) -> None:
    """Change a run's record, whose hash stays that of its spec."""
    record = Record.read(run / "record.json")
    change(record)
    (run / "record.json").write_text(record.to_json())


@pytest.mark.parametrize("form", ["directory", "file", "hash", "prefix", "loose file", "no out"])
def test_find_accepts_every_name_of_a_run(tmp_path: Path, runs: Path, rr: Path, form: str) -> None:
    loose = shutil.copy(rr / "record.json", tmp_path / "kept.json")
    forms = {"directory": rr, "file": rr / "record.json", "hash": rr.name, "prefix": rr.name[:9], "no out": rr}
    run = find(str(forms.get(form, loose)), tmp_path / "nowhere" if form == "no out" else runs)
    assert run.record.hash == rr.name and run.step.is_relative_to(runs)


def test_find_latest_is_the_record_written_last(runs: Path) -> None:
    files = sorted((runs / "records").glob("[!.]*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) > 1
    assert find("latest", runs).record.hash == files[-1].parent.name


def test_export_refuses_an_unknown_run(tmp_path: Path, runs: Path, refuse: Callable[..., str]) -> None:
    for given in ("0123456789abcdee", "records/no", "-", "*", "a" * 5000):
        assert given in refuse(given, "new", "--out", runs)
    assert "which has 0" in refuse("00", "new", "--out", tmp_path / "nowhere")


def test_export_refuses_a_prefix_of_two_runs(rr: Path, runs: Path, refuse: Callable[..., str]) -> None:
    twin = rr.with_name(rr.name[:8] + ("0" * 8 if rr.name[8:] != "0" * 8 else "1" * 8))
    shutil.copytree(rr, twin)
    said = refuse(rr.name[:8], "new", "--out", runs)
    assert "2 runs" in said and rr.name in said and twin.name in said


def test_export_refuses_a_path_that_is_not_a_run(tmp_path: Path, runs: Path, refuse: Callable[..., str]) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text("{}")
    (tmp_path / "text").write_text("hello")
    for path, value in ((runs, "record.json"), (tmp_path / "audit", "canaries"), (tmp_path / "text", "not a record")):
        assert value in refuse(path)


def test_export_refuses_a_failed_run(rr: Path, refuse: Callable[..., str]) -> None:
    record = Record.read(rr / "record.json")
    failed = Record(record.hash, "failed", "RuntimeError: out of luck", record.spec)
    (rr / "record.json").write_text(failed.to_json())
    assert "out of luck" in refuse(rr, "new", "--allow-seeded")


def test_export_refuses_a_damaged_or_missing_release(rr: Path, runs: Path, refuse: Callable[..., str]) -> None:
    step = find(str(rr), runs).step
    (step / "model.safetensors").write_bytes(b"other")
    said = refuse(rr, "new", "--allow-seeded")
    assert "model.safetensors" in said and "--fresh" in said
    shutil.rmtree(step)
    said = refuse(rr, "new", "--allow-seeded")
    assert str(step) in said and "--fresh" in said


def reseal(step: Path) -> None:
    """Make a step's manifest fit its files again."""
    import hashlib

    listed = read(step / "step.json")
    listed["files"] = {name: hashlib.sha256((step / name).read_bytes()).hexdigest() for name in listed["files"]}
    (step / "step.json").write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"noise": "os"}, "'os', and it was 'seeded'"),
        ({"noise": None}, "privacy.noise"),
        ({"noise_version": 99}, "--fresh"),
        ({"events": []}, "--fresh"),
    ],
    ids=str,
)
def test_export_refuses_an_edited_account(
    rr: Path, refuse: Callable[..., str], change: dict[str, object], value: str
) -> None:
    """The hash covers the spec, which states the noise too; the export uses the account's statement. None: missing."""

    def apply(record: Record) -> None:
        changed = record.privacy | change
        record.privacy = {name: given for name, given in changed.items() if name not in change or given is not None}

    edit_record(rr, apply)
    assert value in refuse(rr)


def test_export_refuses_an_edited_accuracy(rr: Path, refuse: Callable[..., str]) -> None:
    edit_record(rr, lambda record: record.metrics.update(accuracy=0.99))
    said = refuse(rr, "new", "--allow-seeded")
    assert "0.99" in said and "--fresh" in said


def test_export_refuses_another_network_name(rr: Path, runs: Path, refuse: Callable[..., str]) -> None:
    step = find(str(rr), runs).step
    for arch in ("no-such-net", "tanh-cnn"):
        (step / "result.json").write_text(canonical(read(step / "result.json") | {"arch": arch}))
        reseal(step)
        assert rr.name in refuse(rr, "new", "--allow-seeded")


def test_export_refuses_seeded_noise_unless_allowed(rr: Path, refuse: Callable[..., str]) -> None:
    said = refuse(rr)
    assert "--noise os" in said and "--allow-seeded" in said


def test_export_refuses_an_old_release_of_own_data(runs: Path, rr: Path, tmp_path: Path) -> None:
    run = find(str(rr), runs)
    run = replace(run, result=replace(run.result, input=None))
    run.record.spec["release"]["teacher"]["data"]["dataset"] = "npz-mine"
    with pytest.raises(BenchError, match="--fresh"):
        export(run, tmp_path / "new", allow_seeded=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_export_overwrites_nothing(tmp_path: Path, rr: Path, refuse: Callable[..., str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("full", "file", "link", "no/where"):
        assert name in refuse(rr, name, "--allow-seeded")
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "keep"


@pytest.mark.thorough
def test_export_fills_an_empty_directory(tmp_path: Path, rr: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["export", str(rr), str(tmp_path / "empty"), "--allow-seeded"]) == 0
    assert main(["verify", str(tmp_path / "empty")]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_export_refuses_an_unwritable_parent(tmp_path: Path, rr: Path, refuse: Callable[..., str]) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    assert "shut" in refuse(rr, "shut/new", "--allow-seeded")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_interrupted_export_leaves_no_files(
    tmp_path: Path, runs: Path, rr: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupt(*given: object) -> None:
        raise error

    monkeypatch.setattr(writing, "_images", interrupt)
    with pytest.raises(error):
        export(find(str(rr), runs), tmp_path / "new", allow_seeded=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize("name", ["new", "new**[1]"])
def test_export_removes_the_files_of_a_killed_one(name: str, tmp_path: Path, runs: Path, rr: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        (tmp_path / f".{name}.exporting-{pid}").mkdir()
    export(find(str(rr), runs), tmp_path / name, allow_seeded=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".{name}.exporting-{os.getppid()}", name, "runs"]


def test_export_does_not_replace_a_directory_that_filled(
    tmp_path: Path, runs: Path, rr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = writing._images

    def slow(*given: object) -> list[str]:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "mine").write_text("keep")
        return images(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_images", slow)
    with pytest.raises(BadOption):
        export(find(str(rr), runs), tmp_path / "new", allow_seeded=True)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_bundle_does_not_contain_the_hash_of_its_run(tmp_path: Path) -> None:
    """With the hash, seeds can be tried one by one, as everything else of a spec can be guessed."""
    run = found("rr")
    other = json.loads(canonical(run.record.spec))
    other["release"]["seed"] += 1
    assert digest(other) != run.record.hash == digest(run.record.spec)
    export(run, tmp_path / "new", allow_seeded=True)
    assert not [p for p in (tmp_path / "new").rglob("*") if p.is_file() and run.record.hash.encode() in p.read_bytes()]
