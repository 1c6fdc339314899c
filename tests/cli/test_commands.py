"""The command as a user types it, on the embedded data set at tier smoke."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import BENCH, ROOT, Refused, Type

from bench.boards import read_boards, results
from bench.boards.results import Result

Finished = tuple[Path, str]
"""The working directory of a run, and its output."""
PLAIN = "run --method no-defence --tier smoke --teacher datalens"
SMOKE = "run --method dpsd --attack gmi --tier smoke --teacher datalens"


def record_files(runs: Path) -> list[Path]:
    return sorted((runs / "records").glob("[!.]*/record.json"))


def comparable(runs: Path) -> dict[str, Any]:
    """Return the only record without its provenance."""
    (path,) = record_files(runs)
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "provenance"}


def board(runs: Path) -> list[Result]:
    """The results on the boards of a folder of runs."""
    return [result for board in read_boards(runs / "leaderboards") for result in results(board)]


def steps(runs: Path, kind: str) -> list[Path]:
    return list((runs / "steps" / kind).glob("[!.]*"))


def start(place: Path) -> subprocess.Popen[str]:
    """Begin the smoke run in another process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*BENCH, *SMOKE.split()], cwd=place, env=environment, **pipes)


def end(process: subprocess.Popen[str]) -> str:
    """Wait for success; return the output."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One finished smoke run."""
    place = tmp_path_factory.mktemp("finished")
    return place, end(start(place))


@pytest.fixture
def copied(here: Path, finished: Finished) -> Path:
    """A copy of the finished run's folder in the working directory."""
    return shutil.copytree(finished[0] / "runs", here / "runs")


def test_run_prints_at_most_25_lines_with_all_facts(finished: Finished) -> None:
    place, out = finished
    labels = [line[:12].strip() for line in out.splitlines()]
    expected = ["student", "accuracy", "epsilon", "attack", "verdict", "flags", "files"]
    assert [label for label in labels if label][1:] == expected
    assert all(f"accounted {bound}" in out for bound in ("7,639 per example", "221.2 per query"))
    assert len(out.strip().splitlines()) <= 25
    files, board = (line.split(": ") for line in out.splitlines()[-2:])
    assert (place / board[1]).exists()
    assert all((place / files[0].split()[-1] / name).exists() for name in files[1].split(", "))
    assert {"record.json", "synthetic.png", "reconstructions.png"} == set(files[1].split(", "))


def test_record_has_metrics_privacy_and_provenance(finished: Finished) -> None:
    (path,) = record_files(finished[0] / "runs")
    record = json.loads(path.read_text())
    assert record["status"] in ("ok", "inconclusive")
    metrics, privacy = record["metrics"], record["privacy"]
    for prefix in ("", "teacher_", "evaluator_", "attack_", "teacher_attack_", "random_attack_"):
        key = f"{prefix}accuracy"
        assert metrics[f"{key}.lo"] <= metrics[key] <= metrics[f"{key}.hi"]
    assert privacy["claimed"]["epsilon"] == pytest.approx(10, rel=2e-3) and privacy["claimed"]["epsilon"] <= 10
    assert privacy["accounted"]["unit"] == "example" and privacy["accounted"]["epsilon"] > privacy["claimed"]["epsilon"]
    assert privacy["events"] and privacy["noise"] == "seeded"
    provenance = record["provenance"]
    assert provenance["versions"]["torch"] and {"teacher", "release", "attack_student"} <= set(provenance["seconds"])


def test_record_names_steps_made_elsewhere(here: Path, typed: Type) -> None:
    runs = here / "runs"
    assert typed(PLAIN, "--device cpu").status == 0
    (path,) = record_files(runs)
    assert json.loads(path.read_text())["provenance"]["steps"] == {}
    (step,) = (runs / "steps" / "teacher").glob("[!.]*/step.json")
    elsewhere = {"device": "NVIDIA H200", "git": {"clean": False, "commit": "1" * 40}}
    manifest = json.loads(step.read_text())
    step.write_text(json.dumps(manifest | {"made": manifest["made"] | elsewhere}))
    shutil.rmtree(runs / "records")
    assert typed(PLAIN, "--device cpu").status == 0
    assert json.loads(path.read_text())["provenance"]["steps"] == {f"teacher {step.parent.name}": elsewhere}
    assert board(runs)[0].device.endswith(", NVIDIA H200")


def test_board_is_written_from_the_record(finished: Finished) -> None:
    runs = finished[0] / "runs"
    (row,) = board(runs)
    attack = row.attack and row.attack.attack
    assert (row.release.tier, row.release.method, row.release.unit, attack) == ("smoke", "dpsd", "example", "gmi")
    expected = {"claim!=accounted", "disputed:noise-taken-without-its-bound", "other-unit", "seeded-noise"}
    # Three steps of training may teach a student something or nothing
    is_at_chance = comparable(runs)["metrics"]["times_chance"] < 1.5
    assert row.flags == expected | ({"at-chance-level"} if is_at_chance else set())


@pytest.mark.parametrize("command", ["leaderboard", SMOKE], ids=["leaderboard", "run"])
def test_board_of_an_older_version_is_rebuilt(copied: Path, typed: Type, command: str) -> None:
    boards = copied / "leaderboards"
    expected = (boards / "releases" / "digits.csv").read_bytes()
    shutil.rmtree(boards)
    boards.mkdir()
    (boards / "digits.csv").write_text("tier,method\n")
    assert typed(command).status == 0
    assert (boards / "releases" / "digits.csv").read_bytes() == expected


def test_second_run_is_cached(copied: Path, typed: Type) -> None:
    (before,) = record_files(copied)
    old = before.stat().st_mtime_ns
    assert "(cached)" in typed(SMOKE).out and before.stat().st_mtime_ns == old


@pytest.mark.thorough
def test_damaged_picture_is_drawn_again(copied: Path, typed: Type) -> None:
    (picture,) = (copied / "records").glob("*/synthetic.png")
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    said = typed(SMOKE)
    assert said.status == 0 and "(cached)" not in said.out and picture.read_bytes() == whole


@pytest.mark.thorough
def test_fresh_run_has_the_same_record(copied: Path, typed: Type) -> None:
    """Here, as in the process that made the first."""
    (path,) = record_files(copied)
    before, old = comparable(copied), path.stat().st_mtime_ns
    said = typed(SMOKE, "--fresh")
    assert said.status == 0 and "(cached)" not in said.out
    assert comparable(copied) == before and path.stat().st_mtime_ns != old


def test_second_attack_reuses_trained_networks(copied: Path, typed: Type) -> None:
    status, _, said = typed(SMOKE, "--attack.iterations 4")
    assert status == 0 and "teacher" not in said and "GAN" not in said and "search" in said
    assert len(board(copied)) == 2


def test_seeds_share_a_row(here: Path, typed: Type) -> None:
    runs = here / "runs"
    assert typed(PLAIN, "--seeds 0,1,2").status == 0
    (row,) = board(runs)
    assert [run.seed for run in row.runs] == [0, 1, 2] and row.deviation is not None
    assert (row.accounted, row.claimed) == (float("inf"), None)
    metrics = [json.loads(path.read_text())["metrics"] for path in record_files(runs)]
    assert row.accuracy == pytest.approx(sum(found["accuracy"] for found in metrics) / 3, abs=1e-6)
    assert not (runs / "steps" / "evaluator").exists(), "no image needs an evaluator"
    assert all("evaluator_accuracy" not in found for found in metrics)


@pytest.mark.thorough
def test_unused_teacher_is_trained_only_for_an_attack(here: Path, typed: Type) -> None:
    runs, given = here / "runs", "--method psg --tier smoke --teacher datalens --student datalens --epsilon 10"
    assert typed("prepare", given).status == typed("run", given).status == 0
    (record,) = record_files(runs)
    plain = json.loads(record.read_text())
    assert "teacher_accuracy" not in plain["metrics"] and not (runs / "steps" / "teacher").exists()
    assert typed("run", given, "--attack loss-threshold").status == 0
    (attacked,) = (json.loads(path.read_text()) for path in record_files(runs) if path != record)
    assert attacked["metrics"]["teacher_accuracy"] > 0.3
    assert plain["metrics"]["accuracy"] == attacked["metrics"]["accuracy"]
    assert plain["spec"]["release"] == attacked["spec"]["release"]


def test_prepare_trains_teacher_and_evaluator(here: Path, typed: Type) -> None:
    for attack, counts in (("loss-threshold", [1, 0]), ("gmi", [1, 1])):
        given = f"--method dpsd --tier smoke --teacher datalens --epsilon 10 --attack {attack}"
        assert typed("prepare", given).status == 0
        assert [len(steps(here / "runs", kind)) for kind in ("teacher", "evaluator")] == counts


@pytest.mark.thorough
def test_evaluator_options_apply_only_with_an_attack(here: Path, typed: Type) -> None:
    three = "--evaluator.max_steps 3"
    for options, notice in ((three, "--evaluator.max_steps"), ("--evaluator evaluator-vgg", "--evaluator")):
        status, _, said = typed(PLAIN, options)
        assert status == 0 and f"{notice} will not be used" in said
    for options in ("", three, "--evaluator strided-cnn"):
        status, _, said = typed(PLAIN, "--attack random-guess", options)
        assert status == 0 and "will not be used" not in said
    assert "evaluator strided-cnn: 8 of 8" in said and len(steps(here / "runs", "evaluator")) == 3
    settings = [json.loads(path.read_bytes())["options"] for path in record_files(here / "runs")]
    evaluators = sorted((each["evaluator"] for each in settings), key=str)
    without_attack = [{}, {}]  # the network of the evaluator is part of a run's spec
    assert evaluators == [{"max_steps": 3}, {"network": "strided-cnn"}, *without_attack, {}]
    refused = typed(PLAIN, "--attack random-guess --evaluator datalens")
    assert refused.status == 2 and "--evaluator datalens" in refused.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "waited"),
    [
        pytest.param("teacher", "teacher", marks=pytest.mark.slow),
        ("release", "release"),
        pytest.param("artifact", "gmi-gan", marks=pytest.mark.slow),
    ],
)
def test_killed_run_resumes_with_the_same_record(tmp_path: Path, finished: Finished, kind: str, waited: str) -> None:
    process, deadline = start(tmp_path), time.time() + 120
    while not list(tmp_path.glob(f"runs/steps/{waited}/.making-*")) and process.poll() is None:
        assert time.time() < deadline, f"the stage {kind} never began"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert not record_files(tmp_path / "runs")
    end(start(tmp_path))
    assert comparable(tmp_path / "runs") == comparable(finished[0] / "runs")
    assert not list(tmp_path.rglob(".making-*"))


@pytest.mark.slow
def test_two_processes_at_once_agree(tmp_path: Path, finished: Finished) -> None:
    for process in [start(tmp_path) for _ in range(2)]:
        end(process)
    assert comparable(tmp_path / "runs") == comparable(finished[0] / "runs") and len(board(tmp_path / "runs")) == 1
    assert not list(tmp_path.rglob(".making-*"))


@pytest.mark.thorough
def test_only_seeded_noise_can_be_repeated(here: Path, finished: Finished, typed: Type) -> None:
    runs = finished[0] / "runs"

    def student(noise: str, out: str) -> bytes:
        """Convert the finished run's teacher, which is not trained again."""
        shutil.copytree(runs / "steps" / "teacher", here / out / "steps" / "teacher")
        assert typed(f"run --method dpsd --tier smoke --teacher datalens --noise {noise} --out {out}").status == 0
        return (steps(here / out, "release")[0] / "model.safetensors").read_bytes()

    assert student("os", "a") != student("os", "b")
    assert student("seeded", "c") == (steps(runs, "release")[0] / "model.safetensors").read_bytes()


def test_user_weights_are_not_trained_again(here: Path, finished: Finished, typed: Type) -> None:
    shutil.copy(steps(finished[0] / "runs", "teacher")[0] / "model.safetensors", here / "mine.safetensors")
    assert typed(PLAIN, "--teacher-weights mine.safetensors").status == 0
    ours, theirs = comparable(here / "runs"), comparable(finished[0] / "runs")
    assert ours["metrics"]["teacher_accuracy"] == theirs["metrics"]["teacher_accuracy"]
    assert str(here) not in record_files(here / "runs")[0].read_text()


def test_publish_refuses_tier_smoke(here: Path, finished: Finished, refused: Refused) -> None:
    (path,) = record_files(finished[0] / "runs")
    assert "smoke" in refused("leaderboard --publish", path.parent)


def test_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("bench")
    if not script.exists():
        pytest.skip("the package is not installed in this environment, so there is no `bench` script")
    run = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert run.stdout.startswith("dp-distill-bench ")


@pytest.mark.thorough
def test_unfit_attack_is_reported_before_training(here: Path, typed: Type, refused: Refused) -> None:
    attack = "--attack ami --attack.truncate 11"
    error = refused(PLAIN, attack)
    assert "11" in error and "10 classes" in error
    status, _, said = typed(PLAIN, attack, "--unfit-attack record")
    notice, *training = said.splitlines()
    assert status == 0 and "ami" in notice and "10 classes" in notice
    assert any("teacher datalens" in line for line in training) and len(record_files(here / "runs")) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "count"), [("--student datalens", 1), ("", 0)])
def test_unused_student_option_is_reported(here: Path, typed: Type, options: str, count: int) -> None:
    status, _, said = typed("run --method dp-sgd --tier smoke --teacher datalens", options)
    notices = [line for line in said.splitlines() if "--student datalens" in line]
    assert status == 0 and len(notices) == count and all("relu-cnn" in line for line in notices)
