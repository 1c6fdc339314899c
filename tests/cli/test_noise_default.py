"""The default source of privacy noise."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from made import record

from bench.cli import run
from bench.report.command import command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "seeded"),
        ("--dataset mnist", "seeded"),
        ("--dataset npz:mine.npz", "os"),
        ("--dataset imagefolder:mine", "os"),
        ("--dataset imagefolder:mine@64", "os"),
        ("--teacher-weights WEIGHTS", "os"),
    ],
)
def test_default_noise_is_from_the_system_for_own_data(tmp_path: Path, words: str, expected: str) -> None:
    (tmp_path / "teacher.pt").write_bytes(b"weights")
    typed = words.replace("WEIGHTS", str(tmp_path / "teacher.pt")).split()
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    for given, noise in (([], expected), (["--noise", "seeded"], "seeded"), (["--noise", "os"], "os")):
        settings, _ = run.read_run(parser.parse_args(["--method", "dpsd", *typed, *given]))
        assert settings.noise == noise


@pytest.mark.parametrize("noise", ["seeded", "os"])
@pytest.mark.parametrize(("dataset", "default"), [("npz-mine", "os"), ("digits", "seeded")])
def test_command_of_a_record_has_noise_unless_default(noise: str, dataset: str, default: str) -> None:
    made = record()
    made.spec["release"]["noise"] = noise
    made.spec["release"]["teacher"]["data"]["dataset"] = dataset
    assert (f"--noise {noise}" in command(made)) == (noise != default)
