"""Image files of every mode: turned, transparent, of more than 8 bits, and odd ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from bench import data
from bench.data import ImageData
from bench.data.dataset import Fit, Reading
from bench.data.opening import Broken, Opened, open_image
from bench.errors import BenchError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (20, 20, 3), dtype=np.uint8)
ORIENTATION = 0x0112
TO_LAB = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")


def two_classes(path: Path, grey: bool = True) -> Path:
    """Six images of 16x16 pixels in each of two classes."""
    for name in ("a", "b"):
        (path / name).mkdir(parents=True, exist_ok=True)
        for index in range(6):
            pixels = RNG.integers(0, 256, (16, 16) if grey else (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index}.png")
    return path


def opened(file: Path, pixel_range: tuple[float, float] | None = None) -> Opened:
    return open_image(file, pixel_range)


def load(path: Path, shape: str = "@16", **how: object) -> ImageData:
    return data.load(f"imagefolder:{path}{shape}", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_open_image_turns_as_exif_says(tmp_path: Path, orientation: int) -> None:
    """Row 0 and column 0 of the file are where the tag says that they are on the upright image (EXIF 2.3, 4.6.4)."""
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:8, :8] = 255  # row 0, column 0
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    found = opened(tmp_path / "x.png")
    upright = np.asarray(found.image)
    sides = {1: "top left", 2: "top right", 3: "bottom right", 4: "bottom left"}
    corners = sides | {5: "top left", 6: "top right", 7: "bottom right", 8: "bottom left"}
    row, column = corners[orientation].split()
    assert upright.shape == ((16, 32) if orientation < 5 else (32, 16))
    assert upright[0 if row == "top" else -1, 0 if column == "left" else -1] == 255 and (upright > 0).sum() == 64
    assert found.done == (("turned",) if orientation > 1 else ())


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_open_image_with_a_broken_exif_block_is_read(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff", quality=95)
    assert opened(tmp_path / "x.jpg").done == ()


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", "png"), ("RGBA", "webp"), ("LA", "png"), ("RGBA", "tif")])
def test_open_image_puts_transparent_pixels_on_white(tmp_path: Path, mode: str, suffix: str) -> None:
    image = Image.new(mode, (8, 8), (0,) * len(mode))
    image.paste((40,) * (len(mode) - 1) + (255,), (0, 0, 4, 8))
    image.save(tmp_path / f"x.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    found = opened(tmp_path / f"x.{suffix}")
    assert found.done == ("transparent",) and found.image.mode == ("L" if mode == "LA" else "RGB")
    assert np.unique(np.asarray(found.image)[:, :4]).tolist() == [40]
    assert np.unique(np.asarray(found.image)[:, 4:]).tolist() == [255]


def test_open_image_blends_half_transparent_pixels_with_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 100, 255, 51)).save(tmp_path / "x.png")  # a fifth
    assert np.asarray(opened(tmp_path / "x.png").image)[0, 0].tolist() == [204, 224, 255]


def test_open_image_of_a_palette_with_a_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0, 0, 0, 90])
    image.paste(1, (0, 0, 4, 8))
    image.save(tmp_path / "x.gif", transparency=0)
    found = opened(tmp_path / "x.gif")
    assert found.done == ("transparent",)
    assert np.asarray(found.image)[0, [0, 7]].tolist() == [[0, 0, 90], [255, 255, 255]]


def test_open_image_whose_alpha_is_opaque_is_unchanged(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).convert("RGBA").save(tmp_path / "x.png")
    found = opened(tmp_path / "x.png")
    assert found.done == () and np.array_equal(np.asarray(found.image), COLOURS)


def test_open_image_of_16_bits_uses_their_full_range(tmp_path: Path) -> None:
    pixels = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    Image.fromarray(pixels).save(tmp_path / "x.png")
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    for name in ("x.png", "x.tif"):
        found = opened(tmp_path / name)
        assert found.done == ("deep",) and found.image.mode == "L"
        assert np.asarray(found.image).ravel().tolist() == list(range(256))


def test_open_image_of_16_bits_heeds_a_declared_range(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(tmp_path / "x.png")
    assert np.asarray(opened(tmp_path / "x.png", (0, 4095)).image)[0, 0] == 255
    with pytest.raises(Broken, match="from 4095 to 4095, expected 0 to 1000"):
        opened(tmp_path / "x.png", (0, 1000))


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan"), float("inf")])
def test_open_image_of_floats_outside_0_1_is_refused(tmp_path: Path, value: float) -> None:
    pixels = np.full((8, 8), 0.2, np.float32)
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    assert np.asarray(opened(tmp_path / "x.tif").image)[0, 0] == 51
    pixels[3, 3] = value
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    with pytest.raises(Broken, match="--pixel-range"):
        opened(tmp_path / "x.tif")


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("CMYK", "jpg"), ("P", "png"), ("P", "gif"), ("RGB", "webp"), ("YCbCr", "jpg"), ("1", "bmp"), ("LAB", "tif")],
)
def test_open_image_reads_every_usual_mode(tmp_path: Path, mode: str, suffix: str) -> None:
    """A quarter is about as bright as it was written: palettes and black and white are dithered."""
    smooth = Image.linear_gradient("L").resize((64, 16)).convert("RGB")
    written = ImageCms.applyTransform(smooth, TO_LAB) if mode == "LAB" else smooth.convert(mode)
    assert written is not None
    written.save(tmp_path / f"x.{suffix}")
    found = np.asarray(opened(tmp_path / f"x.{suffix}").image.convert("L"), np.float64).reshape(4, -1).mean(1)
    assert np.abs(found - np.asarray(smooth.convert("L"), np.float64).reshape(4, -1).mean(1)).max() < 40


def test_open_image_of_several_frames_reads_the_first(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), (value, 0, 0)) for value in (250, 10)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    found = opened(tmp_path / "x.gif")
    assert found.done == ("frames",) and np.asarray(found.image)[0, 0, 0] == 250


def test_open_image_of_32_bit_integers_above_255_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 300, np.int32)).save(tmp_path / "x.tif")
    with pytest.raises(Broken, match="from 300 to 300, expected 0 to 255"):
        opened(tmp_path / "x.tif")
    assert np.asarray(opened(tmp_path / "x.tif", (0, 600)).image)[0, 0] == 128


def test_one_odd_file_changes_no_other_image(tmp_path: Path) -> None:
    """With declared channels an image depends only on its own file."""
    before = load(two_classes(tmp_path), "@16@grey")
    for number, pixels in enumerate((np.full((9, 30), 60000, np.uint16), COLOURS)):
        (tmp_path / "a" / "0.png").unlink()
        Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
        after = load(tmp_path, "@16@grey")
        different = (before.train_images != after.train_images).flatten(1).any(1)
        assert different.sum() <= 1 and different[1:].sum() == 0, number


def test_channels_are_those_of_the_files_unless_declared(tmp_path: Path) -> None:
    found = load(two_classes(tmp_path))
    assert found.shape == (1, 16, 16) and any("--channels" in said for said in found.conversions)
    declared = load(tmp_path, "@16@rgb")
    assert declared.shape == (3, 16, 16) and declared.name.endswith("-rgb-16px")
    assert (declared.train_images == found.train_images).all() and declared.fingerprint != found.fingerprint
    Image.fromarray(COLOURS).save(tmp_path / "a" / "x.png")
    mixed = load(tmp_path)
    assert mixed.shape == (3, 16, 16) and any("1 of 13" in said for said in mixed.conversions)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_fit_makes_images_square(tmp_path: Path, fit: Fit) -> None:
    """Tall images whose central square is bright."""
    two_classes(tmp_path)
    pixels = np.full((32, 16), 9, np.uint8)
    pixels[8:24] = 200
    for file in (tmp_path / "a").iterdir():
        Image.fromarray(pixels).save(file)
    found = load(tmp_path, reading=Reading(fit=fit))
    image = found.train_images[found.train_labels == 0][0, 0]
    assert any("not square" in said for said in found.conversions)
    corners, sides = {int(image[y, x]) for y in (0, -1) for x in (0, -1)}, {int(image[8, x]) for x in (0, -1)}
    expected = {"crop": ({200}, {200}), "pad": ({0}, {0}), "stretch": ({9}, {200})}
    assert (corners, sides) == expected[fit] and image[8, 8] == 200 and image[0, 8] == (200 if fit == "crop" else 9)


def test_truncated_files_are_left_out_on_demand(tmp_path: Path) -> None:
    file = two_classes(tmp_path) / "a" / "0.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(BenchError, match=r"a/0\.png is not a readable image"):
        load(tmp_path)
    found = load(tmp_path, skip_broken=True)
    assert found.left_out == ("a/0.png",) and len(found.train_images) + len(found.test_images) == 11


def test_published_sets_heed_no_declaration() -> None:
    with pytest.raises(BenchError, match="--fit and --pixel-range are for images of your own"):
        data.load("digits", reading=Reading(fit="pad"))
