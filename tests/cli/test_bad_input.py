"""Bad input as a user types it: one line on stderr, status 2, no traceback, nothing half-written."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Refused, Type, write_toy

RUN = "run --method no-defence --tier smoke --teacher datalens"
BOARD = ROOT / "recipes" / "board.toml"
SMOKE = "run --tier smoke --method"


CASES: list[tuple[str, list[str]]] = [
    # Names
    ("runn", ["runn", "run"]),
    ("run", ["--method"]),
    ("run --method dpds", ["dpds", "dpsd", "no-defence"]),
    ("RUN --attack gm1", ["gm1", "gmi"]),
    ("RUN --dataset digitz", ["digitz", "digits", "mnist"]),
    ("RUN --teacher resnet1888", ["resnet1888"]),
    ("RUN --student datalenz", ["datalenz", "datalens"]),
    ("RUN --split odd", ["odd", "iid"]),
    ("RUN --device tpu", ["--device tpu", "cpu"]),
    ("RUN --device cuda:93", ["--device cuda:93", "CUDA"]),
    ("run --method no-defence --tier fast", ["fast", "quick"]),
    ("show dpds", ["dpds", "dpsd"]),
    ("list method", ["method", "methods"]),
    # Options that do not exist
    ("RUN --epsilno 3", ["--epsilno", "--epsilon"]),
    ("RUN --confidence x", ["'--confidence'. See"]),
    ("run --method dpsd --method.querie 3", ["--method.querie", "'--method.queries'"]),
    ("run --method dpsd --method.sigm 3", ["'--method.sigm'", "'--method.sigma'"]),
    ("RUN --method.foo 3", ["'--method.foo'. See"]),
    ("RUN --attack.lr 3", ["--attack.lr", "--attack NAME"]),
    ("run --method.mode data", ["--method.mode", "--method NAME"]),
    ("audit release --method dpsd --attack.lr 3", ["--attack.lr", "`bench audit release`"]),
    ("audit release --method dpsd --evaluator.epochs 3", ["--evaluator.epochs", "`bench audit release`"]),
    ("RUN --attack gmi --evaluator.turn 3", ["'--evaluator.turn'. See"]),
    # Values out of range or of another type
    ("RUN --dataset digits@" + "9" * 5000, ["8 to 256"]),
    ("RUN --size -1", ["--size -1", "8 to 256"]),
    ("verify " + "x" * 300, ["255"]),
    ("RUN --out ''", ["--out"]),
    ("RUN --data-root ' '", ["--data-root"]),
    ("RUN --delta -1e-5", ["delta", "-1e-05"]),
    ("RUN --delta 1", ["delta", "1"]),
    ("RUN --delta 0", ["delta", "0"]),
    ("RUN --epsilon -inf", ["epsilon", "> 0"]),
    ("RUN --epsilon 0", ["epsilon", "> 0"]),
    ("RUN --epsilon -3", ["epsilon", "> 0"]),
    ("RUN --epsilon nan", ["epsilon", "nan"]),
    ("RUN --epsilon ten", ["--epsilon ten"]),
    ("RUN --seeds 0,x", ["--seeds 0,x", "0,1,2"]),
    ("RUN --seeds 18446744073709551616", ["18446744073709551616", "9223372036854775807"]),
    ("RUN --attack gmi --evaluator.epochs 0", ["--evaluator", "epochs is 0", "1"]),
    ("run --method dpsd --method.queries many", ["many"]),
    ("run --method dpsd --method.rounds 1" + "0" * 20, ["2147483648"]),
    ("run --method dpsd --method.mode dada", ["dada", "'data'"]),
    ("run --method pate-gnmax --epsilon 1 --method.threshold_noise 1e300", ["threshold"]),
    ("run --method pate-gnmax --epsilon 1 --method.threshold_noise 1e-300", ["threshold"]),
    ("audit mechanism --method dpsd --plays 0", ["--plays 0", "1"]),
    ("audit mechanism --method dpsd --seed -1", ["--seed -1", "0"]),
    ("report --picture x.txt --dataset digits", ["x.txt", ".png"]),
    # Budgets and units
    ("run --method dp-sgd --account accounted --epsilon none", ["--account accounted", "--epsilon is none"]),
    ("run --method dp-sgd --epsilon none --solve steps", ["--solve steps", "--epsilon is none"]),
    (f"{SMOKE} no-defence --account accounted --epsilon 1", ["--account claimed", "--epsilon inf"]),
    *((f"{SMOKE} {name} --epsilon 1e9", ["--epsilon inf"]) for name in ("dpsd", "dpdfd", "alibi")),
    (f"{SMOKE} dpsd --epsilon none --method.sigma 1e-7", ["1e-07", "6.1e-05"]),
    ("run --method dp-sgd --method.multiplier 2", ["--method.multiplier 2", "--epsilon 10", "--solve steps"]),
    ("run --method dpsd --epsilon inf --method.sigma 2", ["--method.sigma 2", "--epsilon inf"]),
    ("run --method dp-sinkhorn --method.sigma 2 --account accounted", ["--method.sigma 2", "--epsilon 10"]),
    ("run --method dpsd --unit label", ["--unit label", "example"]),
    ("RUN --unit client", ["--unit client", "example"]),
    *(
        (f"{SMOKE} {method} --account accounted --unit {unit}", [f"--unit {unit}", "example, query"])
        for method, unit in (
            ("dpsd --method.mode data", "client"),
            ("dpsd --method.mode label", "label"),
            ("fed-dpsd --method.mode label", "label"),
            ("dpdfd", "label"),
        )
    ),
    # Networks that do not fit
    (f"{SMOKE} dpsd --size 8", ["datalens", "12x12", "8x8"]),
    (f"{SMOKE} dpsd --variant printed --size 14", ["14x14", "4"]),
    ("RUN --teacher-weights FILE --teacher.epochs 3", ["--teacher.epochs", "--teacher-weights"]),
    (f"{SMOKE} dp-merf --teacher-weights FILE", ["--teacher-weights", "dp-merf"]),
    ("RUN --teacher-weights FILE --teacher-normalise 0.5/0.5,0.2/0.2", ["2 means", "1 channel"]),
    # Files and folders
    ("RUN --dataset mnist --data-root nowhere", ["mnist", "nowhere", "--download"]),
    ("RUN --dataset npz:no.npz", ["no.npz"]),
    ("RUN --dataset imagefolder:no", ["no"]),
    ("RUN --teacher-weights no.safetensors", ["no.safetensors"]),
    ("report --out FILE --boards nowhere", ["--out"]),
    # Boards
    ("leaderboard", ["runs/leaderboards", "bench run"]),
    ("leaderboard --check", ["leaderboards"]),
    ("leaderboard --check --publish", ["--check", "--publish"]),
    ("leaderboard --check --dataset usps", ["--dataset usps"]),
    ("leaderboard --check --boards .", ["--boards ."]),
    ("leaderboard --publish nowhere", ["nowhere", "runs/records"]),
    # Sweeps
    ("SWEEP --devices tpu", ["--device tpu", "cuda:N"]),
    ("SWEEP --jobs 0", ["--jobs 0", "1"]),
    ("SWEEP --within 0", ["--within 0"]),
    ("SWEEP --within nan", ["--within nan"]),
    ("SWEEP --gpus 3", ["--gpus", "--backend slurm"]),
    ("SWEEP --backend slurm --slurm gpu", ["--slurm gpu"]),
    ("SWEEP --backend slurm --slurm array=3", ["--slurm array=3"]),
    ("SWEEP --backend ray --address auto --jobs 3", ["--jobs 3"]),
    ("SWEEP --out FILE", ["--out"]),
    ("SWEEP --out FILE/runs", ["--out"]),
    ("SWEEP --set method=dpds", ["dpds", "dpsd"]),
    ("SWEEP --set seeds=1", ["--set seeds=1", "--seeds"]),
]


@pytest.mark.parametrize(("line", "values"), CASES, ids=[line[:60] for line, _ in CASES])
def test_bad_input_is_one_line_and_status_2(here: Path, refused: Refused, line: str, values: list[str]) -> None:
    error = refused(line.replace("RUN", RUN).replace("SWEEP", f"sweep {BOARD} --dry-run").replace("FILE", __file__))
    assert [value for value in values if value not in error] == []
    assert not list(here.rglob("*.safetensors")) and not list(here.rglob("record.json"))


def test_debug_prints_the_traceback(typed: Type) -> None:
    status, _, error = typed("run --method dpds --debug")
    assert status == 2 and "Traceback" in error and "'dpds'" in error.splitlines()[-1]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04\x95\x0a"])
@pytest.mark.parametrize("name", ["t.safetensors", "t.pt"])
def test_corrupt_weights_are_refused(here: Path, typed: Type, name: str, content: bytes) -> None:
    (here / name).write_bytes(content)
    status, _, error = typed(RUN, "--teacher-weights", name)
    assert status == 2 and error.splitlines()[-1].startswith("bench: error: ") and name in error.splitlines()[-1]
    assert not list(here.rglob("record.json")) and not list(here.rglob("step.json"))


@pytest.mark.parametrize("file", ["file", "steps", "records", "leaderboards"])
def test_output_folder_that_cannot_be_written_is_refused(here: Path, refused: Refused, file: str) -> None:
    (here / file).write_text("")
    out = "file/runs" if file == "file" else "."
    error = refused(RUN, "--out", out)
    assert f"--out {out}: " in error and file in error


@pytest.mark.parametrize("content", ["", 'method,"dpsd', "a,b\n1,2\n"])
def test_damaged_board_is_refused(here: Path, refused: Refused, content: str) -> None:
    (here / "runs" / "leaderboards" / "releases").mkdir(parents=True)
    (here / "runs" / "leaderboards" / "releases" / "digits.csv").write_text(content)
    assert "digits.csv" in refused("leaderboard")


def test_reconstructions_that_are_not_finite_fail_the_run(here: Path, typed: Type) -> None:
    """They would be scored as black images, and a target whose search diverges would look protected."""
    write_toy(here, 160)
    status, _, error = typed(RUN, "--dataset npz:toy.npz --attack gmi --attack.lr 1e300")
    assert status == 1 and "bench: failed: " in error and "gmi" in error


def test_unusable_own_data_is_refused(here: Path, refused: Refused) -> None:
    images, labels = np.zeros((4, 16, 16), np.uint8), np.zeros(4, int)
    np.savez("bad.npz", train_images=images, train_labels=labels[:3], test_images=images, test_labels=labels)
    (here / "set" / "train" / "a").mkdir(parents=True)
    (here / "set" / "train" / "a" / "x.txt").write_text("hello")
    for dataset in ("npz:bad.npz", "imagefolder:set"):
        refused(RUN, "--dataset", dataset)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_fails_the_run_and_keeps_finished_steps(
    here: Path, monkeypatch: pytest.MonkeyPatch, typed: Type, number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, "no room")

    with monkeypatch.context() as patched:
        patched.setattr("bench.pipeline.stages.privacy_account", full)
        status, _, error = typed(RUN)
    assert status == 1 and "bench: failed: the disk is full" in error and "--out" in error and "Traceback" not in error
    assert not list(here.rglob("record.json")) and not list(here.rglob(".making-*"))
    (kept,) = here.glob("runs/steps/teacher/*/step.json")
    written = kept.stat().st_mtime_ns
    assert typed(RUN).status == 0 and kept.stat().st_mtime_ns == written


def test_system_errors_end_the_command(monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    """A full disk is one line; without cached steps it does not mention them. Other errors are raised."""

    def broken(arguments: list[str]) -> int:
        raise OSError(errno.ENOSPC if arguments == ["list"] else errno.EIO, "")

    monkeypatch.setattr("bench.cli.execute", broken)
    status, _, error = typed("list")
    assert status == 1 and error.startswith("bench: failed: the disk is full") and "--out" not in error
    with pytest.raises(OSError):
        typed("show")


@pytest.mark.parametrize("action", ["--publish", "--check"])
def test_damaged_folder_of_boards_is_refused(tmp_path: Path, refused: Refused, action: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "0123456789abcdef.json").write_text('{"hash": "0123', encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder" / "records" / "0123456789abcdef.json").mkdir(parents=True)
    for where in (tmp_path, tmp_path / "file", tmp_path / "folder"):
        assert str(where) in refused("leaderboard --boards", where, action)


@pytest.mark.thorough
def test_folder_with_brackets_in_its_name_is_shown(tmp_path: Path, typed: Type) -> None:
    folder = tmp_path / "M[" / "x]" / "leaderboards"
    for table in ("releases", "attacks", "runs"):
        shutil.copytree(ROOT / "leaderboards" / table, folder / table)
    status, out, err = typed("leaderboard --out", folder.parent)
    assert (status, err) == (0, "") and str(folder) in out
