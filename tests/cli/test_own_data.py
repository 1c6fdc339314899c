"""A user's own images at the command line: lines, records, and bad options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.cli import main
from bench.cli.read_given import shaped
from bench.data.dataset import Reading
from bench.errors import BenchError
from bench.pipeline.material import Wanted, load_material
from bench.report.command import command
from bench.storage.records import Record

RUN = ["run", "--method", "no-defence", "--tier", "smoke", "--teacher", "datalens"]


def folder(path: Path) -> Path:
    """Ninety oblong grey files in two classes."""
    for part, count in (("Training", 40), ("Testing", 5)):
        for number, name in enumerate(("dark", "light")):
            (path / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = (
                    np.random.default_rng(1000 * count + index).integers(0, 90, (16, 24), dtype=np.uint8) + 150 * number
                )
                Image.fromarray(pixels.astype(np.uint8)).save(path / part / name / f"{index}.png")
    return path


@pytest.mark.thorough
def test_a_run_prints_and_records_how_images_were_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = f"imagefolder:{folder(tmp_path / 'rooms')}"
    options = ["--size", "16", "--channels", "3", "--fit", "pad", "--pixel-range", "-1,1"]
    assert main([*RUN, "--dataset", name, *options, "--out", str(tmp_path / "out")]) == 0
    out, err = capfd.readouterr()
    before = err[: err.index("teacher datalens")]
    assert "2 classes, 80 training and 10 test images of 3x16x16" in before and "Testing/" in before
    assert "67 private images of 3x16x16" in " ".join(out.split())
    (file,) = (tmp_path / "out" / "records").glob("*/record.json")
    record = Record.read(file)
    images = json.loads(file.read_text())["provenance"]["images"]
    assert images["shape"] == "3x16x16" and images["reading"] == {"fit": "pad", "pixel_range": "-1,1"}
    assert any("padded" in said for said in images["read_as"])
    assert record.spec["release"]["teacher"]["data"]["dataset"] == "imagefolder-rooms-rgb-16px"
    written = command(record)
    assert "imagefolder:PATH/rooms@16@rgb --fit pad --pixel-range=-1,1" in written


def test_how_images_were_read_is_counted_and_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(f"imagefolder:{folder(tmp_path / 'rooms')}@16@rgb", "iid", reading=Reading("pad", (-1.0, 1.0)))
    counts = load_material(wanted).counts
    assert counts["shape"] == "3x16x16" and counts["reading"] == {"fit": "pad", "pixel_range": "-1,1"}
    assert (counts["private"], counts["aux"], counts["test"]) == (67, 13, 10)
    assert any("padded" in said for said in counts["read_as"])
    said = capfd.readouterr().err
    assert all(sentence in said for sentence in counts["read_as"]) and "2 classes, 80 training" in said


def test_what_is_left_out_is_counted_in_the_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "rooms")
    (path / "Training" / "empty").mkdir()
    (path / "Training" / "dark" / "0.png").write_bytes(b"\x89PNG")
    counts = load_material(Wanted(f"imagefolder:{path}", "iid", skip_broken=True)).counts
    assert (counts["broken_left_out"], counts["empty_classes_left_out"]) == (1, 1)
    said = capfd.readouterr().err
    assert "Training/dark/0.png" in said and "Training/empty/" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dataset", "digits@rgb", "--channels", "1"], "--channels 1: --dataset digits@rgb names channels already"),
        (["--dataset", "digits@16@rgb", "--size", "16"], "--size 16: --dataset digits@16@rgb names a size already"),
        (["--channels", "2"], "--channels"),
        (["--fit", "squash"], "--fit"),
        (["--fit", "pad"], "--fit and --pixel-range are for images of your own"),
        (["--pixel-range", "0,255"], "--fit and --pixel-range are for images of your own"),
        (["--pixel-range", "255,0"], "--pixel-range 255,0: expected the values of black and white"),
        (["--pixel-range", "-1"], "--pixel-range -1: expected"),
        (["--pixel-range", "0,inf"], "--pixel-range 0,inf: expected"),
        (["--pixel-range", "0,1,2"], "--pixel-range 0,1,2: expected"),
        (["--dataset", "digits@blue"], "no data set called 'digits@blue'"),
    ],
)
def test_bad_options_are_one_line_and_status_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    try:
        status = main([*RUN, *options, "--out", str(tmp_path / "out")])
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    assert status == 2 and says in capfd.readouterr().err
    assert not (tmp_path / "out" / "records").exists()


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
def test_shaped_puts_size_before_channels(name: str, size: int | None, channels: int | None, expected: str) -> None:
    assert shaped(name, size, channels) == expected


def test_shaped_refuses_sizes_out_of_range() -> None:
    with pytest.raises(BenchError, match="--size 7"):
        shaped("mnist", 7, None)
