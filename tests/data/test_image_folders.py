"""A user's folders of image files, and CIFAR-10 unpacked to files: which folders are parts, which are classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from data_made import put, refusal
from PIL import Image

from bench import data
from bench.data import ImageData
from bench.errors import BadData, NotFound

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def tree(path: Path, *parts: str, classes: tuple[str, ...] = ("cat", "dog"), count: int = 3, mode: str = "L") -> Path:
    """Write `count` images of noise for each part and class."""
    for part in parts or ("train", "test"):
        for name in classes:
            for index in range(count):
                put(path / part / name / f"{index}.png", mode=mode)
    return path


def load(path: Path, size: str = "", **how: bool) -> ImageData:
    return data.load(f"imagefolder:{path}{size}", **how)  # type: ignore[arg-type]


def refused(path: Path, *values: object) -> None:
    refusal(f"imagefolder:{path}", path, *values)


def mentions(found: ImageData, *values: str) -> bool:
    """Whether one of the sentences about conversions has all values."""
    return any(all(value in sentence for value in values) for sentence in found.conversions)


def write_grey(file: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels.astype(np.uint8)).save(file)


def test_folder_with_train_and_test_is_read(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("test", 1)):
        for number, name in enumerate(("cat", "dog")):
            for index in range(count):
                put(tmp_path / "Pets" / part / name / f"{index}.png", 50 * number + 10 * index)
    found = load(tmp_path / "Pets")
    assert (found.name, found.shape, found.class_names) == ("imagefolder-pets", (3, 32, 32), ("cat", "dog"))
    assert (found.train_labels.tolist(), found.test_labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    assert found.train_images[:, :, 4, 4].tolist() == [[v, v // 2, 255 - v] for v in (0, 10, 20, 50, 60, 70)]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("TRAIN", "TEST"),
        ("Train", "Val"),
        ("training", "validation"),
        ("Training Set", "Test-Set"),
        ("train_set", "dev"),
    ],
)
def test_folder_parts_are_found_by_usual_names(tmp_path: Path, train: str, test: str) -> None:
    found = load(tree(tree(tmp_path, train, count=5), test, count=2))
    assert found.class_names == ("cat", "dog")
    assert (len(found.train_images), len(found.test_images)) == (10, 4)
    assert mentions(found, f"{train}/", f"{test}/")


def test_folder_test_part_is_preferred_to_validation(tmp_path: Path) -> None:
    found = load(tree(tree(tmp_path, "train", "Valid", count=2), "TEST", count=4))
    assert len(found.test_images) == 8 and mentions(found, "Valid/", "TEST/")


def test_folder_validation_replaces_test_without_classes(tmp_path: Path) -> None:
    tree(tmp_path, "train", "val")
    put(tmp_path / "test" / "0.png")
    found = load(tmp_path)
    assert len(found.test_images) == 6 and mentions(found, "test/")


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        (("train", "Testing", "test"), ("Testing/", "test/")),
        (("Test", "valid"), ("Test/", "train/")),
        (("train",), ("test/", "val/")),
    ],
)
def test_folder_with_unclear_parts_is_refused(tmp_path: Path, parts: tuple[str, ...], values: tuple[str, ...]) -> None:
    refused(tree(tmp_path, *parts), *values)


def test_folder_parts_without_class_folders_are_refused(tmp_path: Path) -> None:
    for part in ("Train", "Test"):
        put(tmp_path / part / "0.png")
    refused(tmp_path, tmp_path / "Train")
    tree(tmp_path, "Train")
    refused(tmp_path, "Test/")


def test_folder_around_data_set_is_named(tmp_path: Path) -> None:
    tree(tmp_path / "chest_xray")
    (tmp_path / "__MACOSX").mkdir()
    refused(tmp_path, tmp_path / "chest_xray")


def test_folder_class_called_train_is_a_class(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        for index in range(7):
            put(tmp_path / name / f"{index}.png")
    found = load(tmp_path)
    assert found.class_names == ("bus", "train") and mentions(found, "train/")


def test_folder_unread_folders_and_files_are_reported(tmp_path: Path) -> None:
    tree(tmp_path)
    put(tmp_path / "extra" / "x.png")
    put(tmp_path / "loose.png")
    found = load(tmp_path)
    assert mentions(found, "extra/") and mentions(found, "1 image files")


@pytest.mark.parametrize(
    "clutter",
    [
        *("__MACOSX/train/cat/._0.png", "train/cat/Thumbs.db", "train/cat/desktop.ini", "train/@eaDir/0.png"),
        *("train/cat/@eaDir/0.png", ".DS_Store", "train/.DS_Store", "train/__MACOSX/0.png", "train/dog/.cache/0.png"),
        *("README", "train/LICENCE", "train/cat/.thumbs/x"),
    ],
)
def test_folder_clutter_is_ignored(tmp_path: Path, clutter: str) -> None:
    before = load(tree(tmp_path)).fingerprint
    (tmp_path / clutter).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / clutter).write_bytes(b"no image")
    assert load(tmp_path).fingerprint == before


def test_folder_test_classes_may_differ_in_case(tmp_path: Path) -> None:
    found = load(tree(tree(tmp_path, "train"), "test", classes=("Cat", "DOG"), count=2))
    assert found.class_names == ("cat", "dog") and found.test_labels.tolist() == [0, 0, 1, 1]


def test_folder_empty_classes_are_named_or_left_out(tmp_path: Path) -> None:
    tree(tmp_path)
    for name in ("ant", "eel"):
        (tmp_path / "train" / name).mkdir()
    put(tmp_path / "test" / "eel" / "0.png")
    refused(tmp_path, "'ant'", "'eel'", "--skip-broken")
    found = load(tmp_path, skip_broken=True)
    assert found.class_names == ("cat", "dog") and found.left_out == ("train/ant/", "train/eel/")
    assert len(found.test_images) == 6


def test_folder_of_classes_holds_out_sixth_by_name_hash(tmp_path: Path) -> None:
    for name, count in (("a", 13), ("b", 6), ("c", 5)):
        for index in range(count):
            put(tmp_path / name / "deep" / f"{index:02}.png", index, "L")
    found = load(tmp_path)
    assert found.train_labels.bincount().tolist() == [11, 5, 5] and found.test_labels.tolist() == [0, 0, 1]
    names = [f"a/deep/{index:02}.png" for index in range(13)]
    held_out = sorted(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:2])
    grey = {name: int(np.asarray(Image.open(tmp_path / name))[0, 0]) for name in names}
    assert found.test_images[:2, 0, 0, 0].tolist() == [grey[name] for name in held_out]
    assert found.train_images[:11, 0, 0, 0].tolist() == [grey[name] for name in names if name not in held_out]


def test_folder_held_out_files_do_not_depend_on_place(tmp_path: Path) -> None:
    for place in ("here", "there"):
        for index in range(24):
            put(tmp_path / place / "ab"[index % 2] / f"{index}.png", 5 * index)
    assert load(tmp_path / "here").fingerprint == load(tmp_path / "there").fingerprint


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    """A zip archive with names in Latin 1 unpacks to such names."""
    for name in ("a", "b"):
        for index in range(8):
            put(tmp_path / name / f"{index}.png", 20 * index).rename(tmp_path / name / f"caf\udce9-{index}.png")
    found = load(tmp_path)
    assert (len(found.train_images), len(found.test_images)) == (14, 2)
    archive, pixels = tmp_path / "\udcff.npz", np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(archive, x_train=pixels, y_train=np.arange(2), x_test=pixels, y_test=np.arange(2))
    assert data.load(f"npz:{archive}").name.startswith("npz-")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("RGBA", 3), ("P", 3)])
def test_folder_channels_follow_file_mode(tmp_path: Path, mode: str, channels: int) -> None:
    assert load(tree(tmp_path, mode=mode)).shape == (channels, 32, 32)


@pytest.mark.parametrize("part", ["train", "test"])
def test_folder_one_colour_image_makes_all_rgb(tmp_path: Path, part: str) -> None:
    put(tree(tmp_path) / part / "dog" / "z.png", 9)
    found = load(tmp_path)
    assert found.shape == (3, 32, 32)
    grey = found.train_images[0]
    assert torch.equal(grey[0], grey[1]) and torch.equal(grey[0], grey[2])
    colour = (found.train_images if part == "train" else found.test_images)[-1]
    assert colour[:, 0, 0].tolist() == [9, 4, 246]


def test_folder_image_is_cropped_to_central_square(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80))
    pixels[:, 20:60] = 200
    write_grey(tree(tmp_path) / "train" / "cat" / "0.png", pixels)
    write_grey(tmp_path / "train" / "cat" / "1.png", pixels.T.copy())
    found = load(tmp_path, "@16")
    assert found.shape == (1, 16, 16) and found.name.endswith("-16px")
    assert (found.train_images[:2] == 200).all()


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 3)])
def test_folder_image_of_right_size_is_unchanged(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape)
    write_grey(tree(tmp_path) / "train" / "cat" / "0.png", pixels)
    found = load(tmp_path).train_images[0].numpy().transpose(1, 2, 0)
    assert np.array_equal(found, pixels.reshape(32, 32, -1))


def test_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", put(tmp_path / "a.png")):
        refusal(f"imagefolder:{path}", path, error=NotFound)


@pytest.mark.parametrize("classes", [(), ("only",)])
def test_folder_with_fewer_than_two_classes_is_refused(tmp_path: Path, classes: tuple[str, ...]) -> None:
    for name in classes:
        put(tmp_path / name / "0.png")
    refused(tmp_path, len(classes), "2 or more")


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    refused(tmp_path)
    for index in range(6):
        put(tmp_path / "a" / f"{index}.png")
    refused(tmp_path, "'b'")
    put(tmp_path / "b" / "0.png")
    (tmp_path / "a" / "0.png").unlink()
    refused(tmp_path, "PATH/test")


def test_folder_unknown_test_class_is_refused(tmp_path: Path) -> None:
    put(tree(tmp_path) / "test" / "eel" / "0.png")
    refused(tmp_path, "'eel'")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\0\x10JFIF", b"GIF89a"])
def test_file_that_is_not_an_image_is_named(tmp_path: Path, content: bytes) -> None:
    bad = tree(tmp_path) / "train" / "dog" / "x.png"
    bad.write_bytes(content)
    refused(tmp_path, bad, "--skip-broken")


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp"])
def test_truncated_image_is_named(tmp_path: Path, suffix: str) -> None:
    bad = put(tree(tmp_path) / "test" / "dog" / f"bad.{suffix}")
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    refused(tmp_path, bad)


def test_png_with_flipped_byte_is_named(tmp_path: Path) -> None:
    bad = put(tree(tmp_path) / "train" / "cat" / "0.png")
    content = bytearray(bad.read_bytes())
    content[content.index(b"IDAT") + 1] ^= 0xFF
    bad.write_bytes(bytes(content))
    refused(tmp_path, bad)


def test_broken_link_is_named(tmp_path: Path) -> None:
    link = tree(tmp_path) / "train" / "cat" / "link.png"
    link.symlink_to(tmp_path / "gone.png")
    refused(tmp_path, link)


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(CIFAR10):
            for index in range(count):
                put(tmp_path / "cifar10" / part / name / f"{index:04}.jpg", 20 * number)
    return tmp_path


def test_cifar10_jpeg_files_are_read(cifar10: Path) -> None:
    found = data.load("cifar10", cifar10)
    assert (found.name, found.shape, found.class_names) == ("cifar10-jpeg", (3, 32, 32), CIFAR10)
    assert found.train_labels.tolist() == sorted([*range(10), *range(10)])
    assert found.test_labels.tolist() == list(range(10))
    assert abs(int(found.test_images[7, 0].float().mean()) - 140) <= 3


def test_cifar10_incomplete_batches_are_preferred(cifar10: Path) -> None:
    (cifar10 / "cifar-10-batches-py").mkdir()
    refusal("cifar10", "'cifar10'", "data_batch_1", error=NotFound, root=cifar10)


def test_cifar10_jpeg_with_wrong_files_is_refused(cifar10: Path) -> None:
    test = cifar10 / "cifar10" / "test"
    bad = put(test / "dog" / "0001.jpg", 0, size=(32, 31))
    refusal("cifar10", bad, "32x31", "32x32", root=cifar10)
    bad.unlink()
    for path in (test / "dog" / "0000.jpg", test / "dog"):
        path.unlink() if path.is_file() else path.rmdir()
        refusal("cifar10", test, root=cifar10)
    test.rename(cifar10 / "cifar10" / "elsewhere")
    refusal("cifar10", test, error=BadData, root=cifar10)
