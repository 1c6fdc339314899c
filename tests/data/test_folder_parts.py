"""Which folders of a user's tree are parts, which are classes, and which are not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import data
from bench.data import ImageData
from bench.errors import BenchError

RNG = np.random.default_rng(0)


def put(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (16, 16), dtype=np.uint8)).save(file)


def tree(path: Path, *parts: str, classes: tuple[str, ...] = ("cat", "dog"), count: int = 3) -> Path:
    put(*(path / part / name / f"{index}.png" for part in parts for name in classes for index in range(count)))
    return path


def load(path: Path, skip_broken: bool = False) -> ImageData:
    return data.load(f"imagefolder:{path}@16", skip_broken=skip_broken)


def refusal(path: Path) -> str:
    with pytest.raises(BenchError) as caught:
        load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("TRAIN", "TEST"),
        ("Train", "Val"),
        ("train", "valid"),
        ("training", "validation"),
        ("Training Set", "Test-Set"),
        ("train_set", "dev"),
    ],
)
def test_parts_of_any_usual_name_are_no_classes(tmp_path: Path, train: str, test: str) -> None:
    tree(tmp_path, train, count=5)
    found = load(tree(tmp_path, test, count=2))
    assert found.class_names == ("cat", "dog")
    assert (len(found.train_images), len(found.test_images)) == (10, 4)
    assert any(f"{train}/" in said and f"{test}/" in said for said in found.conversions)


def test_test_is_taken_before_validation(tmp_path: Path) -> None:
    found = load(tree(tree(tmp_path, "train", "Valid", count=2), "TEST", count=4))
    assert len(found.test_images) == 8
    assert any("Valid/ is not read" in said for said in found.conversions)


def test_validation_is_the_test_where_the_test_has_no_classes(tmp_path: Path) -> None:
    tree(tmp_path, "train", "val")
    put(*(tmp_path / "test" / f"{index}.png" for index in range(5)))
    found = load(tmp_path)
    assert len(found.test_images) == 6
    assert any("test/ has no class folders" in said for said in found.conversions)


def test_two_folders_of_one_part_are_refused(tmp_path: Path) -> None:
    message = refusal(tree(tmp_path, "train", "Testing", "test"))
    assert "Testing/" in message and "test/" in message


def test_a_test_without_training_is_refused(tmp_path: Path) -> None:
    assert "no folder for training" in refusal(tree(tmp_path, "Test", "valid"))


def test_parts_without_class_folders_are_refused(tmp_path: Path) -> None:
    put(*(tmp_path / part / f"{index}.png" for part in ("Train", "Test") for index in range(8)))
    assert "no class folders" in refusal(tmp_path)


def test_a_class_called_train_beside_others_is_a_class(tmp_path: Path) -> None:
    put(*(tmp_path / name / f"{index}.png" for name in ("bus", "train") for index in range(7)))
    found = load(tmp_path)
    assert found.class_names == ("bus", "train")
    assert any("train/ is a class" in said for said in found.conversions)


def test_other_folders_beside_the_parts_are_said(tmp_path: Path) -> None:
    tree(tmp_path, "train", "test")
    put(tmp_path / "extra" / "x.png", tmp_path / "loose.png")
    said = load(tmp_path).conversions
    assert any("extra/" in line for line in said) and any("1 image files" in line for line in said)


@pytest.mark.parametrize(
    "clutter",
    ["__MACOSX/train/cat/._0.png", "train/cat/Thumbs.db", "train/cat/desktop.ini", "train/@eaDir/0.png",
     "train/cat/@eaDir/0.png", ".DS_Store", "train/.DS_Store", "train/__MACOSX/0.png", "train/dog/.cache/0.png"],
)  # fmt: skip
def test_files_of_systems_are_left_alone(tmp_path: Path, clutter: str) -> None:
    before = load(tree(tmp_path, "train", "test")).fingerprint
    (tmp_path / clutter).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / clutter).write_bytes(b"no image")
    assert load(tmp_path).fingerprint == before


def test_the_folder_around_a_tree_is_named(tmp_path: Path) -> None:
    tree(tmp_path / "chest_xray", "train", "test")
    (tmp_path / "__MACOSX").mkdir()
    assert str(tmp_path / "chest_xray") in refusal(tmp_path)


def test_test_classes_may_differ_in_case(tmp_path: Path) -> None:
    tree(tmp_path, "train")
    found = load(tree(tmp_path, "test", classes=("Cat", "DOG"), count=2))
    assert found.class_names == ("cat", "dog") and found.test_labels.tolist() == [0, 0, 1, 1]


def test_empty_classes_are_all_named_and_left_out_on_demand(tmp_path: Path) -> None:
    tree(tmp_path, "train", "test")
    for name in ("ant", "eel"):
        (tmp_path / "train" / name).mkdir()
    put(tmp_path / "test" / "eel" / "0.png")
    message = refusal(tmp_path)
    assert "'ant'" in message and "'eel'" in message and "--skip-broken" in message
    found = load(tmp_path, skip_broken=True)
    assert found.class_names == ("cat", "dog") and found.left_out == ("train/ant/", "train/eel/")
    assert len(found.test_images) == 6
