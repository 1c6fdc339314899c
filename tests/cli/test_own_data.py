"""A user's own images and weights at the command line: lines, records, the default noise, and bad options."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Refused, Type
from made import record
from PIL import Image

from bench.cli import run
from bench.cli.settings import add_shape
from bench.data.dataset import Reading
from bench.errors import BadOption
from bench.pipeline.material import Wanted, load_material
from bench.report.command import command
from bench.storage.records import Record

RUN = "run --method no-defence --tier smoke --teacher datalens"


def folder(path: Path) -> Path:
    """Ninety oblong grey files in two classes."""
    for part, count in (("Training", 40), ("Testing", 5)):
        for number, name in enumerate(("dark", "light")):
            (path / part / name).mkdir(parents=True)
            for index in range(count):
                noise = np.random.default_rng(1000 * count + index).integers(0, 90, (16, 24))
                image = Image.fromarray((noise + 150 * number).astype(np.uint8))
                image.save(path / part / name / f"{index}.png")
    return path


@pytest.mark.thorough
def test_run_records_how_images_were_read(tmp_path: Path, typed: Type) -> None:
    name = f"imagefolder:{folder(tmp_path / 'rooms')}"
    options = "--size 16 --channels 3 --fit pad --pixel-range -1,1 --out"
    status, out, err = typed(RUN, options, tmp_path / "out", "--dataset", name)
    before = err[: err.index("teacher datalens")]
    assert status == 0 and "2 classes, 80 training and 10 test images of 3x16x16" in before and "Testing/" in before
    assert "67 private images of 3x16x16" in " ".join(out.split())
    (file,) = (tmp_path / "out" / "records").glob("*/record.json")
    record = Record.read(file)
    images = json.loads(file.read_text())["provenance"]["images"]
    assert images["shape"] == "3x16x16" and images["reading"] == {"fit": "pad", "pixel_range": "-1,1"}
    assert any("padded" in said for said in images["read_as"])
    assert record.spec["release"]["teacher"]["data"]["dataset"] == "imagefolder-rooms-rgb-16px"
    assert "imagefolder:PATH/rooms@16@rgb --fit pad --pixel-range=-1,1" in command(record)


def test_material_counts_how_images_were_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(f"imagefolder:{folder(tmp_path / 'rooms')}@16@rgb", "iid", reading=Reading("pad", (-1.0, 1.0)))
    counts = load_material(wanted).counts
    assert counts["shape"] == "3x16x16" and counts["reading"] == {"fit": "pad", "pixel_range": "-1,1"}
    assert (counts["private"], counts["aux"], counts["test"]) == (67, 13, 10)
    assert any("padded" in said for said in counts["read_as"])
    said = capfd.readouterr().err
    assert all(sentence in said for sentence in counts["read_as"]) and "2 classes, 80 training" in said


def test_skipped_files_are_counted_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "rooms")
    (path / "Training" / "empty").mkdir()
    (path / "Training" / "dark" / "0.png").write_bytes(b"\x89PNG")
    counts = load_material(Wanted(f"imagefolder:{path}", "iid", skip_broken=True)).counts
    assert (counts["broken_left_out"], counts["empty_classes_left_out"]) == (1, 1)
    said = capfd.readouterr().err
    assert "Training/dark/0.png" in said and "Training/empty/" in said


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("--dataset digits@rgb --channels 1", "--channels 1: --dataset digits@rgb"),
        ("--dataset digits@16@rgb --size 16", "--size 16: --dataset digits@16@rgb"),
        ("--channels 2", "--channels"),
        ("--fit squash", "--fit"),
        ("--fit pad", "--fit"),
        ("--pixel-range 0,255", "--pixel-range"),
        ("--dataset digits@blue", "'digits@blue'"),
        *((f"--pixel-range {text}", f"--pixel-range {text}") for text in ("255,0", "-1", "0,inf", "0,1,2")),
    ],
)
def test_bad_options_of_images_are_refused(here: Path, refused: Refused, options: str, value: str) -> None:
    assert value in refused(RUN, options) and not (here / "runs" / "records").exists()


@pytest.mark.parametrize(
    ("name", "size", "channels", "expected"),
    [
        ("mnist", None, None, "mnist"),
        ("mnist", 32, None, "mnist@32"),
        ("mnist", 32, 3, "mnist@32@rgb"),
        ("mnist@rgb", 32, None, "mnist@32@rgb"),
        ("mnist@32", None, 1, "mnist@32@grey"),
        ("npz:/a@b/x.npz", None, 3, "npz:/a@b/x.npz@rgb"),
    ],
)
def test_add_shape_puts_size_before_channels(name: str, size: int | None, channels: int | None, expected: str) -> None:
    assert add_shape(name, size, channels) == expected


def test_add_shape_refuses_a_size_out_of_range() -> None:
    with pytest.raises(BadOption, match="--size 7"):
        add_shape("mnist", 7, None)


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
