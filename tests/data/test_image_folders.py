"""A user's folders of image files, and CIFAR-10 unpacked to files: which folders are parts, which are classes."""

import hashlib
from itertools import product
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
    for part, name, index in product(parts or ("train", "test"), classes, range(count)):
        put(path / part / name / f"{index}.png", mode=mode)
    return path


def flat(path: Path, **counts: int) -> Path:
    """Write grey images of different brightness for each class, without parts."""
    for name, count in counts.items():
        for index in range(count):
            put(path / name / f"{index:02}.png", index)
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
    for (part, count), (number, name) in product((("train", 3), ("test", 1)), enumerate(("cat", "dog"))):
        for index in range(count):
            put(tmp_path / "Pets" / part / name / f"{index}.png", 50 * number + 10 * index)
    found = load(tmp_path / "Pets")
    assert (found.name, found.shape, found.class_names) == ("imagefolder-pets", (3, 32, 32), ("cat", "dog"))
    assert (found.train_labels.tolist(), found.test_labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    assert found.train_images[:, :, 4, 4].tolist() == [[v, v // 2, 255 - v] for v in (0, 10, 20, 50, 60, 70)]


@pytest.mark.parametrize(
    ("train", "test", "other", "mentioned"),
    [
        *((train, test, "", (f"{train}/", f"{test}/")) for train, test in (
            ("Training", "Testing"), ("TRAIN", "TEST"), ("Train", "Val"), ("training", "validation"),
            ("Training Set", "Test-Set"), ("train_set", "dev"),
        )),
        ("train", "TEST", "Valid/cat/0.png", ("Valid/", "TEST/")),
        ("train", "val", "test/0.png", ("test/",)),
    ],
)  # fmt: skip
def test_folder_parts_are_found_by_usual_names(
    tmp_path: Path, train: str, test: str, other: str, mentioned: tuple[str, ...]
) -> None:
    """A test part is preferred to a validation part, unless it has no classes."""
    tree(tree(tmp_path, train, count=5), test, count=2)
    if other:
        put(tmp_path / other)
    found = load(tmp_path)
    assert found.class_names == ("cat", "dog") and mentions(found, *mentioned)
    assert (len(found.train_images), len(found.test_images)) == (10, 4)


@pytest.mark.parametrize(
    ("made", "values"),
    [
        ("train/a/0.png Testing/a/0.png test/a/0.png", ("Testing/", "test/")),
        ("Test/a/0.png valid/a/0.png", ("Test/", "train/")),
        ("train/a/0.png train/b/0.png", ("test/", "val/")),
        ("Train/0.png Test/0.png", ("Train",)),
        ("Train/a/0.png Train/b/0.png Test/0.png", ("Test/",)),
        ("chest_xray/train/a/0.png chest_xray/test/a/0.png __MACOSX/", ("chest_xray",)),
        ("", ("0", "2 or more")),
        ("only/0.png", ("1", "2 or more")),
        ("a/ b/", ()),
        ("a/0.png a/1.png a/2.png a/3.png a/4.png a/5.png b/", ("'b'",)),
        ("a/1.png a/2.png a/3.png a/4.png a/5.png b/0.png", ("PATH/test",)),
        ("train/a/0.png train/b/0.png test/a/0.png test/eel/0.png", ("'eel'",)),
    ],
)
def test_folder_with_unclear_parts_or_classes_is_refused(tmp_path: Path, made: str, values: tuple[str, ...]) -> None:
    for name in made.split():
        (tmp_path / name).mkdir(parents=True) if name.endswith("/") else put(tmp_path / name)
    refused(tmp_path, *values)


def test_folder_class_called_train_is_a_class(tmp_path: Path) -> None:
    found = load(flat(tmp_path, bus=7, train=7))
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
    for place in ("here", "there"):
        found = load(flat(tmp_path / place, **{"a/deep": 13, "b/deep": 6, "c/deep": 5}))
        assert found.train_labels.bincount().tolist() == [11, 5, 5] and found.test_labels.tolist() == [0, 0, 1]
        names = [f"a/deep/{index:02}.png" for index in range(13)]
        held_out = sorted(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:2])
        assert found.test_images[:2, 0, 0, 0].tolist() == [names.index(name) for name in held_out]
        kept = [index for index, name in enumerate(names) if name not in held_out]
        assert found.train_images[:11, 0, 0, 0].tolist() == kept


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    """A zip archive with names in Latin 1 unpacks to such names."""
    for file in flat(tmp_path / "in", a=8, b=8).rglob("*.png"):
        file.rename(file.with_name(f"caf\udce9-{file.name}"))
    found = load(tmp_path / "in")
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


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\0\x10JFIF", b"GIF89a"])
def test_file_that_is_not_an_image_is_named(tmp_path: Path, content: bytes) -> None:
    bad = tree(tmp_path) / "train" / "dog" / "x.png"
    bad.write_bytes(content)
    refused(tmp_path, bad, "--skip-broken")


@pytest.mark.parametrize("name", ["cut.png", "cut.jpg", "cut.gif", "cut.bmp", "flipped.png", "link.png"])
def test_damaged_image_is_named(tmp_path: Path, name: str) -> None:
    bad = put(tree(tmp_path) / "test" / "dog" / name)
    content = bytearray(bad.read_bytes())
    if name == "link.png":
        bad.unlink()
        bad.symlink_to(tmp_path / "gone.png")
    elif name == "flipped.png":
        content[content.index(b"IDAT") + 1] ^= 0xFF
        bad.write_bytes(bytes(content))
    else:
        bad.write_bytes(content[: len(content) // 2])
    refused(tmp_path, bad)


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    for part, (number, name) in product(("train", "train", "test"), enumerate(CIFAR10)):
        folder = tmp_path / "cifar10" / part / name
        put(folder / f"{len(list(folder.glob('*'))):04}.jpg", 20 * number)
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
