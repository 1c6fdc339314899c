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
from bench.errors import BenchError
from bench.storage.records import Record
from bench.storage.specs import canonical, digest

Prepare = Callable[[Path], list[str]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two finished runs in a separate output directory."""
    for kind in ("rr", "no-defence"):
        source = record_of(kind)
        shutil.copytree(source, tmp_path / "runs" / "records" / source.name)
        step = found(kind).step
        shutil.copytree(step, tmp_path / "runs" / "steps" / "release" / step.name)
    return tmp_path / "runs"


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """The one line of a refused export, after which nothing more is in `folder`."""
    before = sorted(path.name for path in folder.iterdir())
    assert main(["export", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: error: ") and said.err.count("\n") == 1 and not said.out, said.err
    assert sorted(path.name for path in folder.iterdir()) == before
    return said.err


@pytest.mark.parametrize("form", ["directory", "file", "hash", "prefix", "loose file"])
def test_a_run_has_many_names(tmp_path: Path, runs: Path, form: str) -> None:
    record = runs / "records" / record_of("rr").name / "record.json"
    loose = shutil.copy(record, tmp_path / "kept.json")
    forms = {"directory": record.parent, "file": record, "hash": record.parent.name, "prefix": record.parent.name[:9]}
    run = find(str(forms.get(form, loose)), runs)
    assert run.record.hash == record.parent.name and run.step.is_relative_to(runs)


def test_find_latest_takes_the_record_written_last(runs: Path) -> None:
    files = sorted((runs / "records").glob("[!.]*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) > 1
    assert find("latest", runs).record.hash == files[-1].parent.name


def test_a_run_by_its_path_needs_no_out(tmp_path: Path, runs: Path) -> None:
    assert find(str(runs / "records" / record_of("rr").name), tmp_path / "nowhere").step.is_relative_to(runs)


def test_no_such_run(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("0123456789abcdee", "records/no", "-", "*", "a" * 5000):
        assert "no such run" in refused(capsys, tmp_path, given, tmp_path / "new", "--out", runs)
    assert "which has 0" in refused(capsys, tmp_path, "00", tmp_path / "new", "--out", tmp_path / "nowhere")


def test_a_prefix_of_two_runs(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = record_of("rr").name
    twin = runs / "records" / (name[:8] + ("0" * 8 if name[8:] != "0" * 8 else "1" * 8))
    shutil.copytree(runs / "records" / name, twin)
    said = refused(capsys, tmp_path, name[:8], tmp_path / "new", "--out", runs)
    assert "2 runs" in said and name in said and twin.name in said


def test_directories_that_are_no_runs(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no record.json" in refused(capsys, tmp_path, runs, tmp_path / "new")
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text("{}")
    assert "canaries" in refused(capsys, tmp_path, tmp_path / "audit", tmp_path / "new")
    (tmp_path / "text").write_text("hello")
    assert "not a record" in refused(capsys, tmp_path, tmp_path / "text", tmp_path / "new")


def test_a_failed_run(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "records" / record_of("rr").name / "record.json"
    record = Record.read(path)
    path.write_text(Record(record.hash, "failed", "RuntimeError: out of luck", record.spec).to_json())
    assert "out of luck" in refused(capsys, tmp_path, path, tmp_path / "new", "--allow-seeded")


def test_a_release_that_is_not_in_the_store_or_damaged(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "records" / record_of("rr").name
    step = find(str(run), runs).step
    (step / "model.safetensors").write_bytes(b"other")
    said = refused(capsys, tmp_path, run, tmp_path / "new", "--allow-seeded")
    assert "damaged (model.safetensors)" in said and "--fresh" in said
    shutil.rmtree(step)
    said = refused(capsys, tmp_path, run, tmp_path / "new", "--allow-seeded")
    assert "not in the store" in said and "--fresh" in said


def reseal(step: Path) -> None:
    """Make a step's manifest fit its files again."""
    import hashlib

    listed = read(step / "step.json")
    listed["files"] = {name: hashlib.sha256((step / name).read_bytes()).hexdigest() for name in listed["files"]}
    (step / "step.json").write_text(json.dumps(listed))


def test_a_record_of_another_ledger(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "records" / record_of("rr").name
    record = Record.read(run / "record.json")
    record.privacy["events"][0]["count"] = 2
    (run / "record.json").write_text(record.to_json())
    assert "different accounts" in refused(capsys, tmp_path, run, tmp_path / "new", "--allow-seeded")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": "os"}, "'os', and it was 'seeded'"),
        ({"noise": None}, "privacy.noise: Field required"),
        ({"noise_version": 99}, "different accounts"),
    ],
)
def test_a_record_of_other_noise(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], words: str
) -> None:
    """The hash covers the spec, which states the noise too; the export uses the account's statement. None: missing."""
    run = runs / "records" / record_of("rr").name
    record = Record.read(run / "record.json")
    changed = record.privacy | change
    record.privacy = {name: value for name, value in changed.items() if name not in change or value is not None}
    (run / "record.json").write_text(record.to_json())
    assert words in refused(capsys, tmp_path, run, tmp_path / "new")


def test_a_record_of_another_accuracy(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "records" / record_of("rr").name
    record = Record.read(run / "record.json")
    record.metrics["accuracy"] = 0.99
    (run / "record.json").write_text(record.to_json())
    said = refused(capsys, tmp_path, run, tmp_path / "new", "--allow-seeded")
    assert "its record has an accuracy of 0.99, its release" in said and "--fresh" in said


def test_a_release_that_is_nobodys_network(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "records" / record_of("rr").name
    step = find(str(run), runs).step
    for arch, words in (("no-such-net", "no network called"), ("tanh-cnn", "do not fit")):
        result = read(step / "result.json") | {"arch": arch}
        (step / "result.json").write_text(canonical(result))
        reseal(step)
        said = refused(capsys, tmp_path, run, tmp_path / "new", "--allow-seeded")
        assert words in said


def test_seeded_noise_wants_a_word(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, tmp_path, runs / "records" / record_of("rr").name, tmp_path / "new")
    assert "--noise os" in said and "--allow-seeded" in said


def test_an_old_release_of_ones_own_data_is_made_again(runs: Path, tmp_path: Path) -> None:
    run = find(str(runs / "records" / record_of("rr").name), runs)
    run = replace(run, result=replace(run.result, input=None))
    run.record.spec["release"]["teacher"]["data"]["dataset"] = "npz-mine"
    with pytest.raises(BenchError, match="--fresh"):
        export(run, tmp_path / "new", allow_seeded=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_nothing_is_overwritten(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "records" / record_of("rr").name
    full, file, link = tmp_path / "full", tmp_path / "file", tmp_path / "link"
    full.mkdir()
    (full / "mine").write_text("keep")
    file.write_text("keep")
    link.symlink_to("nowhere")
    assert "not empty" in refused(capsys, tmp_path, run, full, "--allow-seeded")
    assert "a file of this name" in refused(capsys, tmp_path, run, file, "--allow-seeded")
    assert "a file of this name" in refused(capsys, tmp_path, run, link, "--allow-seeded")
    assert "make it first" in refused(capsys, tmp_path, run, tmp_path / "no" / "where", "--allow-seeded")
    assert (full / "mine").read_text() == file.read_text() == "keep"


@pytest.mark.thorough
def test_an_empty_directory_is_filled(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = runs / "records" / record_of("rr").name
    assert main(["export", str(run), str(tmp_path / "empty"), "--allow-seeded"]) == 0
    assert main(["verify", str(tmp_path / "empty")]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    run = runs / "records" / record_of("rr").name
    assert "cannot write there" in refused(capsys, tmp_path, run, tmp_path / "shut" / "new", "--allow-seeded")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupt(*given: object) -> None:
        raise error

    monkeypatch.setattr(writing, "_images", interrupt)
    run = find(str(runs / "records" / record_of("rr").name), runs)
    with pytest.raises(error):
        export(run, tmp_path / "new", allow_seeded=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize("name", ["new", "new**[1]"])
def test_what_a_killed_export_left_is_cleared_by_the_next(name: str, tmp_path: Path, runs: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        (tmp_path / f".{name}.exporting-{pid}").mkdir()
    export(find(str(runs / "records" / record_of("rr").name), runs), tmp_path / name, allow_seeded=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".{name}.exporting-{os.getppid()}", name, "runs"]


def test_a_directory_that_fills_meanwhile_is_not_replaced(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = writing._images

    def slow(*given: object) -> list[str]:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "mine").write_text("keep")
        return images(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_images", slow)
    run = find(str(runs / "records" / record_of("rr").name), runs)
    with pytest.raises(BenchError, match="cannot be put there"):
        export(run, tmp_path / "new", allow_seeded=True)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_the_hash_of_a_run_tells_its_seed_so_that_it_stays_inside(tmp_path: Path) -> None:
    """Whoever has the hash can try seeds one by one, as everything else of a spec can be guessed."""
    run = found("rr")
    assert digest(run.record.spec) == run.record.hash
    other = json.loads(canonical(run.record.spec))
    other["release"]["seed"] += 1
    assert digest(other) != run.record.hash
    export(run, tmp_path / "new", allow_seeded=True)
    assert not [p for p in (tmp_path / "new").rglob("*") if p.is_file() and run.record.hash.encode() in p.read_bytes()]
