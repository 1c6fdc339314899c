"""The command as a user types it, on the embedded data set at tier smoke."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BENCH, ROOT

from bench.boards import read_boards, results
from bench.boards.results import Result
from bench.cli import main

Bench = Callable[..., subprocess.CompletedProcess[str]]
Finished = tuple[Path, subprocess.CompletedProcess[str]]
"""The working directory of a run, and its output."""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
SMOKE = ["run", "--method", "dpsd", "--attack", "gmi", "--tier", "smoke", "--teacher", "datalens"]


def record_files(out: Path) -> list[Path]:
    return sorted((out / "records").glob("[!.]*/record.json"))


def comparable(path: Path) -> dict[str, object]:
    """Return a record without its provenance."""
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "provenance"}


def board(out: Path) -> list[Result]:
    """The results on the boards of a folder of runs."""
    return [result for board in read_boards(out / "leaderboards") for result in results(board)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One finished smoke run."""
    place = tmp_path_factory.mktemp("finished")
    done = subprocess.run([*BENCH, *SMOKE], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return place, done


def test_run_prints_at_most_25_lines_with_all_facts(finished: Finished) -> None:
    place, done = finished
    labels = [line[:12].strip() for line in done.stdout.splitlines()]
    assert [label for label in labels if label][1:] == [
        "student", "accuracy", "epsilon", "attack", "verdict", "flags", "files"
    ]  # fmt: skip
    assert all(f"accounted {bound}" in done.stdout for bound in ("7,639 per example", "221.2 per query"))
    assert len(done.stdout.strip().splitlines()) <= 25
    files, board = (line.split(": ") for line in done.stdout.splitlines()[-2:])
    assert (place / board[1]).exists()
    for name in files[1].split(", "):
        assert (place / files[0].split()[-1] / name).exists()
    assert {"record.json", "synthetic.png", "reconstructions.png"} == set(files[1].split(", "))


def test_record_has_metrics_privacy_and_provenance(finished: Finished) -> None:
    (path,) = record_files(finished[0] / "runs")
    record = json.loads(path.read_text())
    assert record["status"] in ("ok", "inconclusive")
    metrics, privacy = record["metrics"], record["privacy"]
    prefixes = ("", "teacher_", "evaluator_", "attack_", "teacher_attack_", "random_attack_")
    for key in (f"{prefix}accuracy" for prefix in prefixes):
        assert metrics[f"{key}.lo"] <= metrics[key] <= metrics[f"{key}.hi"]
    assert privacy["claimed"]["epsilon"] == pytest.approx(10, rel=2e-3) and privacy["claimed"]["epsilon"] <= 10
    assert privacy["accounted"]["unit"] == "example" and privacy["accounted"]["epsilon"] > privacy["claimed"]["epsilon"]
    assert privacy["events"] and privacy["noise"] == "seeded"
    provenance = record["provenance"]
    assert provenance["versions"]["torch"] and {"teacher", "release", "attack_student"} <= set(provenance["seconds"])


def test_record_names_steps_made_elsewhere(here: Path) -> None:
    command = ["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens", "--device", "cpu"]
    assert main(command) == 0
    (path,) = record_files(here / "runs")
    assert json.loads(path.read_text())["provenance"]["steps"] == {}
    (step,) = (here / "runs" / "steps" / "teacher").glob("[!.]*/step.json")
    elsewhere = {"device": "NVIDIA H200", "git": {"clean": False, "commit": "1" * 40}}
    manifest = json.loads(step.read_text())
    step.write_text(json.dumps(manifest | {"made": manifest["made"] | elsewhere}))
    shutil.rmtree(here / "runs" / "records")
    assert main(command) == 0
    assert json.loads(path.read_text())["provenance"]["steps"] == {f"teacher {step.parent.name}": elsewhere}
    assert board(here / "runs")[0].device.endswith(", NVIDIA H200")


def test_board_is_written_from_the_record(finished: Finished) -> None:
    (row,) = board(finished[0] / "runs")
    attack = row.attack and row.attack.attack
    assert (row.release.tier, row.release.method, row.release.unit, attack) == ("smoke", "dpsd", "example", "gmi")
    (path,) = (finished[0] / "runs" / "records").glob("*/record.json")
    expected = {"claim!=accounted", "disputed:noise-taken-without-its-bound", "other-unit", "seeded-noise"}
    # Three steps of training may teach a student something or nothing
    if json.loads(path.read_text())["metrics"]["times_chance"] < 1.5:
        expected.add("at-chance-level")
    assert row.flags == expected


@pytest.mark.parametrize("command", [["leaderboard"], SMOKE], ids=["leaderboard", "run"])
def test_board_of_an_older_version_is_rebuilt(here: Path, finished: Finished, command: list[str]) -> None:
    shutil.copytree(finished[0] / "runs", here / "runs")
    boards = here / "runs" / "leaderboards"
    expected = (boards / "releases" / "digits.csv").read_bytes()
    shutil.rmtree(boards)
    boards.mkdir()
    (boards / "digits.csv").write_text("tier,method\n")
    assert main(command) == 0
    assert (boards / "releases" / "digits.csv").read_bytes() == expected


def test_second_run_is_cached(here: Path, capsys: pytest.CaptureFixture[str], finished: Finished) -> None:
    shutil.copytree(finished[0] / "runs", here / "runs")
    (before,) = record_files(here / "runs")
    old = before.stat().st_mtime_ns
    assert main(SMOKE) == 0 and "(cached)" in capsys.readouterr().out
    assert before.stat().st_mtime_ns == old


@pytest.mark.thorough
def test_damaged_picture_is_drawn_again(here: Path, capsys: pytest.CaptureFixture[str], finished: Finished) -> None:
    shutil.copytree(finished[0] / "runs", here / "runs")
    (picture,) = (here / "runs" / "records").glob("*/synthetic.png")
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    assert main(SMOKE) == 0 and "(cached)" not in capsys.readouterr().out
    assert picture.read_bytes() == whole


@pytest.mark.thorough
def test_fresh_run_has_the_same_record(here: Path, capsys: pytest.CaptureFixture[str], finished: Finished) -> None:
    """Here, as in the process that made the first."""
    shutil.copytree(finished[0] / "runs", here / "runs")
    (path,) = record_files(here / "runs")
    before, old = comparable(path), path.stat().st_mtime_ns
    assert main([*SMOKE, "--fresh"]) == 0 and "(cached)" not in capsys.readouterr().out
    assert comparable(path) == before and path.stat().st_mtime_ns != old


def test_second_attack_reuses_trained_networks(
    here: Path, capsys: pytest.CaptureFixture[str], finished: Finished
) -> None:
    shutil.copytree(finished[0] / "runs", here / "runs")
    assert main([*SMOKE, "--attack.iterations", "4"]) == 0
    said = capsys.readouterr().err
    assert "teacher" not in said and "GAN" not in said and "search" in said
    assert len(board(here / "runs")) == 2


def test_seeds_share_a_row(here: Path) -> None:
    assert main(["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens", "--seeds", "0,1,2"]) == 0
    (row,) = board(here / "runs")
    assert [run.seed for run in row.runs] == [0, 1, 2] and row.deviation is not None
    assert (row.accounted, row.claimed) == (float("inf"), None)
    metrics = [json.loads(p.read_text())["metrics"] for p in record_files(here / "runs")]
    assert row.accuracy == pytest.approx(sum(found["accuracy"] for found in metrics) / 3, abs=1e-6)
    assert not (here / "runs" / "steps" / "evaluator").exists(), "there is no image for it to judge"
    assert all("evaluator_accuracy" not in found for found in metrics)


@pytest.mark.thorough
def test_unused_teacher_is_trained_only_for_an_attack(here: Path) -> None:
    given = ["--method", "psg", "--tier", "smoke", "--teacher", "datalens", "--student", "datalens", "--epsilon", "10"]
    assert main(["prepare", *given]) == 0 and main(["run", *given]) == 0
    (record,) = record_files(here / "runs")
    assert "teacher_accuracy" not in json.loads(record.read_text())["metrics"]
    assert not (here / "runs" / "steps" / "teacher").exists()
    assert main(["run", *given, "--attack", "loss-threshold"]) == 0
    attacked = [json.loads(path.read_text()) for path in record_files(here / "runs") if path != record]
    assert len(attacked) == 1 and attacked[0]["metrics"]["teacher_accuracy"] > 0.3
    plain = json.loads(record.read_text())
    assert plain["metrics"]["accuracy"] == attacked[0]["metrics"]["accuracy"]
    assert plain["spec"]["release"] == attacked[0]["spec"]["release"]


def test_prepare_trains_teacher_and_evaluator(here: Path) -> None:
    given = ["--method", "dpsd", "--tier", "smoke", "--teacher", "datalens", "--epsilon", "10"]
    made = here / "runs" / "steps"
    assert main(["prepare", *given, "--attack", "loss-threshold"]) == 0
    assert len(list((made / "teacher").glob("[!.]*"))) == 1 and not (made / "evaluator").exists()
    assert main(["prepare", *given, "--attack", "gmi"]) == 0
    assert [len(list((made / kind).glob("[!.]*"))) for kind in ("teacher", "evaluator")] == [1, 1]


@pytest.mark.thorough
def test_evaluator_options_apply_only_with_an_attack(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--method", "no-defence", "--tier", "smoke", "--teacher", "datalens", "--evaluator.max_steps", "3"]
    assert main(["run", *given]) == 0
    assert "--evaluator.max_steps will not be used" in capsys.readouterr().err
    for options in ([], given[-2:], ["--evaluator", "strided-cnn"]):
        assert main(["run", *given[:-2], "--attack", "random-guess", *options]) == 0
    assert "will not be used" not in (said := capsys.readouterr().err) and "evaluator strided-cnn: 8 of 8" in said
    assert len(list((here / "runs" / "steps" / "evaluator").glob("[!.]*"))) == 3
    settings = [json.loads(path.read_bytes())["options"] for path in (here / "runs" / "records").glob("*/record.json")]
    evaluators = [each["evaluator"] for each in settings]
    assert sorted(evaluators, key=str) == [{"max_steps": 3}, {"network": "strided-cnn"}, {}, {}]
    assert main(["run", *given[:4], "--evaluator", "evaluator-vgg"]) == 0
    assert "--evaluator will not be used" in capsys.readouterr().err
    assert main(["run", *given[:-2], "--attack", "random-guess", "--evaluator", "datalens"]) == 2
    assert "--evaluator datalens" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stage",
    [pytest.param("teacher", marks=pytest.mark.slow), "release", pytest.param("artifact", marks=pytest.mark.slow)],
)
def test_killed_run_resumes_with_the_same_record(tmp_path: Path, finished: Finished, stage: str) -> None:
    waited = {"teacher": "teacher", "release": "release", "artifact": "gmi-gan"}[stage]
    process = subprocess.Popen(
        [*BENCH, *SMOKE], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.time() + 120
    while not list(tmp_path.glob(f"runs/steps/{waited}/.making-*")) and process.poll() is None:
        assert time.time() < deadline, "the stage never began"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert not record_files(tmp_path / "runs")
    done = subprocess.run([*BENCH, *SMOKE], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,), (wanted,) = record_files(tmp_path / "runs"), record_files(finished[0] / "runs")
    assert comparable(path) == comparable(wanted)
    assert not list(tmp_path.rglob(".making-*"))


@pytest.mark.slow
def test_two_processes_at_once_agree(tmp_path: Path, finished: Finished) -> None:
    both = [
        subprocess.Popen(
            [*BENCH, *SMOKE],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    (path,), (wanted,) = record_files(tmp_path / "runs"), record_files(finished[0] / "runs")
    assert comparable(path) == comparable(wanted) and len(board(tmp_path / "runs")) == 1
    assert not list(tmp_path.rglob(".making-*"))


@pytest.mark.thorough
def test_only_seeded_noise_can_be_repeated(here: Path, finished: Finished) -> None:
    (before,) = (finished[0] / "runs" / "steps" / "release").glob("[!.]*/model.safetensors")

    def student(noise: str, out: str) -> bytes:
        """Convert the finished run's teacher, which is not trained again."""
        shutil.copytree(finished[0] / "runs" / "steps" / "teacher", here / out / "steps" / "teacher")
        run = ["run", "--method", "dpsd", "--tier", "smoke", "--teacher", "datalens", "--noise", noise, "--out", out]
        assert main(run) == 0
        (path,) = (here / out / "steps" / "release").glob("[!.]*/model.safetensors")
        return path.read_bytes()

    assert student("os", "a") != student("os", "b")
    assert student("seeded", "c") == before.read_bytes()


def test_user_weights_are_not_trained_again(here: Path, finished: Finished) -> None:
    (weights,) = (finished[0] / "runs" / "steps" / "teacher").glob("[!.]*/model.safetensors")
    shutil.copy(weights, here / "mine.safetensors")
    assert main(["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens",
                 "--teacher-weights", "mine.safetensors"]) == 0  # fmt: skip
    (ours,), (theirs,) = record_files(here / "runs"), record_files(finished[0] / "runs")
    accuracies = {json.loads(path.read_text())["metrics"]["teacher_accuracy"] for path in (ours, theirs)}
    assert len(accuracies) == 1
    assert str(here) not in ours.read_text()


def test_publish_refuses_tier_smoke(bench: Bench, finished: Finished) -> None:
    (path,) = record_files(finished[0] / "runs")
    done = bench("leaderboard", "--publish", path.parent)
    assert done.returncode == 2 and "smoke" in done.stderr


def test_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("bench")
    if not script.exists():
        pytest.skip("the package is not installed in this environment, so there is no `bench` script")
    run = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert run.stdout.startswith("dp-distill-bench ")


@pytest.mark.thorough
def test_unfit_attack_is_reported_before_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens"]
    attack = ["--attack", "ami", "--attack.truncate", "11"]
    assert main([*run, *attack]) == 2
    refused = capsys.readouterr().err
    assert "11" in refused and "10 classes" in refused and "teacher datalens" not in refused
    assert main([*run, *attack, "--unfit-attack", "record"]) == 0
    notice, *training = capsys.readouterr().err.splitlines()
    assert "ami" in notice and "10 classes" in notice and any("teacher datalens" in line for line in training)


@pytest.mark.thorough
def test_unused_student_option_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--method", "dp-sgd", "--tier", "smoke", "--teacher", "datalens"]
    for options, count in ((["--student", "datalens"], 1), ([], 0)):
        assert main([*run, *options]) == 0
        notices = [line for line in capsys.readouterr().err.splitlines() if "--student datalens" in line]
        assert len(notices) == count and all("relu-cnn" in line for line in notices)
