from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import data
from bench.errors import BenchError

KEYS = ("train_images", "train_labels", "test_images", "test_labels")


def parts(shape: tuple[int, ...] = (8, 8), seed: int = 0) -> dict[str, Any]:
    """A good archive: 12 training and 4 test images, 3 classes."""
    rng = np.random.default_rng(seed)
    return {
        "train_images": rng.integers(0, 256, (12, *shape), dtype=np.uint8),
        "train_labels": np.arange(12) % 3,
        "test_images": rng.integers(0, 256, (4, *shape), dtype=np.uint8),
        "test_labels": np.arange(4) % 3,
    }


def save(tmp_path: Path, arrays: dict[str, Any]) -> str:
    np.savez(tmp_path / "my.npz", **arrays)
    return f"npz:{tmp_path / 'my.npz'}"


def refusal(name: str) -> str:
    """The one line; it must name the file."""
    with pytest.raises(BenchError) as caught:
        data.load(name)
    assert "\n" not in str(caught.value)
    assert name.removeprefix("npz:") in str(caught.value)
    return str(caught.value)


def test_grey_round_trip(tmp_path: Path) -> None:
    arrays = parts()
    found = data.load(save(tmp_path, arrays))
    assert (found.name, found.shape, found.class_names) == ("npz-my", (1, 8, 8), ("0", "1", "2"))
    assert np.array_equal(found.train_images[:, 0].numpy(), arrays["train_images"])
    assert np.array_equal(found.test_images[:, 0].numpy(), arrays["test_images"])
    assert found.train_labels.tolist() == arrays["train_labels"].tolist()
    assert found.test_labels.tolist() == arrays["test_labels"].tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_round_trip(tmp_path: Path, channels: int) -> None:
    arrays = parts((8, 8, channels))
    found = data.load(save(tmp_path, arrays))
    assert found.shape == (channels, 8, 8)
    assert np.array_equal(found.train_images.numpy().transpose(0, 2, 3, 1), arrays["train_images"])


def test_grey_with_and_without_a_channel_axis_are_the_same_data(tmp_path: Path) -> None:
    arrays = parts()
    flat = data.load(save(tmp_path, arrays)).fingerprint
    arrays = {key: value[..., None] if "images" in key else value for key, value in arrays.items()}
    assert data.load(save(tmp_path, arrays)).fingerprint == flat


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_in_0_1_are_rounded_to_uint8(tmp_path: Path, dtype: type) -> None:
    arrays = parts()
    as_floats = {key: (value / 255).astype(dtype) if "images" in key else value for key, value in arrays.items()}
    found = data.load(save(tmp_path, as_floats))
    assert np.array_equal(found.train_images[:, 0].numpy(), arrays["train_images"])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_column_labels_of_any_integer_type(tmp_path: Path, dtype: type) -> None:
    arrays = parts()
    for key in ("train_labels", "test_labels"):
        arrays[key] = arrays[key].astype(dtype)[:, None]
    assert data.load(save(tmp_path, arrays)).train_labels.tolist() == [0, 1, 2] * 4


def test_val_joins_train(tmp_path: Path) -> None:
    arrays = parts()
    arrays |= {"val_images": np.full((2, 8, 8), 7, dtype=np.uint8), "val_labels": np.array([2, 3])}
    found = data.load(save(tmp_path, arrays))
    assert found.classes == 4
    assert found.train_labels.tolist() == [*([0, 1, 2] * 4), 2, 3]
    assert (found.train_images[-2:] == 7).all()
    assert len(found.test_labels) == 4


def test_compressed_big_endian_and_fortran_order(tmp_path: Path) -> None:
    arrays = parts()
    expected = data.load(save(tmp_path, arrays)).fingerprint
    arrays["train_images"] = np.asfortranarray(arrays["train_images"])
    arrays["train_labels"] = arrays["train_labels"].astype(">i4")
    np.savez_compressed(tmp_path / "other.npz", **arrays)
    assert data.load(f"npz:{tmp_path / 'other.npz'}").fingerprint == expected


def test_path_is_seen_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, parts())
    monkeypatch.chdir(tmp_path)
    assert data.load("npz:my.npz").classes == 3


def test_missing_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    assert "no file" in refusal(f"npz:{tmp_path / 'gone.npz'}")
    assert "no file" in refusal(f"npz:{tmp_path}")


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage " * 50, b"PK\x03\x04" + b"\0" * 99, b"\x93NUMPY\x01\0v\0"])
def test_files_that_are_no_archives(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    assert "not a readable .npz archive" in refusal(f"npz:{tmp_path / 'bad.npz'}")


def test_truncated_archives_at_every_tenth(tmp_path: Path) -> None:
    save(tmp_path, parts())
    content = (tmp_path / "my.npz").read_bytes()
    for tenth in range(10):
        (tmp_path / "cut.npz").write_bytes(content[: len(content) * tenth // 10])
        refusal(f"npz:{tmp_path / 'cut.npz'}")


def test_flipped_byte_in_an_array(tmp_path: Path) -> None:
    name = save(tmp_path, parts())
    content = bytearray((tmp_path / "my.npz").read_bytes())
    content[300] ^= 0xFF
    (tmp_path / "my.npz").write_bytes(bytes(content))
    assert "train_images cannot be read" in refusal(name)


def test_single_array_and_foreign_zip(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "single array" in refusal(f"npz:{tmp_path / 'one.npy'}")
    with zipfile.ZipFile(tmp_path / "foreign.npz", "w") as archive:
        for key in KEYS:
            archive.writestr(key, "text")
    assert "train_images is not a NumPy array" in refusal(f"npz:{tmp_path / 'foreign.npz'}")


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    name = save(tmp_path, parts() | {"test_labels": np.array([Evil(trap)], dtype=object)})
    assert "test_labels cannot be read (an array of Python objects)" in refusal(name)
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Evil(trap)))
    refusal(f"npz:{tmp_path / 'bare.npz'}")
    assert not trap.exists()


@pytest.mark.parametrize("key", KEYS)
def test_missing_key_is_named_with_what_was_found(tmp_path: Path, key: str) -> None:
    arrays = parts()
    arrays["extra"] = arrays.pop(key)
    message = refusal(save(tmp_path, arrays))
    assert f"has no {key}; found " in message
    assert "extra" in message


@pytest.mark.parametrize("key", ["val_images", "val_labels"])
def test_half_a_validation_set(tmp_path: Path, key: str) -> None:
    arrays = parts()
    arrays[key] = arrays[key.replace("val", "test")]
    other = ({"val_images", "val_labels"} - {key}).pop()
    assert f"has no {other}; found " in refusal(save(tmp_path, arrays))


def uint8(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.uint8)


def floats(value: float) -> np.ndarray:
    array = np.full((12, 8, 8), 0.5)
    array[3, 2, 1] = value
    return array


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("train_labels", np.arange(11) % 3, "12 train_images but 11 train_labels"),
        ("test_images", uint8(5, 8, 8), "5 test_images but 4 test_labels"),
        ("train_images", uint8(12, 64), "(12, 64), expected (n, h, w)"),
        ("train_images", uint8(12, 1, 8, 8, 1), "expected (n, h, w)"),
        ("train_images", uint8(12, 8, 8, 2), "2 channels; expected (n, h, w)"),
        ("train_images", uint8(12, 8, 8, 4), "4 channels"),
        ("train_images", uint8(12, 3, 8, 3), "channels may be first or last"),
        ("train_images", uint8(12, 8, 9), "test_images are (1, 8, 8), train_images (1, 8, 9)"),
        ("train_images", uint8(0, 8, 8), "holds no pixels"),
        ("test_images", uint8(4, 0, 0), "holds no pixels"),
        ("train_images", np.full((12, 8, 8), 256), "int64 from 256 to 256, expected 0 to 255"),
        ("train_images", np.full((12, 8, 8), -1, dtype=np.int16), "int16 from -1 to -1, expected 0 to 255"),
        ("train_images", uint8(12, 8, 8).astype("U1"), "dtype <U1"),
        ("train_images", uint8(12, 8, 8).astype(complex), "dtype complex128"),
        ("train_images", floats(1.0001), "from 0.5 to 1.0001, expected 0 to 1"),
        ("train_images", floats(-1e-6), "from -1e-06 to 0.5, expected 0 to 1"),
        ("train_images", floats(float("nan")), "NaN or infinite"),
        ("train_images", floats(float("inf")), "NaN or infinite"),
        ("train_labels", np.eye(3)[np.arange(12) % 3] * 2, "several per image"),
        ("train_labels", np.ones((12, 3)), "several per image"),
        ("train_labels", np.eye(3)[np.arange(12) % 3], "one-hot rows of 3 classes, test_labels whole numbers"),
        ("train_labels", np.zeros((12, 1, 1), dtype=np.int64), "expected (n,) or (n, 1)"),
        ("train_labels", np.array(3), "expected (n,) or (n, 1)"),
        ("train_labels", np.arange(12) % 3 - 1, "run from -1 to 1"),
        ("train_labels", np.arange(12) % 3 * 1.5, "not whole numbers"),
        ("train_labels", np.arange(12) % 2 == 0, "booleans, test_labels whole numbers"),
        ("train_labels", np.array(list("abc") * 4), "words, test_labels whole numbers"),
        ("train_labels", np.full(12, 2**64 - 1, dtype=np.uint64), "expected whole numbers below 2^63"),
        ("train_labels", np.array(["a", ""] * 6), "6 empty words"),
        ("train_labels", np.arange(12) % 3 * 1j, "dtype complex128"),
        ("train_labels", np.zeros(12, dtype=np.int64), "hold 1 class; expected 2 or more"),
        ("train_labels", np.arange(12) % 3 * 10**12, "test_labels hold class 1, which is not in train_labels"),
        ("train_labels", np.arange(12) % 3 + 1, "test_labels hold class 0, which is not in train_labels"),
        ("test_labels", np.array([0, 1, 2, 3]), "test_labels hold class 3"),
        ("test_images", uint8(4, 9, 9), "test_images are (1, 9, 9), train_images (1, 8, 8)"),
        ("test_images", uint8(4, 8, 8, 3), "test_images are (3, 8, 8), train_images (1, 8, 8)"),
    ],
)
def test_unsuitable_arrays(tmp_path: Path, key: str, value: np.ndarray, says: str) -> None:
    message = refusal(save(tmp_path, parts() | {key: value}))
    assert says in message
    assert key in message or key.split("_")[0] in message


def test_validation_images_are_checked_like_the_others(tmp_path: Path) -> None:
    arrays = parts() | {"val_images": uint8(2, 9, 9), "val_labels": np.array([0, 1])}
    assert "val_images are (1, 9, 9)" in refusal(save(tmp_path, arrays))
