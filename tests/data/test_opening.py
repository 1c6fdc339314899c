"""Image files of every mode: rotated, transparent, of more than 8 bits, and odd ones."""

from pathlib import Path

import numpy as np
import pytest
from conftest import refuses
from data_made import refusal
from PIL import Image, ImageCms

from bench import data
from bench.data import ImageData
from bench.data.dataset import Fit, Reading
from bench.data.opening import Broken, open_image
from bench.errors import BadOption

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (20, 20, 3), dtype=np.uint8)
ORIENTATION = 0x0112
CORNERS = ("top left", "top right", "bottom right", "bottom left") * 2
"""Row 0 and column 0 of the file on the upright image, for orientations 1 to 8 (EXIF 2.3, 4.6.4)."""

TO_LAB = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")


def opened(file: Path, pixel_range: tuple[float, float] | None = None) -> tuple[np.ndarray, str, tuple[str, ...]]:
    """Pixels, mode and changes of an image."""
    found = open_image(file, pixel_range)
    return np.asarray(found.image), found.image.mode, found.done


def refused(file: Path, *values: str, pixel_range: tuple[float, float] | None = None) -> None:
    with refuses(Broken, "--pixel-range", *values):
        open_image(file, pixel_range)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_open_image_rotates_by_exif(tmp_path: Path, orientation: int) -> None:
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:8, :8] = 255  # row 0, column 0
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    upright, _, done = opened(tmp_path / "x.png")
    row, column = CORNERS[orientation - 1].split()
    assert upright.shape == ((16, 32) if orientation < 5 else (32, 16))
    assert upright[0 if row == "top" else -1, 0 if column == "left" else -1] == 255 and (upright > 0).sum() == 64
    assert done == (("turned",) if orientation > 1 else ())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_open_image_ignores_broken_exif(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff", quality=95)
    assert opened(tmp_path / "x.jpg")[2] == ()


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", "png"), ("RGBA", "webp"), ("LA", "png"), ("RGBA", "tif")])
def test_open_image_puts_transparent_pixels_on_white(tmp_path: Path, mode: str, suffix: str) -> None:
    image = Image.new(mode, (8, 8), (0,) * len(mode))
    image.paste((40,) * (len(mode) - 1) + (255,), (0, 0, 4, 8))
    image.save(tmp_path / f"x.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    pixels, found, done = opened(tmp_path / f"x.{suffix}")
    assert done == ("transparent",) and found == ("L" if mode == "LA" else "RGB")
    assert np.unique(pixels[:, :4]).tolist() == [40] and np.unique(pixels[:, 4:]).tolist() == [255]


def test_open_image_blends_partly_transparent_pixels(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 100, 255, 51)).save(tmp_path / "x.png")  # a fifth
    assert opened(tmp_path / "x.png")[0][0, 0].tolist() == [204, 224, 255]
    Image.fromarray(COLOURS).convert("RGBA").save(tmp_path / "opaque.png")
    pixels, _, done = opened(tmp_path / "opaque.png")
    assert done == () and np.array_equal(pixels, COLOURS)


def test_open_image_reads_palette_with_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0, 0, 0, 90])
    image.paste(1, (0, 0, 4, 8))
    image.save(tmp_path / "x.gif", transparency=0)
    pixels, _, done = opened(tmp_path / "x.gif")
    assert done == ("transparent",) and pixels[0, [0, 7]].tolist() == [[0, 0, 90], [255, 255, 255]]


def test_open_image_reads_first_of_several_frames(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), (value, 0, 0)) for value in (250, 10)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    pixels, _, done = opened(tmp_path / "x.gif")
    assert done == ("frames",) and pixels[0, 0, 0] == 250


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_open_image_of_16_bits_uses_full_range(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257).save(tmp_path / f"x.{suffix}")
    pixels, mode, done = opened(tmp_path / f"x.{suffix}")
    assert (mode, done) == ("L", ("deep",)) and pixels.ravel().tolist() == list(range(256))


def test_open_image_uses_declared_pixel_range(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(tmp_path / "x.png")
    assert opened(tmp_path / "x.png", (0, 4095))[0][0, 0] == 255
    refused(tmp_path / "x.png", "4095 to 4095", "0 to 1000", pixel_range=(0, 1000))
    Image.fromarray(np.full((8, 8), 300, np.int32)).save(tmp_path / "x.tif")
    refused(tmp_path / "x.tif", "300 to 300", "0 to 255")
    assert opened(tmp_path / "x.tif", (0, 600))[0][0, 0] == 128


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan"), float("inf")])
def test_open_image_of_floats_must_be_in_0_to_1(tmp_path: Path, value: float) -> None:
    pixels = np.full((8, 8), 0.2, np.float32)
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    assert opened(tmp_path / "x.tif")[0][0, 0] == 51
    pixels[3, 3] = value
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    refused(tmp_path / "x.tif", "0 to 1")


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("CMYK", "jpg"), ("P", "png"), ("P", "gif"), ("RGB", "webp"), ("YCbCr", "jpg"), ("1", "bmp"), ("LAB", "tif")],
)
def test_open_image_reads_each_usual_mode(tmp_path: Path, mode: str, suffix: str) -> None:
    """A quarter is about as bright as it was written: palettes and black and white are dithered."""
    smooth = Image.linear_gradient("L").resize((64, 16)).convert("RGB")
    written = ImageCms.applyTransform(smooth, TO_LAB) if mode == "LAB" else smooth.convert(mode)
    assert written is not None
    written.save(tmp_path / f"x.{suffix}")
    images = (open_image(tmp_path / f"x.{suffix}", None).image, smooth)
    found, expected = (np.asarray(image.convert("L"), np.float64).reshape(4, -1).mean(1) for image in images)
    assert np.abs(found - expected).max() < 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six grey images of 16x16 pixels in each of two classes."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(6):
            Image.fromarray(RNG.integers(0, 256, (16, 16), dtype=np.uint8)).save(tmp_path / name / f"{index}.png")
    return tmp_path


def load(path: Path, shape: str = "@16", reading: Reading | None = None) -> ImageData:
    return data.load(f"imagefolder:{path}{shape}", reading=reading or Reading())


def test_odd_file_changes_no_other_image(folder: Path) -> None:
    """With declared channels an image depends only on its own file."""
    before = load(folder, "@16@grey")
    for pixels in (np.full((9, 30), 60000, np.uint16), COLOURS):
        (folder / "a" / "0.png").unlink()
        Image.fromarray(pixels).save(folder / "a" / "0.png")
        different = (before.train_images != load(folder, "@16@grey").train_images).flatten(1).any(1)
        assert different.sum() <= 1 and different[1:].sum() == 0


def test_channels_are_those_of_files_unless_declared(folder: Path) -> None:
    found, declared = load(folder), load(folder, "@16@rgb")
    assert found.shape == (1, 16, 16) and any("--channels" in said for said in found.conversions)
    assert declared.shape == (3, 16, 16) and declared.name.endswith("-rgb-16px")
    assert (declared.train_images == found.train_images).all() and declared.fingerprint != found.fingerprint
    Image.fromarray(COLOURS).save(folder / "a" / "x.png")
    mixed = load(folder)
    assert mixed.shape == (3, 16, 16) and any("1 of 13" in said for said in mixed.conversions)


@pytest.mark.parametrize(
    ("fit", "corners", "sides"), [("crop", {200}, {200}), ("pad", {0}, {0}), ("stretch", {9}, {200})]
)
def test_fit_makes_images_square(folder: Path, fit: Fit, corners: set[int], sides: set[int]) -> None:
    """Tall images whose central square is bright."""
    pixels = np.full((32, 16), 9, np.uint8)
    pixels[8:24] = 200
    for file in (folder / "a").iterdir():
        Image.fromarray(pixels).save(file)
    found = load(folder, reading=Reading(fit=fit))
    image = found.train_images[found.train_labels == 0][0, 0]
    assert any("6 of 12" in said for said in found.conversions)
    assert {int(image[y, x]) for y in (0, -1) for x in (0, -1)} == corners
    assert {int(image[8, x]) for x in (0, -1)} == sides
    assert image[8, 8] == 200 and image[0, 8] == (200 if fit == "crop" else 9)


def test_reading_of_published_set_is_refused() -> None:
    refusal("digits", "'digits'", "--fit", "--pixel-range", error=BadOption, reading=Reading(fit="pad"))
