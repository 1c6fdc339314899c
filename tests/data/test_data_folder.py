from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench import data
from bench.errors import BenchError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def refusal(name: str, root: Path | None = None) -> str:
    with pytest.raises(BenchError) as caught:
        data.load(name, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(file: Path, value: int = 0, mode: str = "RGB", size: tuple[int, int] = (32, 32)) -> Path:
    """A plain image; `size` is (width, height)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value // 2, 255 - value)).convert(mode).save(file)
    return file


def two_classes(path: Path, mode: str = "RGB") -> Path:
    for part, count in (("train", 3), ("test", 1)):
        for number, name in enumerate(("cat", "dog")):
            for index in range(count):
                put(path / part / name / f"{index}.png", 50 * number + 10 * index, mode)
    return path


def test_train_and_test_folders(tmp_path: Path) -> None:
    found = data.load(f"imagefolder:{two_classes(tmp_path / 'Pets')}")
    assert (found.name, found.shape, found.class_names) == ("imagefolder-pets", (3, 32, 32), ("cat", "dog"))
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.test_labels.tolist() == [0, 1]
    assert found.train_images[:, :, 4, 4].tolist() == [[v, v // 2, 255 - v] for v in (0, 10, 20, 50, 60, 70)]


def test_val_stands_in_for_test_only_where_there_is_none(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "val" / "cat" / "v.png", 77)
    assert data.load(f"imagefolder:{tmp_path}").test_labels.tolist() == [0, 1]
    for file in (tmp_path / "test").rglob("*.png"):
        file.unlink()
    for folder in (tmp_path / "test" / "cat", tmp_path / "test" / "dog", tmp_path / "test"):
        folder.rmdir()
    found = data.load(f"imagefolder:{tmp_path}")
    assert found.test_images[:, 0, 0, 0].tolist() == [77]


def test_one_tree_holds_out_a_sixth_of_each_class_by_hash(tmp_path: Path) -> None:
    for name, count in (("a", 13), ("b", 6), ("c", 5)):
        for index in range(count):
            put(tmp_path / name / "deep" / f"{index:02}.png", index, "L")
    found = data.load(f"imagefolder:{tmp_path}")
    assert found.train_labels.bincount().tolist() == [11, 5, 5]
    assert found.test_labels.tolist() == [0, 0, 1]

    def key(index: int) -> str:
        return hashlib.sha256(f"a/deep/{index:02}.png".encode()).hexdigest()

    held_out = sorted(sorted(range(13), key=key)[:2])
    grey = [int(np.asarray(Image.open(tmp_path / "a" / "deep" / f"{index:02}.png"))[0, 0]) for index in range(13)]
    assert found.test_images[:2, 0, 0, 0].tolist() == [grey[index] for index in held_out]
    kept = [grey[index] for index in range(13) if index not in held_out]
    assert found.train_images[:11, 0, 0, 0].tolist() == kept


def test_names_of_another_encoding_than_utf8_are_read(tmp_path: Path) -> None:
    """A zip archive with names in Latin 1 unpacks to such names."""
    for name in ("a", "b"):
        for index in range(8):
            put(tmp_path / name / f"{index}.png", 20 * index).rename(tmp_path / name / f"caf\udce9-{index}.png")
    found = data.load(f"imagefolder:{tmp_path}")
    assert (len(found.train_images), len(found.test_images)) == (14, 2)
    archive = tmp_path / "\udcff.npz"
    pixels = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(archive, **{f"{part}_{of}": value for part in ("train", "test") for of, value in
             (("images", pixels), ("labels", np.array([0, 1])))})  # fmt: skip
    assert data.load(f"npz:{archive}").name.startswith("npz-")


def test_holding_out_does_not_depend_on_where_the_tree_lies(tmp_path: Path) -> None:
    prints = set()
    for place in ("here", "there"):
        for index in range(24):
            put(tmp_path / place / "ab"[index % 2] / f"{index}.png", 5 * index)
        prints.add(data.load(f"imagefolder:{tmp_path / place}").fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_all_grey_is_one_channel(tmp_path: Path, mode: str) -> None:
    assert data.load(f"imagefolder:{two_classes(tmp_path, mode)}").shape == (1, 32, 32)


@pytest.mark.parametrize("part", ["train", "test"])
def test_one_colour_image_makes_all_of_them_rgb(tmp_path: Path, part: str) -> None:
    two_classes(tmp_path, "L")
    put(tmp_path / part / "dog" / "z.png", 9)
    found = data.load(f"imagefolder:{tmp_path}")
    assert found.shape == (3, 32, 32)
    grey = found.train_images[0]
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])
    colour = (found.train_images if part == "train" else found.test_images)[-1]
    assert colour[:, 0, 0].tolist() == [9, 4, 246]


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_other_8_bit_modes_are_read_as_rgb(tmp_path: Path, mode: str) -> None:
    assert data.load(f"imagefolder:{two_classes(tmp_path, mode)}").shape == (3, 32, 32)


def test_resizing_takes_the_central_square(tmp_path: Path) -> None:
    two_classes(tmp_path, "L")
    pixels = np.zeros((40, 80), dtype=np.uint8)
    pixels[:, 20:60] = 200
    Image.fromarray(pixels).save(tmp_path / "train" / "cat" / "0.png")
    Image.fromarray(pixels.T.copy()).save(tmp_path / "train" / "cat" / "1.png")
    found = data.load(f"imagefolder:{tmp_path}@16")
    assert found.shape == (1, 16, 16)
    assert found.name.endswith("-16px")
    assert (found.train_images[:2] == 200).all()


def test_an_image_of_the_right_size_is_not_touched(tmp_path: Path) -> None:
    two_classes(tmp_path, "L")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "train" / "cat" / "0.png")
    assert np.array_equal(data.load(f"imagefolder:{tmp_path}").train_images[0, 0].numpy(), pixels)


def test_colour_images_keep_rows_columns_and_channels(tmp_path: Path) -> None:
    two_classes(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "train" / "cat" / "0.png")
    found = data.load(f"imagefolder:{tmp_path}").train_images[0].numpy()
    assert np.array_equal(found.transpose(1, 2, 0), pixels)


def test_hidden_files_and_files_beside_the_classes_are_left_alone(tmp_path: Path) -> None:
    two_classes(tmp_path)
    before = data.load(f"imagefolder:{tmp_path}").fingerprint
    for file in (tmp_path / "README", tmp_path / "train" / "LICENCE", tmp_path / "train" / "cat" / ".DS_Store"):
        file.write_text("x")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / ".cache" / "x").write_text("x")
    (tmp_path / "train" / "cat" / ".thumbs").mkdir()
    (tmp_path / "train" / "cat" / ".thumbs" / "x").write_text("x")
    assert data.load(f"imagefolder:{tmp_path}").fingerprint == before


def test_missing_folder_and_a_file_in_its_place(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refusal(f"imagefolder:{tmp_path / 'nowhere'}")
    put(tmp_path / "a.png")
    assert str(tmp_path / "a.png") in refusal(f"imagefolder:{tmp_path / 'a.png'}")


def test_train_without_test(tmp_path: Path) -> None:
    put(tmp_path / "train" / "a" / "0.png")
    put(tmp_path / "train" / "b" / "0.png")
    message = refusal(f"imagefolder:{tmp_path}")
    assert "neither test/ nor val/" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("classes", [(), ("only",)])
def test_fewer_than_two_classes(tmp_path: Path, classes: tuple[str, ...]) -> None:
    for name in classes:
        put(tmp_path / name / "0.png")
    message = refusal(f"imagefolder:{tmp_path}")
    assert f"{len(classes)} class folder(s)" in message
    assert str(tmp_path) in message


def test_no_images_and_an_empty_class(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    message = refusal(f"imagefolder:{tmp_path}")
    assert "no images" in message
    assert str(tmp_path) in message
    for index in range(6):
        put(tmp_path / "a" / f"{index}.png")
    assert "no training images in class 'b'" in refusal(f"imagefolder:{tmp_path}")


def test_too_few_images_to_hold_one_out(tmp_path: Path) -> None:
    for index in range(10):
        put(tmp_path / "ab"[index % 2] / f"{index}.png")
    message = refusal(f"imagefolder:{tmp_path}")
    assert "no test images" in message
    assert str(tmp_path) in message


def test_test_class_unknown_to_train(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "test" / "eel" / "0.png")
    message = refusal(f"imagefolder:{tmp_path}")
    assert "test class 'eel'" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\0\x10JFIF", b"GIF89a"])
def test_files_that_are_no_images_are_named(tmp_path: Path, content: bytes) -> None:
    two_classes(tmp_path)
    for name in ("x.png", "y.png"):
        (tmp_path / "train" / "dog" / name).write_bytes(content)
    assert f"{tmp_path / 'train' / 'dog' / 'x.png'} is not a readable image" in refusal(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp"])
def test_truncated_images_are_named(tmp_path: Path, suffix: str) -> None:
    two_classes(tmp_path)
    bad = tmp_path / "test" / "dog" / f"bad.{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(bad)
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    assert str(bad) in refusal(f"imagefolder:{tmp_path}")


def test_flipped_byte_in_a_png_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    bad = tmp_path / "train" / "cat" / "0.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(bad)
    content = bytearray(bad.read_bytes())
    content[content.index(b"IDAT") + 1] ^= 0xFF
    bad.write_bytes(bytes(content))
    assert str(bad) in refusal(f"imagefolder:{tmp_path}")


def test_broken_links_are_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "train" / "cat" / "link.png").symlink_to(tmp_path / "gone.png")
    assert f"{tmp_path / 'train' / 'cat' / 'link.png'} is not a regular file" in refusal(f"imagefolder:{tmp_path}")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(CIFAR10):
            for index in range(count):
                put(tmp_path / "cifar10" / part / name / f"{index:04}.jpg", 20 * number)
    return tmp_path / "cifar10"


def test_cifar10_from_a_tree_of_jpeg_files(tree: Path) -> None:
    found = data.load("cifar10", tree.parent)
    assert (found.name, found.shape, found.class_names) == ("cifar10-jpeg", (3, 32, 32), CIFAR10)
    assert found.train_labels.tolist() == sorted([*range(10), *range(10)])
    assert found.test_labels.tolist() == list(range(10))
    assert abs(int(found.test_images[7, 0].float().mean()) - 140) <= 3


def test_cifar10_prefers_the_batches_even_when_they_are_incomplete(tree: Path) -> None:
    (tree.parent / "cifar-10-batches-py").mkdir()
    assert "'cifar10' not found" in refusal("cifar10", tree.parent)


def test_cifar10_tree_with_wrong_classes_or_sizes(tree: Path) -> None:
    bad = put(tree / "test" / "dog" / "0001.jpg", size=(32, 31))
    assert f"{bad} is 32x31, expected 32x32" in refusal("cifar10", tree.parent)
    bad.unlink()
    (tree / "test" / "dog" / "0000.jpg").unlink()
    assert str(tree / "test") in refusal("cifar10", tree.parent)
    (tree / "test" / "dog").rmdir()
    assert str(tree / "test") in refusal("cifar10", tree.parent)


def test_cifar10_tree_without_test(tree: Path) -> None:
    (tree / "test").rename(tree / "elsewhere")
    assert f"cannot list {tree / 'test'}" in refusal("cifar10", tree.parent)
