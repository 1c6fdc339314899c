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
from bench.assess.canaries import read_canaries
from bench.assess.records import ReadAs, read_records
from bench.cli import main
from bench.errors import BenchError
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit
from bench.teachers.weights import save

SIZED = ReadAs(size=8)


def insert(tmp_path: Path, n: int = 400, count: int = 200) -> Path:
    data = images(n, 0).save(tmp_path / "data.npz")
    words = [
        "canaries",
        "insert",
        "--data",
        str(data),
        "--count",
        str(count),
        "--out",
        str(tmp_path / "c"),
        "--seed",
        "3",
    ]
    assert main(words) == 0
    return tmp_path / "c"


def test_inserted_canaries_have_wrong_labels_and_follow_coins(tmp_path: Path) -> None:
    folder = insert(tmp_path)
    with np.load(folder / "train.npz") as train, np.load(folder / "canaries.npz") as canaries:
        kept = {image.tobytes(): label for image, label in zip(train["images"], train["labels"], strict=True)}
        coins = canaries["coins"]
        assert len(train["labels"]) == 400 - int((~coins).sum()) and 70 <= int(coins.sum()) <= 130
        original = {image.numpy().tobytes(): int(label) for image, label in zip(*_parts(400), strict=True)}
        for image, label, coin in zip(canaries["images"], canaries["labels"], coins, strict=True):
            assert label != original[image.tobytes()] and 0 <= label < CLASSES
            assert kept.get(image.tobytes()) == (label if coin else None)


def _parts(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = images(n, 0)
    return data.images, data.labels


def test_bad_input_is_refused(tmp_path: Path) -> None:
    data = images(100, 0).save(tmp_path / "data.npz")
    for count, word in ((49, "50 to 50"), (51, "50 to 50")):
        with pytest.raises(BenchError, match=word):
            from bench.assess.canaries import insert as insert_canaries

            insert_canaries(data, count, tmp_path / "new", 0)
    with pytest.raises(BenchError, match="exists"):
        insert_canaries(data, 50, tmp_path, 0)


@pytest.mark.thorough
def test_a_model_that_memorises_its_canaries_refutes_a_claim(tmp_path: Path) -> None:
    folder = insert(tmp_path)
    with np.load(folder / "train.npz") as train:
        x, y = torch.from_numpy(train["images"]), torch.from_numpy(train["labels"])
    torch.manual_seed(0)
    model = nets.build("dense-cnn", SHAPE, CLASSES)
    fit(model, x, y, Recipe(epochs=40, batch=32, shift=0, weight_decay=0), torch.device("cpu"), 0)
    save(tmp_path / "a.safetensors", model)
    others = images(320, 1).save(tmp_path / "others.npz")
    given = {"network": "dense-cnn", "attacks": ["loss"], "canaries": folder / "canaries.npz"}
    claim = "epsilon=1 delta=1e-5 unit=example"
    found = bench.assess(tmp_path / "a.safetensors", folder / "train.npz", others, claim=claim, **given)
    assert found.canaries is not None and found.canaries.guesses == 20 and found.canaries.correct >= 18
    assert (found.canaries.epsilon_lower_gaussian or 0) > found.canaries.epsilon_lower > 0.5
    assert found.claim is not None and found.claim.finding == "refuted" and "canaries" in found.claim.sentence
    untrained = nets.build("dense-cnn", SHAPE, CLASSES).eval()
    from bench.assess.canaries import audit, read_canaries
    from bench.assess.records import ReadAs, read_records

    like = read_records(folder / "train.npz", ReadAs())
    nothing = audit(untrained, CLASSES, read_canaries(folder / "canaries.npz", like), 1e-5)
    assert nothing.epsilon_lower == 0
    with pytest.raises(BenchError, match="canaries insert"):
        read_canaries(others, like)


def test_canaries_are_inserted_into_folders_of_images(tmp_path: Path) -> None:
    data = images(200, 0).folder(tmp_path / "data")
    words = ["canaries", "insert", "--data", str(data), "--count", "80", "--out", str(tmp_path / "c"), "--seed", "3"]
    assert main(words) == 0
    with (tmp_path / "c" / "canaries" / "coins.csv").open(newline="") as stream:
        coins = {row["file"]: row["coin"] == "1" for row in csv.DictReader(stream)}
    before = {path.read_bytes(): path.parent.name for path in data.rglob("*.png")}
    train = {path.read_bytes(): path.parent.name for path in (tmp_path / "c" / "train").rglob("*.png")}
    assert len(coins) == 80 and 25 <= sum(coins.values()) <= 55 and len(train) == 200 - 80 + sum(coins.values())
    for name, coin in coins.items():
        content = (tmp_path / "c" / "canaries" / name).read_bytes()
        label = name.split("/")[0]
        assert label != before[content] and train.get(content) == (label if coin else None)
    others = {content: label for content, label in train.items() if before[content] == label}
    assert len(others) == 120


def test_canaries_of_a_folder_are_assessed(tmp_path: Path) -> None:
    data = images(200, 0).folder(tmp_path / "data")
    words = ["canaries", "insert", "--data", str(data), "--count", "80", "--out", str(tmp_path / "c"), "--seed", "3"]
    assert main(words) == 0
    with (tmp_path / "c" / "canaries" / "coins.csv").open(newline="") as stream:
        coins = {row["file"]: row["coin"] == "1" for row in csv.DictReader(stream)}
    ones = {content.read_bytes() for content in (tmp_path / "c" / "train").rglob("*.png")}
    inserted = read_canaries(tmp_path / "c", read_records(tmp_path / "c" / "train", SIZED), SIZED)
    assert len(inserted.coins) == 80 and int(inserted.coins.sum()) == sum(coins.values())
    files = sorted((tmp_path / "c" / "canaries").rglob("*.png"), key=lambda path: path.relative_to(tmp_path).as_posix())
    assert [path.read_bytes() in ones for path in files] == inserted.coins.tolist()
    assert [int(path.parent.name[-1]) for path in files] == inserted.labels.tolist()
    (tmp_path / "c" / "canaries" / "coins.csv").write_text("file,coin\n")
    with pytest.raises(BenchError):
        read_canaries(tmp_path / "c", read_records(tmp_path / "c" / "train", SIZED), SIZED)
