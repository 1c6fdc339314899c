"""Canaries: inserted by fair coins, read by an assessment, and decisive for a claim about examples."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from models_made import CLASSES, SHAPE, images

import bench
from bench import nets
from bench.assess import canaries
from bench.assess.canaries import read_canaries
from bench.assess.records import ReadAs, read_records
from bench.cli import main
from bench.errors import BenchError
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit
from bench.teachers.weights import save

SIZED = ReadAs(size=8)


def insert(tmp_path: Path, data: Path, count: int = 200) -> Path:
    words = ["--data", str(data), "--count", str(count), "--out", str(tmp_path / "c"), "--seed", "3"]
    assert main(["canaries", "insert", *words]) == 0
    return tmp_path / "c"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Canaries in an archive of 400 images."""
    return insert(tmp_path, images(400, 0).save(tmp_path / "data.npz"))


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, bool]]:
    """Canaries in a folder of 200 images, and their coins by file."""
    made = insert(tmp_path, images(200, 0).folder(tmp_path / "data"), 80)
    with (made / "canaries" / "coins.csv").open(newline="") as stream:
        return made, {row["file"]: row["coin"] == "1" for row in csv.DictReader(stream)}


def test_inserted_canaries_have_wrong_labels_and_follow_coins(archive: Path) -> None:
    data = images(400, 0)
    with np.load(archive / "train.npz") as train, np.load(archive / "canaries.npz") as inserted:
        kept = {image.tobytes(): label for image, label in zip(train["images"], train["labels"], strict=True)}
        coins = inserted["coins"]
        assert len(train["labels"]) == 400 - int((~coins).sum()) and 70 <= int(coins.sum()) <= 130
        original = {image.numpy().tobytes(): int(label) for image, label in zip(data.images, data.labels, strict=True)}
        for image, label, coin in zip(inserted["images"], inserted["labels"], coins, strict=True):
            assert label != original[image.tobytes()] and 0 <= label < CLASSES
            assert kept.get(image.tobytes()) == (label if coin else None)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    data = images(100, 0).save(tmp_path / "data.npz")
    for count, word in ((49, "50 to 50"), (51, "50 to 50")):
        with pytest.raises(BenchError, match=word):
            canaries.insert(data, count, tmp_path / "new", 0)
    with pytest.raises(BenchError, match="exists"):
        canaries.insert(data, 50, tmp_path, 0)


@pytest.mark.thorough
def test_a_model_that_memorises_its_canaries_refutes_a_claim(tmp_path: Path, archive: Path) -> None:
    with np.load(archive / "train.npz") as train:
        x, y = torch.from_numpy(train["images"]), torch.from_numpy(train["labels"])
    torch.manual_seed(0)
    model = nets.build("dense-cnn", SHAPE, CLASSES)
    fit(model, x, y, Recipe(epochs=40, batch=32, shift=0, weight_decay=0), torch.device("cpu"), 0)
    save(tmp_path / "a.safetensors", model)
    others = images(320, 1).save(tmp_path / "others.npz")
    given = {"network": "dense-cnn", "attacks": ["loss"], "canaries": archive / "canaries.npz"}
    claim = "epsilon=1 delta=1e-5 unit=example"
    found = bench.assess(tmp_path / "a.safetensors", archive / "train.npz", others, claim=claim, **given)
    assert found.canaries is not None and found.canaries.guesses == 20 and found.canaries.correct >= 18
    assert (found.canaries.epsilon_lower_gaussian or 0) > found.canaries.epsilon_lower > 0.5
    assert found.claim is not None and found.claim.finding == "refuted" and "canaries" in found.claim.sentence
    untrained = nets.build("dense-cnn", SHAPE, CLASSES).eval()
    like = read_records(archive / "train.npz", ReadAs())
    nothing = canaries.audit(untrained, CLASSES, read_canaries(archive / "canaries.npz", like), 1e-5)
    assert nothing.epsilon_lower == 0
    with pytest.raises(BenchError, match="canaries insert"):
        read_canaries(others, like)


def test_canaries_are_inserted_into_folders_of_images(tmp_path: Path, folder: tuple[Path, dict[str, bool]]) -> None:
    made, coins = folder
    before = {path.read_bytes(): path.parent.name for path in (tmp_path / "data").rglob("*.png")}
    train = {path.read_bytes(): path.parent.name for path in (made / "train").rglob("*.png")}
    assert len(coins) == 80 and 25 <= sum(coins.values()) <= 55 and len(train) == 200 - 80 + sum(coins.values())
    for name, coin in coins.items():
        content = (made / "canaries" / name).read_bytes()
        label = name.split("/")[0]
        assert label != before[content] and train.get(content) == (label if coin else None)
    others = {content: label for content, label in train.items() if before[content] == label}
    assert len(others) == 120


def test_canaries_of_a_folder_are_assessed(tmp_path: Path, folder: tuple[Path, dict[str, bool]]) -> None:
    made, coins = folder
    ones = {content.read_bytes() for content in (made / "train").rglob("*.png")}
    inserted = read_canaries(made, read_records(made / "train", SIZED), SIZED)
    assert len(inserted.coins) == 80 and int(inserted.coins.sum()) == sum(coins.values())
    files = sorted((made / "canaries").rglob("*.png"), key=lambda path: path.relative_to(tmp_path).as_posix())
    assert [path.read_bytes() in ones for path in files] == inserted.coins.tolist()
    assert [int(path.parent.name[-1]) for path in files] == inserted.labels.tolist()
    (made / "canaries" / "coins.csv").write_text("file,coin\n")
    with pytest.raises(BenchError):
        read_canaries(made, read_records(made / "train", SIZED), SIZED)
