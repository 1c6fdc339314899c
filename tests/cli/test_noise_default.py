"""The default source of privacy noise."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from made import record

from bench.cli import run
from bench.report.command import command


def noise_of(*words: str) -> str:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    settings, _ = run.settle(parser.parse_args(["--method", "dpsd", *words]))
    return settings.noise


@pytest.mark.parametrize("dataset", ["npz:mine.npz", "imagefolder:mine", "imagefolder:mine@64"])
def test_noise_on_own_data_is_the_systems_by_default(dataset: str) -> None:
    assert noise_of("--dataset", dataset) == "os"
    assert noise_of("--dataset", dataset, "--noise", "seeded") == "seeded"


def test_noise_on_public_data_is_seeded_by_default() -> None:
    assert noise_of() == noise_of("--dataset", "mnist") == "seeded"
    assert noise_of("--noise", "os") == "os"


def test_noise_with_own_teacher_is_the_systems_by_default(tmp_path: Path) -> None:
    weights = tmp_path / "teacher.pt"
    weights.write_bytes(b"weights")
    assert noise_of("--teacher-weights", str(weights)) == "os"
    assert noise_of("--teacher-weights", str(weights), "--noise", "seeded") == "seeded"


@pytest.mark.parametrize("noise", ["seeded", "os"])
@pytest.mark.parametrize(("dataset", "usual"), [("npz-mine", "os"), ("digits", "seeded")])
def test_command_of_record_names_noise_that_is_not_usual(noise: str, dataset: str, usual: str) -> None:
    made = record()
    made.spec["release"]["noise"] = noise
    made.spec["release"]["teacher"]["data"]["dataset"] = dataset
    assert (f"--noise {noise}" in command(made)) == (noise != usual)
