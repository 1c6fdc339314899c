"""Bad input as a user types it: one line on stderr, status 2, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import write_toy

from bench.cli import main

Bench = Callable[..., subprocess.CompletedProcess[str]]
RUN = ["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens"]

BOARD = str(Path(__file__).parents[2] / "recipes" / "board.toml")

CASES = {
    **{
        f"unit {unit} of {method}, {mode} mode": (
            [
                "run",
                "--method",
                method,
                "--method.mode",
                mode,
                "--account",
                "accounted",
                "--unit",
                unit,
                "--tier",
                "smoke",
            ],
            [f"--unit {unit}", "answers are accounted per example, query"],
        )
        for method, mode, unit in (
            ("dpsd", "data", "client"),
            ("dpsd", "label", "label"),
            ("fed-dpsd", "label", "label"),
        )
    },
    "unit label of dpdfd": (
        ["run", "--method", "dpdfd", "--account", "accounted", "--unit", "label", "--tier", "smoke"],
        ["--unit label", "answers are accounted per example, query"],
    ),
    "unknown method": (["run", "--method", "dpds"], ["no method called 'dpds'", "Did you mean 'dpsd'", "no-defence"]),
    "unknown attack": ([*RUN, "--attack", "gm1"], ["no attack called 'gm1'", "gmi"]),
    "unknown data set": ([*RUN, "--dataset", "digitz"], ["digitz", "Did you mean 'digits'", "mnist"]),
    "size of thousands of digits": ([*RUN, "--dataset", "digits@" + "9" * 5000], ["expected 8 to 256 pixels"]),
    "bundle of a long name": (["verify", "x" * 300], ["longer than the 255 bytes of a file's name"]),
    "unknown option": ([*RUN, "--epsilno", "3"], ["--epsilno", "--epsilon"]),
    "unknown option of the method": (
        ["run", "--method", "dpsd", "--method.question", "3"],
        ["--method.question", "--method.questions"],
    ),
    "unknown command": (["runn"], ["runn", "run"]),
    "option of an attack that is not named": (
        [*RUN, "--attack.lr", "3"],
        ["--attack.lr is an option", "--attack NAME"],
    ),
    "option of a method that is not named": (
        ["run", "--method.mode", "data"],
        ["--method.mode is an option of the method, and none is named; give --method NAME"],
    ),
    "option of an attack, of a command that has none": (
        ["audit", "release", "--method", "dpsd", "--attack.lr", "3"],
        ["--attack.lr: `bench audit release` has no attack"],
    ),
    "an option like none": ([*RUN, "--confidence", "x"], ["no option '--confidence'. See"]),
    "a negative delta, with an exponent": ([*RUN, "--delta", "-1e-5"], ["delta", "-1e-05"]),
    "an epsilon below all": ([*RUN, "--epsilon", "-inf"], ["epsilon", "> 0"]),
    "no size at all": ([*RUN, "--size", "-1"], ["--size -1: expected 8 to 256 pixels"]),
    "an account of no budget": (
        ["run", "--method", "dp-sgd", "--account", "accounted", "--epsilon", "none"],
        ["--account accounted --epsilon none", "no budget to meet"],
    ),
    "a proof of no mechanism": (
        ["run", "--method", "no-defence", "--account", "accounted", "--epsilon", "1", "--tier", "smoke"],
        ["--account accounted --epsilon 1", "weights are released", "--account claimed or --epsilon inf"],
    ),
    **{
        f"images that {who} cannot take": (
            ["run", "--tier", "smoke", "--size", size, *typed],
            words,
        )
        for who, size, typed, words in (
            ("the student", "8", ["--method", "dpsd"], ["the network datalens", "at least 12x12, not 8x8"]),
            ("the generator", "14", ["--method", "dpsd", "--variant", "printed"], ["14x14", "multiples of 4"]),
        )
    },
    **{
        f"a budget of {epsilon} for {method}": (
            ["run", "--method", method, "--tier", "smoke", "--epsilon", epsilon],
            ["so little that floating point cannot protect it", "expected at least", "--epsilon inf"],
        )
        for method, epsilon in (("dpsd", "1e9"), ("dpdfd", "1e9"), ("alibi", "1e9"))
    },
    "less noise than can be added": (
        ["run", "--method", "dpsd", "--tier", "smoke", "--epsilon", "none", "--method.sigma", "1e-7"],
        ["the noise sigma is 1e-07", "expected at least 6.1e-05"],
    ),
    "an output directory without a name": ([*RUN, "--out", ""], ["--out: an empty name"]),
    "a data root without a name": ([*RUN, "--data-root", " "], ["--data-root: an empty name"]),
    "devices of a sweep": (["sweep", BOARD, "--devices", "tpu", "--dry-run"], ["--device tpu", "cuda:N"]),
    "no method": (["run"], ["--method is missing"]),
    "wrong type": (["run", "--method", "dpsd", "--method.questions", "many"], ["many", "whole number"]),
    "a size beyond all": (["run", "--method", "dpsd", "--method.rounds", "1" + "0" * 20], ["at most 2147483648"]),
    "noise beyond all": (
        ["run", "--method", "pate-gnmax", "--epsilon", "1", "--method.threshold_noise", "1e300"],
        ["threshold", "overflows"],
    ),
    "noise of next to nothing": (
        ["run", "--method", "pate-gnmax", "--epsilon", "1", "--method.threshold_noise", "1e-300"],
        ["threshold", "overflows"],
    ),
    "noise that the budget decides": (
        ["run", "--method", "dp-sgd", "--method.multiplier", "2"],
        ["--method.multiplier 2", "--epsilon 10 decides it", "--epsilon none", "--solve steps"],
    ),
    "noise without end of budget": (
        ["run", "--method", "dpsd", "--epsilon", "inf", "--method.sigma", "2"],
        ["--method.sigma 2", "--epsilon inf decides it"],
    ),
    "noise that a sound budget decides": (
        ["run", "--method", "dp-sinkhorn", "--method.sigma", "2", "--account", "accounted"],
        ["--method.sigma 2", "--epsilon 10 decides it"],
    ),
    "training of a teacher that is given": (
        [*RUN, "--teacher-weights", __file__, "--teacher.epochs", "3"],
        ["--teacher.epochs", "--teacher-weights"],
    ),
    "an evaluator's option that its recipe lacks": (
        [*RUN, "--attack", "gmi", "--evaluator.turn", "3"],
        ["no option '--evaluator.turn'. See"],
    ),
    "an evaluator that cannot be": (
        [*RUN, "--attack", "gmi", "--evaluator.epochs", "0"],
        ["--evaluator: epochs is 0", "at least 1"],
    ),
    "an evaluator of an audit": (
        ["audit", "release", "--method", "dpsd", "--evaluator.epochs", "3"],
        ["--evaluator.epochs", "`bench audit release` has no evaluator"],
    ),
    "a budget to solve for that there is not": (
        ["run", "--method", "dp-sgd", "--epsilon", "none", "--solve", "steps"],
        ["--solve steps --epsilon none", "no budget to solve for"],
    ),
    "a plug-in's option, nearly": (
        ["run", "--method", "dpsd", "--method.sigm", "3"],
        ["'--method.sigm'. Did you mean '--method.sigma'"],
    ),
    "a plug-in's option like none": ([*RUN, "--method.foo", "3"], ["no option '--method.foo'. See"]),
    "wrong choice": (["run", "--method", "dpsd", "--method.mode", "dada"], ["dada", "'data'"]),
    "epsilon of zero": ([*RUN, "--epsilon", "0"], ["epsilon", "> 0"]),
    "negative epsilon": ([*RUN, "--epsilon", "-3"], ["epsilon", "> 0"]),
    "epsilon not a number": ([*RUN, "--epsilon", "nan"], ["epsilon", "nan"]),
    "epsilon a word": ([*RUN, "--epsilon", "ten"], ["--epsilon ten", "number"]),
    "delta of one": ([*RUN, "--delta", "1"], ["delta", "1"]),
    "delta of zero": ([*RUN, "--delta", "0"], ["delta", "0"]),
    "seeds": ([*RUN, "--seeds", "0,x"], ["--seeds 0,x", "0,1,2"]),
    "a seed beyond all": ([*RUN, "--seeds", "18446744073709551616"], ["18446744073709551616", "9223372036854775807"]),
    "a teacher that nobody asks": (
        ["run", "--method", "dp-merf", "--tier", "smoke", "--teacher-weights", __file__],
        ["--teacher-weights", "dp-merf queries no teacher"],
    ),
    "normalisation of other images": (
        [*RUN, "--teacher-weights", __file__, "--teacher-normalise", "0.5/0.5,0.2/0.2"],
        ["2 means for images of 1 channel;", "give one"],
    ),
    "check and publish": (["leaderboard", "--check", "--publish"], ["--check", "--publish", "one of them"]),
    "check and one board": (["leaderboard", "--check", "--dataset", "usps"], ["--dataset usps", "look at all boards"]),
    "boards of nothing": (["leaderboard", "--check", "--boards", "."], ["--boards .", "neither boards nor records"]),
    "tier": (["run", "--method", "no-defence", "--tier", "fast"], ["fast", "quick"]),
    "unit the ledger lacks": (["run", "--method", "dpsd", "--unit", "label"], ["--unit label", "example"]),
    "unit no baseline speaks of": ([*RUN, "--unit", "client"], ["--unit client", "example"]),
    "split": ([*RUN, "--split", "odd"], ["odd", "iid"]),
    "device": ([*RUN, "--device", "tpu"], ["--device tpu", "cpu"]),
    "a device that is not there": ([*RUN, "--device", "cuda:93"], ["--device cuda:93", "CUDA"]),
    "unknown teacher": ([*RUN, "--teacher", "resnet1888"], ["resnet1888"]),
    "unknown student": ([*RUN, "--student", "datalenz"], ["datalenz", "datalens"]),
    "missing data": ([*RUN, "--dataset", "mnist", "--data-root", "nowhere"], ["mnist", "nowhere", "--download"]),
    "missing npz": ([*RUN, "--dataset", "npz:no.npz"], ["no.npz"]),
    "missing folder": ([*RUN, "--dataset", "imagefolder:no"], ["no"]),
    "missing weights": ([*RUN, "--teacher-weights", "no.safetensors"], ["no.safetensors", "no such file"]),
    "unknown name to show": (["show", "dpds"], ["dpds", "dpsd"]),
    "unknown kind to list": (["list", "method"], ["method", "methods"]),
    "a picture that is none": (["report", "--picture", "x.txt", "--dataset", "digits"], ["x.txt", ".png"]),
    "a report over a file, told before boards are read": (
        ["report", "--out", __file__, "--boards", "nowhere"],
        ["--out", "is a file"],
    ),
    "no time for a sweep": (["sweep", BOARD, "--within", "0", "--dry-run"], ["--within 0", "minutes above 0"]),
    "no end of a sweep": (["sweep", BOARD, "--within", "nan", "--dry-run"], ["--within nan", "minutes above 0"]),
    "Ray's options without Ray": (["sweep", BOARD, "--gpus", "3", "--dry-run"], ["--gpus", "--backend ray"]),
    "a file to write below": (["sweep", BOARD, "--out", __file__, "--dry-run"], ["--out", "not a directory"]),
    "a folder below a file": (["sweep", BOARD, "--out", f"{__file__}/runs", "--dry-run"], ["--out", "not a directory"]),
    "a method of a sweep that there is not": (
        ["sweep", BOARD, "--set", "method=dpds", "--dry-run"],
        ["no method for --set called 'dpds'", "Did you mean 'dpsd'"],
    ),
    "no plays": (["audit", "mechanism", "--method", "dpsd", "--plays", "0"], ["--plays 0", "from 1"]),
    "a negative seed of an audit": (
        ["audit", "mechanism", "--method", "dpsd", "--seed", "-1"],
        ["--seed -1", "from 0"],
    ),
    "no such data root": (["doctor", "--data-root", "nowhere"], ["--data-root nowhere", "no such directory"]),
    "no board": (["leaderboard"], ["no board", "bench run"]),
    "no committed boards": (["leaderboard", "--check"], ["leaderboards", "no such directory"]),
    "nothing to publish": (["leaderboard", "--publish", "nowhere"], ["nowhere", "runs/records"]),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, words = CASES[case]
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("bench: error: "), lines
    for word in words:
        assert word in lines[0]
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("record.json"))


def test_debug_shows_the_traceback(bench: Bench) -> None:
    done = bench("run", "--method", "dpds", "--debug")
    assert done.returncode == 2 and "Traceback" in done.stderr and "no method called 'dpds'" in done.stderr


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04\x95\x0a"])
def test_corrupt_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t.safetensors", "t.pt"):
        (tmp_path / name).write_bytes(content)
        status, said = main([*RUN, "--teacher-weights", name]), capsys.readouterr().err
        errors = [line for line in said.splitlines() if line.startswith("bench: error")]
        assert status == 2 and len(errors) == 1 and said.endswith(f"{errors[0]}\n"), said
        assert name in errors[0]
        assert not list(tmp_path.rglob("record.json")) and not list(tmp_path.rglob("step.json"))


def test_an_unwritable_output_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--out", "file/runs"]) == 2
    assert "--out file/runs: cannot write there" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["steps", "records", "leaderboards"])
def test_a_file_where_the_output_directory_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--out", "."]) == 2
    assert f"--out .: '{name}'" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", 'method,"dpsd', "a,b\n1,2\n"])
def test_a_damaged_board_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "leaderboards" / "releases").mkdir(parents=True)
    (tmp_path / "runs" / "leaderboards" / "releases" / "digits.csv").write_text(content)
    assert main(["leaderboard"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "digits.csv: not a" in said[0]


def test_images_that_are_not_finite_fail_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would be scored as black images, and a target whose search diverges would look protected."""
    write_toy(tmp_path, 160)
    given = [*RUN, "--dataset", f"npz:{tmp_path}/toy.npz", "--attack", "gmi", "--attack.lr", "1e300"]
    assert main([*given, "--out", str(tmp_path / "runs")]) == 1
    assert "gmi made images that are not finite" in capsys.readouterr().err


def test_npz_with_mismatched_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.zeros((4, 16, 16), np.uint8)
    np.savez(
        tmp_path / "bad.npz",
        train_images=images,
        train_labels=np.zeros(3, int),
        test_images=images,
        test_labels=np.zeros(4, int),
    )
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--dataset", "npz:bad.npz"]) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1, said


def test_a_folder_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "set" / "train" / "a").mkdir(parents=True)
    (tmp_path / "set" / "train" / "a" / "x.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--dataset", "imagefolder:set"]) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1, said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, "no room")

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("bench.pipeline.stages.privacy_account", full)
        status, said = main(RUN), capsys.readouterr().err.strip().splitlines()
    assert status == 1 and "the disk is full" in said[-1] and "Traceback" not in "".join(said)
    assert not list(tmp_path.rglob("record.json")) and not list(tmp_path.rglob(".making-*"))
    (kept,) = tmp_path.glob("runs/steps/teacher/*/step.json")
    written = kept.stat().st_mtime_ns
    assert main(RUN) == 0 and kept.stat().st_mtime_ns == written


def test_another_error_of_the_system_is_not_called_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("bench.cli._execute", broken)
    with pytest.raises(OSError, match="input/output"):
        main(["list"])


def test_boards_with_damaged_files_are_one_line(tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "0123456789abcdef.json").write_text('{"hash": "0123', encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder" / "records" / "0123456789abcdef.json").mkdir(parents=True)
    for where in (tmp_path, tmp_path / "file", tmp_path / "folder"):
        for what in ("--publish", "--check"):
            ended = bench("leaderboard", "--boards", str(where), what)
            assert ended.returncode == 2 and ended.stderr.startswith("bench: error: ")
            assert ended.stderr.count("\n") == 1 and str(where) in ended.stderr


@pytest.mark.thorough
def test_a_board_below_a_name_with_brackets_is_shown(tmp_path: Path, bench: Bench) -> None:
    folder = tmp_path / "M[" / "x]" / "leaderboards"
    for table in ("releases", "attacks", "runs"):
        shutil.copytree(Path(__file__).parents[2] / "leaderboards" / table, folder / table)
    ended = bench("leaderboard", "--out", str(folder.parent))
    assert ended.returncode == 0 and str(folder) in ended.stdout and not ended.stderr


def test_a_full_output_names_no_results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(arguments: list[str]) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("bench.cli._execute", full)
    assert main(["list"]) == 1
    assert capsys.readouterr().err == "bench: failed: what is written to is full; make room\n"
