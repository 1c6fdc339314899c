"""A user's arrays in every unambiguous form, and refusals of ambiguous ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import data
from bench.data import ImageData
from bench.data.dataset import Fit, Reading
from bench.errors import BenchError

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (16, 8, 8), dtype=np.uint8)
LABELS = np.arange(16) % 3
NAMES = ("x_train", "y_train", "x_test", "y_test")


def parts(images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, names: tuple[str, ...] = NAMES) -> Arrays:
    """12 training and 4 test images."""
    return dict(zip(names, (images[:12], labels[:12], images[12:], labels[12:]), strict=True))


def load(folder: Path, arrays: Arrays, reading: Reading | None = None) -> ImageData:
    np.savez(folder / "my.npz", **arrays)
    return data.load(f"npz:{folder / 'my.npz'}", **({} if reading is None else {"reading": reading}))


def refusal(folder: Path, arrays: Arrays, reading: Reading | None = None) -> str:
    with pytest.raises(BenchError) as caught:
        load(folder, arrays, reading)
    assert "\n" not in str(caught.value) and str(folder / "my.npz") in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    return load(tmp_path_factory.mktemp("usual"), parts())


@pytest.mark.parametrize(
    "names",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X_train", "Y_train", "X_test", "Y_test"),
        ("train_x", "train_y", "test_x", "test_y"),
        ("xtrain", "ytrain", "xtest", "ytest"),
        ("images_training", "targets_training", "images_testing", "targets_testing"),
        ("train_data", "train_labels", "test_data", "test_labels"),
        ("x_train", "y_train", "x_val", "y_val"),
    ],
)
def test_arrays_of_any_usual_name_are_the_same(tmp_path: Path, usual: ImageData, names: tuple[str, ...]) -> None:
    assert load(tmp_path, parts(names=names)).fingerprint == usual.fingerprint


def test_two_names_of_one_meaning_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, parts() | {"train_images": IMAGES[:12]})
    assert "train_images" in message and "x_train" in message


def test_arrays_without_a_test_part_hold_out_a_sixth_by_number(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    found = load(tmp_path, {"x": images, "y": np.arange(60) % 3})
    assert (len(found.train_images), len(found.test_images)) == (50, 10)
    changed = images.copy()
    changed[7] = 255 - changed[7]
    again = load(tmp_path, {"x": changed, "y": np.arange(60) % 3})
    moved = [(a != b).flatten(1).any(1).sum() for a, b in
             ((found.train_images, again.train_images), (found.test_images, again.test_images))]  # fmt: skip
    assert sum(map(int, moved)) == 1


@pytest.mark.parametrize(
    ("images", "pixel_range"),
    [
        (IMAGES / 255, None),
        ((IMAGES / 255).astype(np.float32), None),
        (IMAGES.astype(np.int16), None),
        (IMAGES.astype(np.int64), None),
        (IMAGES.astype(np.uint16) * 257, None),
        ((IMAGES.astype(np.uint16) * 257).astype(">u2"), None),
        (IMAGES / 127.5 - 1, (-1, 1)),
        (IMAGES * 1.0, (0, 255)),
        (IMAGES.astype(np.uint16), (0, 255)),
        (IMAGES.astype(np.int16) * 10 - 1000, (-1000, 1550)),
    ],
)
def test_pixels_of_every_dtype_are_read(
    tmp_path: Path, usual: ImageData, images: np.ndarray, pixel_range: tuple[float, float] | None
) -> None:
    found = load(tmp_path, parts(images), Reading(pixel_range=pixel_range))
    assert found.fingerprint == usual.fingerprint
    assert any(f"{images.dtype} pixels" in said for said in found.conversions)


def test_booleans_are_black_and_white(tmp_path: Path) -> None:
    found = load(tmp_path, parts(IMAGES > 100))
    assert np.array_equal(found.train_images[:, 0].numpy(), np.where(IMAGES[:12] > 100, 255, 0))


@pytest.mark.parametrize(
    ("images", "declaration"),
    [
        (IMAGES / 127.5 - 1, "--pixel-range -1,1"),
        (IMAGES * 1.0, "--pixel-range 0,255"),
        (IMAGES.astype(np.int16) * 16, "--pixel-range 0,4095"),
        (IMAGES.astype(np.int32) - 300, "--pixel-range LOW,HIGH"),
        (IMAGES.astype(np.uint16), "--pixel-range 0,1 or 0,255"),
        ((IMAGES > 100).astype(np.uint8), "--pixel-range 0,1"),
        ((IMAGES > 100).astype(np.int64), "--pixel-range 0,1"),
    ],
)
def test_pixels_of_an_uncertain_range_ask_for_it(tmp_path: Path, images: np.ndarray, declaration: str) -> None:
    assert declaration in refusal(tmp_path, parts(images))


@pytest.mark.parametrize(
    "form",
    [
        lambda images: images,
        lambda images: images.astype(np.int32),
        lambda images: images.astype(np.uint16) * 257,
        lambda images: images / 255,
        lambda images: images > 100,
    ],
)
def test_replacing_a_record_changes_no_other_image(tmp_path: Path, form: Callable[[np.ndarray], np.ndarray]) -> None:
    """The darkest and the brightest record: a range found from the data would move all others."""
    before = load(tmp_path, parts(form(IMAGES)))
    for value in (0, 255):
        changed = IMAGES.copy()
        changed[3] = value
        after = load(tmp_path, parts(form(changed)))
        assert (before.train_images != after.train_images).flatten(1).any(1).nonzero().flatten().tolist() == [3]
        assert torch.equal(before.test_images, after.test_images)


def test_channels_may_come_first_or_last(tmp_path: Path) -> None:
    colours = RNG.integers(0, 256, (16, 8, 8, 3), dtype=np.uint8)
    last = load(tmp_path, parts(colours))
    first = load(tmp_path, parts(colours.transpose(0, 3, 1, 2)))
    assert first.fingerprint == last.fingerprint and first.shape == (3, 8, 8)
    assert any("channels" in said for said in first.conversions)
    assert load(tmp_path, parts(IMAGES[:, None])).shape == (1, 8, 8)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_arrays_that_are_not_square_become_square(tmp_path: Path, fit: Fit) -> None:
    images = np.zeros((16, 8, 12, 3), np.uint8)
    images[:, :, 2:10] = 200
    images[:, :, 3:9, 0] = RNG.integers(100, 200, (16, 8, 6))
    found = load(tmp_path, parts(images), Reading(fit=fit))
    side = 8 if fit == "crop" else 12
    assert found.shape == (3, side, side) and any("8x12" in said and fit in said for said in found.conversions)
    green = found.train_images[0, 1]
    if fit == "crop":
        assert (green == 200).all()
    elif fit == "pad":
        assert (green[:2] == 0).all() and (green[-2:] == 0).all() and (green[2:-2, 2:10] == 200).all()
    else:
        assert (green[:, 2:10] == 200).all() and (green[:, :2] == 0).all()


WORDS = np.array(["eel", "cat", "dog"])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (LABELS + 1, ("1", "2", "3")),
        (LABELS * 10 + 5, ("5", "15", "25")),
        (LABELS.astype(np.float32), ("0", "1", "2")),
        (np.eye(3)[LABELS], ("0", "1", "2")),
        (np.eye(3, dtype=bool)[LABELS], ("0", "1", "2")),
        (np.sort(WORDS)[LABELS], ("cat", "dog", "eel")),
        (np.sort(WORDS).astype("S")[LABELS][:, None], ("cat", "dog", "eel")),
    ],
)
def test_labels_of_every_form_are_numbered(
    tmp_path: Path, usual: ImageData, labels: np.ndarray, names: tuple[str, ...]
) -> None:
    found = load(tmp_path, parts(labels=labels))
    assert (found.fingerprint, found.class_names) == (usual.fingerprint, names)
    if names != ("0", "1", "2"):
        assert any(all(f"{k} = {name}" in said for k, name in enumerate(names)) for said in found.conversions)


def test_boolean_labels_and_signs_are_two_classes(tmp_path: Path) -> None:
    assert load(tmp_path, parts(labels=LABELS > 0)).class_names == ("False", "True")
    signs = load(tmp_path, parts(labels=np.where(LABELS > 0, 1, -1)))
    assert signs.class_names == ("-1", "1") and signs.train_labels.tolist() == (LABELS[:12] > 0).astype(int).tolist()


def test_class_names_declare_the_classes_and_their_order(tmp_path: Path, usual: ImageData) -> None:
    found = load(tmp_path, parts() | {"class_names": WORDS})
    assert (found.fingerprint, found.class_names) == (usual.fingerprint, tuple(WORDS))
    assert load(tmp_path, parts(labels=WORDS[LABELS]) | {"class_names": WORDS}).fingerprint == usual.fingerprint


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"class_names": np.array(["a", "b"])}, "hold class 2"),
        ({"class_names": np.array(["a", "b", "c", "d"])}, "have no class d"),
        ({"class_names": np.array(["a", "a", "b"])}, "different words"),
        ({"class_names": np.arange(3)}, "different words"),
    ],
)
def test_class_names_that_do_not_fit_are_refused(tmp_path: Path, extra: Arrays, says: str) -> None:
    assert says in refusal(tmp_path, parts() | extra)


@pytest.mark.parametrize("labels", [LABELS - 1, np.where(LABELS == 2, -1, LABELS)])
def test_negative_labels_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    assert "missing label" in refusal(tmp_path, parts(labels=labels))


def test_npy_files_are_an_archive_in_a_folder(tmp_path: Path, usual: ImageData) -> None:
    for key, array in parts().items():
        np.save(tmp_path / f"{key}.npy", array)
    found = data.load(f"npy:{tmp_path}")
    assert found.fingerprint == usual.fingerprint and found.name.startswith("npy-")
    np.save(tmp_path / "y_test.npy", np.array([{}] * 4, dtype=object))
    with pytest.raises(BenchError, match=r"y_test\.npy cannot be read \(an array of Python objects\)"):
        data.load(f"npy:{tmp_path}")
    with pytest.raises(BenchError, match="no folder"):
        data.load(f"npy:{tmp_path / 'x_train.npy'}")


def test_torch_files_of_every_form_are_the_same(tmp_path: Path, usual: ImageData) -> None:
    tensors = {key: torch.from_numpy(array.copy()) for key, array in parts().items()}
    torch.save(tensors, tmp_path / "all.pt")
    for folder in ("each", "pairs"):
        (tmp_path / folder).mkdir()
    for key, tensor in tensors.items():
        torch.save(tensor, tmp_path / "each" / f"{key}.pt")
    for part in ("train", "test"):
        torch.save((tensors[f"x_{part}"], tensors[f"y_{part}"]), tmp_path / "pairs" / f"{part}.pt")
    for name in ("all.pt", "each", "pairs"):
        assert data.load(f"pt:{tmp_path / name}").fingerprint == usual.fingerprint
    assert data.slug(f"pt:{tmp_path / 'all.pt'}") == "pt-all"
    torch.save(tensors | {"x_train": (tensors["x_train"] / 255).bfloat16()}, tmp_path / "all.pt")
    assert data.load(f"pt:{tmp_path / 'all.pt'}").shape == (1, 8, 8)


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_torch_files_run_no_code(tmp_path: Path) -> None:
    tensors: Arrays = {key: torch.from_numpy(array.copy()) for key, array in parts().items()}
    for other in (Evil(tmp_path / "trap"), np.zeros(3), torch.nn.Linear(2, 2)):
        torch.save(tensors | {"extra": other}, tmp_path / "bad.pt")
        with pytest.raises(BenchError, match="cannot be read as tensors"):
            data.load(f"pt:{tmp_path / 'bad.pt'}")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    "content", [torch.zeros(3), [1, 2, 3], {"x": torch.zeros(3)}, {1: torch.zeros(3)}, 7, {"x": 1, "y": 2}]
)
def test_torch_files_without_images_and_labels_are_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "bad.pt")
    with pytest.raises(BenchError, match=r"bad\.pt"):
        data.load(f"pt:{tmp_path / 'bad.pt'}")


def test_truncated_torch_files_are_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(30, 8, 8), "y": torch.zeros(30)}, tmp_path / "all.pt")
    content = (tmp_path / "all.pt").read_bytes()
    for tenth in range(10):
        (tmp_path / "cut.pt").write_bytes(content[: len(content) * tenth // 10])
        with pytest.raises(BenchError, match=r"cut\.pt"):
            data.load(f"pt:{tmp_path / 'cut.pt'}")
