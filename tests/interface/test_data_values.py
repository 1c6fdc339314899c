"""Arrays, folders and data sets of torch and Hugging Face give the same data sets as equal files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

import bench
from bench import data
from bench.data import ImageData, OwnDataset
from bench.errors import BadData, BadOption, BenchError, NotFound

SIDE = 12


def made(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images = np.random.RandomState(seed).randint(0, 256, (count, SIDE, SIDE, 3))
    return images.astype(np.uint8), np.arange(count) % 3


X, Y = made(60, 0)
X_TEST, Y_TEST = made(12, 1)


def read(own: OwnDataset, out: Path) -> ImageData:
    return data.load(own.save(out), reading=own.reading)


def has_pixels(found: ImageData) -> bool:
    """Whether the images of both parts are those above."""
    parts = ((found.train_images, X), (found.test_images, X_TEST))
    return all(torch.equal(images, torch.tensor(x).permute(0, 3, 1, 2)) for images, x in parts)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x.transpose(0, 3, 1, 2),
        lambda x: torch.tensor(x),
        lambda x: torch.tensor(x).permute(0, 3, 1, 2),
        lambda x: (x / 255).astype(np.float32),
        lambda x: torch.tensor(x / 255, dtype=torch.float64),
    ],
    ids=["nhwc", "nchw", "tensor nhwc", "tensor nchw", "float32", "float64 tensor"],
)
def test_from_arrays_reads_every_form_as_the_same_pixels(form: Callable[[Any], Any], tmp_path: Path) -> None:
    found = read(data.from_arrays(form(X), Y, form(X_TEST), Y_TEST, name="mine"), tmp_path)
    assert has_pixels(found) and found.train_labels.tolist() == Y.tolist() and found.name == "npz-mine"


def test_from_arrays_reads_ranges_grey_images_and_names(tmp_path: Path) -> None:
    grey = X[..., 0].astype(np.float32) / 127.5 - 1
    own = data.from_arrays(grey, Y, name="mine", value_range=(-1, 1), class_names=["a", "b", "c"], size=16, channels=3)
    found = read(own, tmp_path)
    assert found.shape == (3, 16, 16) and found.class_names == ("a", "b", "c")
    plain = read(data.from_arrays(X[..., 0], Y, name="mine"), tmp_path)
    assert plain.shape == (1, SIDE, SIDE) and len(plain.test_labels) == len(Y) // 6


def test_from_arrays_is_not_changed_by_the_caller(tmp_path: Path) -> None:
    x = X.copy()
    own = data.from_arrays(x, Y, name="mine")
    x[:] = 0
    assert read(own, tmp_path).train_images.any()
    with pytest.raises(AttributeError):
        own.name = "another"  # type: ignore[misc]


def test_from_arrays_is_written_once_by_content(tmp_path: Path) -> None:
    places = [data.from_arrays(X, Y, name="mine").save(tmp_path) for _ in range(2)]
    other = data.from_arrays(X, (Y + 1) % 3, name="mine").save(tmp_path)
    assert places[0] == places[1] != other and len(list(tmp_path.rglob("*"))) == 5


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((BadData, {"x": x}) for x in (X * 1.0, X / 127.5 - 1, X[0, 0], np.full((60, 8, 8), np.nan), "images",
                                        [[1], [1, 2]])),
        *((BadData, {"y": y}) for y in (Y[:3], np.zeros(60, int), None)),
        (BadData, {"x_test": X_TEST}),
        (BadData, {"x_test": X_TEST[:, :8, :8], "y_test": Y_TEST}),
        (BadData, {"x_test": X_TEST, "y_test": Y_TEST + 5}),
        (BadData, {"class_names": ["a", "b"]}),
        *((BadOption, {"name": name}) for name in ("My Data", "../up", "")),
        *((BadOption, {"value_range": value_range}) for value_range in ((1, 0), (0, np.inf), 255)),
        *((BadOption, given) for given in ({"size": 4}, {"channels": 2})),
        (BenchError, {"fit": "bend"}),
    ],
    ids=lambda given: "" if isinstance(given, type) else str(given),
)  # fmt: skip
def test_from_arrays_refuses_bad_input(kind: type[BenchError], given: dict[str, Any]) -> None:
    with pytest.raises(kind) as error:
        data.from_arrays(**{"x": X, "y": Y, "name": "mine"} | given)
    assert "\n" not in str(error.value) and "--pixel-range" not in str(error.value)


def written(folder: Path) -> Path:
    for part, images, labels in (("train", X, Y), ("test", X_TEST, Y_TEST)):
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / part / f"c{label}" / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    return folder


def test_from_folder_reads_class_folders(tmp_path: Path) -> None:
    own = data.from_folder(written(tmp_path / "x-rays@64"), size=SIDE)
    found = read(own, tmp_path / "out")
    assert found.shape == (3, SIDE, SIDE) and found.class_names == ("c0", "c1", "c2")
    assert sorted(map(bytes, found.test_images.numpy())) == sorted(bytes(x.transpose(2, 0, 1)) for x in X_TEST)
    assert read(data.from_folder(tmp_path / "x-rays@64"), tmp_path / "out").shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("folder", "size", "kind"), [("missing", None, NotFound), ("empty", None, BadData), ("some", 2000, BadOption)]
)
def test_from_folder_refuses_bad_input(folder: str, size: int | None, kind: type[BenchError], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    written(tmp_path / "some")
    with pytest.raises(kind):
        data.from_folder(tmp_path / folder, size=size)


class Items:
    """A map-style data set."""

    classes = ("a", "b", "c")

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.images[number], self.labels[number]


@pytest.mark.parametrize(
    "form",
    [lambda x: torch.tensor(x).permute(2, 0, 1) / 255, Image.fromarray, lambda x: x],
    ids=["tensor", "pillow", "array"],
)
def test_from_torch_reads_every_item(form: Callable[[Any], Any], tmp_path: Path) -> None:
    parts = [Items([form(x) for x in images], labels) for images, labels in ((X, Y), (X_TEST, torch.tensor(Y_TEST)))]
    found = read(data.from_torch(*parts), tmp_path)
    assert has_pixels(found) and found.class_names == Items.classes
    assert found.test_labels.tolist() == Y_TEST.tolist() and found.name == "npz-items"


@pytest.mark.parametrize(
    "dataset",
    [
        Items([X[0], X[1][:4]], [0, 1]),
        Items([Image.fromarray(X[0]).convert("RGBA")], [0]),
        Items(["image"], [0]),
        Items([], []),
        iter([(X[0], 0)]),
        [X[0], X[1]],
    ],
    ids=["sizes", "mode", "text", "empty", "iterator", "no pairs"],
)
def test_from_torch_refuses_bad_input(dataset: Any) -> None:
    with pytest.raises(BadData):
        data.from_torch(dataset, name="mine")


class Rows(list[dict[str, Any]]):
    """Rows with features, as the library `datasets` has them."""

    features: ClassVar[dict[str, Any]] = {"label": SimpleNamespace(names=["a", "b", "c"])}


def rows(images: Any, labels: Any) -> Rows:
    return Rows({"image": Image.fromarray(x), "label": int(y)} for x, y in zip(images, labels, strict=True))


def test_from_huggingface_reads_splits_and_class_names(tmp_path: Path) -> None:
    splits = {"train": rows(X, Y), "validation": rows(X_TEST, Y_TEST)}
    found = read(data.from_huggingface(splits, name="mine", size=SIDE), tmp_path)
    assert has_pixels(found) and found.class_names == ("a", "b", "c") and found.name == "hf-mine-12px"


def test_from_huggingface_reads_sizes_and_other_columns(tmp_path: Path) -> None:
    several = [{"img": Image.fromarray(x[: 6 + k % 6]), "y": f"c{k % 2}"} for k, x in enumerate(X)]
    found = read(data.from_huggingface(several, name="mine", image="img", label="y"), tmp_path)
    assert found.shape == (3, 32, 32) and found.class_names == ("c0", "c1") and len(found.test_labels) == 10


def test_from_huggingface_reads_its_own_folder(tmp_path: Path) -> None:
    splits = {"train": rows(X, Y), "test": rows(X_TEST, Y_TEST)}
    folder = data.from_huggingface(splits, name="mine").save(tmp_path).removeprefix("hf:").removesuffix("@32")
    whole = data.from_huggingface(splits, name="mine", size=SIDE)
    again = data.from_huggingface(folder, size=SIDE)
    assert read(again, tmp_path).fingerprint == read(whole, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"dataset_or_path": "/missing"}, NotFound),
        ({"dataset_or_path": 3, "name": "mine"}, BadData),
        ({"dataset_or_path": rows(X, Y)}, BadOption),
        ({"dataset_or_path": [], "name": "mine"}, BadData),
        ({"dataset_or_path": rows(X, Y), "name": "mine", "image": "picture"}, BadData),
        ({"dataset_or_path": [{"image": X[0], "label": 0}], "name": "mine"}, BadData),
        ({"dataset_or_path": [{"image": Image.fromarray(X[0]), "label": None}], "name": "mine"}, BadData),
        ({"dataset_or_path": {"unknown": rows(X, Y)}, "name": "mine"}, BadData),
    ],
    ids=lambda given: "" if isinstance(given, type) else str(sorted(given)),
)
def test_from_huggingface_refuses_bad_input(given: dict[str, Any], kind: type[BenchError]) -> None:
    with pytest.raises(kind):
        data.from_huggingface(**given)


@pytest.mark.thorough
def test_run_on_arrays_removes_copies_and_uses_os_noise(tmp_path: Path) -> None:
    images = data.load("digits")
    x, y, x_test = (part.numpy() for part in (images.train_images, images.train_labels, images.test_images))
    x = np.concatenate([x, x_test[:7]])  # seven test images leak into the training part
    y = np.concatenate([y, images.test_labels[:7].numpy()])
    own = data.from_arrays(x, y, x_test, images.test_labels, name="leaky")
    result = bench.run("rr", dataset=own, tier="smoke", teacher="datalens", out=tmp_path)
    counted = json.loads((result.path / "record.json").read_bytes())["provenance"]["images"]
    assert sum(counted["copies_removed"].values()) >= 7 and counted["test"] == len(x_test)
    assert result.privacy.noise == "os" and result.record.spec.release.teacher.data.dataset == "npz-leaky"


@pytest.mark.parametrize(
    "given", [{"fit": "pad"}, {"pixel_range": (0, 1)}, {"dataset": X}], ids=["fit", "range", "array"]
)
def test_run_refuses_a_second_reading_or_an_array(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadOption):
        bench.run("rr", out=tmp_path, **{"dataset": data.from_arrays(X, Y, name="mine")} | given)
