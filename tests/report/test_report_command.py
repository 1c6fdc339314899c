"""The command line that makes a record again, and how a setting is displayed."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import write_toy
from made import record

from bench import cli
from bench.cli import run as run_command
from bench.pipeline.job import changed_options, run_spec
from bench.pipeline.resolve import load_job
from bench.report import command
from bench.report.command import notes
from bench.storage.records import Record

SMOKE = "run --method dpsd --tier smoke --teacher datalens"


def made_by(line: str, out: Path) -> Record:
    settings, seeds = run_command.read_run(cli.parse([*shlex.split(line), "--out", str(out)]))
    job = load_job(settings)
    spec = run_spec(job, seeds[0])
    return Record(spec.hash, "ok", "", json.loads(json.dumps(asdict(spec))), changed_options(job))


def test_setting_names_options_that_differ_from_tier(tmp_path: Path) -> None:
    given = "--attack gmi --attack.iterations 7 --teacher.lr 0.01 --teacher.flip --method.k 2 --teacher.epochs 1"
    named = "k=2 attack.iterations=7 teacher.flip=true teacher.lr=0.01 epsilon=1.0"
    assert made_by(f"{SMOKE} {given} --epsilon 1", tmp_path).setting == named, "epochs are the tier's"


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--attack gmi",
        "--attack gmi --attack.iterations 7 --attack.keep_best --seeds 3",
        "--method.mode label --method.k 2 --method.replay false --epsilon 1",
        "--method class-moments --method.teachers 4 --account accounted --epsilon 8 --unit example --delta 1e-6",
        "--epsilon inf --noise os --student resnet18",
        "--epsilon none --method.sigma 3.5",
        "--solve steps --epsilon 0.30000000000000004 --method.sigma 50",
        "--teacher.lr 0.01 --teacher.flip --split full --dataset digits --split disjoint-low",
        "--attack gmi --evaluator.epochs 3 --evaluator.flip",
        "--attack gmi --evaluator.recipe objects --evaluator.max_steps 5 --teacher.recipe faces",
        "--attack gmi --evaluator.recipe standard",
        "--attack gmi --evaluator evaluator-vgg --evaluator.epochs 3",
    ],
)
def test_command_of_record_makes_same_spec(options: str, tmp_path: Path) -> None:
    wanted = made_by(f"{SMOKE} {options}", tmp_path)
    line = command(wanted)
    program, *arguments = shlex.split(line)
    found = made_by(shlex.join(arguments), tmp_path)
    assert program == "bench"
    assert (found.hash, found.setting) == (wanted.hash, wanted.setting)
    assert ("--epsilon none" in line) == ("none" in options) and ("--epsilon inf" in line) == ("inf" in options)


def test_unused_evaluator_is_not_in_command_or_setting(tmp_path: Path) -> None:
    for options in ("", "--attack lira"):
        found = made_by(f"{SMOKE} {options} --evaluator.epochs 3 --evaluator evaluator-vgg", tmp_path)
        assert "evaluator" not in command(found) and found.setting == ""
    judged = made_by(f"{SMOKE} --attack gmi --evaluator.recipe objects --evaluator.epochs 3", tmp_path)
    assert judged.setting == "evaluator.epochs=3 evaluator.recipe=objects"
    other = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-vgg", tmp_path)
    assert other.setting == "evaluator.network=evaluator-vgg" and other.spec["evaluator"]["arch"] == "evaluator-vgg"
    default = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-cnn", tmp_path)
    assert default.hash == made_by(f"{SMOKE} --attack gmi", tmp_path).hash != other.hash and default.setting == ""


def test_command_has_placeholders_for_unknown_paths(tmp_path: Path) -> None:
    write_toy(tmp_path, 80)
    weights = tmp_path / "teacher.safetensors"
    weights.write_bytes(b"any bytes have a hash")
    own = f"--dataset npz:{tmp_path}/toy.npz --teacher-weights {weights} --teacher-normalise=0.1,0.3"
    wanted = made_by(f"{SMOKE} {own}", tmp_path)
    line = command(wanted)
    assert "npz:PATH/toy.npz" in line and "--teacher-weights FILE" in line
    filled = line.removeprefix("bench ").replace("PATH", str(tmp_path)).replace("FILE", str(weights))
    assert made_by(filled, tmp_path).hash == wanted.hash
    told = " ".join(notes(wanted))
    assert wanted.spec["release"]["teacher"]["weights"] in told
    assert wanted.spec["release"]["teacher"]["data"]["fingerprint"] in told


def test_command_writes_all_options_of_missing_plugin() -> None:
    found = record("from-elsewhere")
    found.spec["release"]["options"] = {"a": 1.0, "b": True, "c": "-x", "d": "two words"}
    assert shlex.split(command(found))[-7:] == [
        *("--method.a", "1.0", "--method.b", "true", "--method.c=-x", "--method.d", "two words")
    ]
    assert "not installed" in " ".join(notes(found))


def test_notes_name_another_version_of_a_plugin() -> None:
    found = record("dpsd")
    found.spec["release"]["version"] = 0
    assert "Version 0 of dpsd made it" in " ".join(notes(found))
