"""Damaged files of an interrupted assessment are never used: the part is computed again, and a line says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.assess.attacks import finished
from bench.assess.training import Trainer
from bench.nets import Classifier
from bench.storage.store import Store

SCORES = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def fill_with_garbage(file: Path) -> None:
    file.write_bytes(b"\x93NUMPY garbage")


def change_size(file: Path) -> None:
    save_file({"scores": SCORES[:2].clone()}, file)


def replace_by_foreign_scores(file: Path) -> None:
    save_file({"scores": SCORES + 1}, file)


def replace_by_foreign_step(file: Path) -> None:
    other = next(each for each in file.parent.parent.iterdir() if each.is_dir() and each != file.parent)
    shutil.rmtree(file.parent)
    shutil.copytree(other, file.parent)


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "damage", [truncate, fill_with_garbage, change_size, replace_by_foreign_scores, replace_by_foreign_step, remove]
)
def test_damaged_scores_are_computed_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    made: list[int] = []
    said: list[str] = []
    network = nn.Linear(2, 2)

    def scores(seed: int) -> Tensor:
        def make() -> dict[str, Tensor]:
            made.append(seed)
            return {"scores": SCORES + 10 * seed}

        work = Store(tmp_path, notify=said.append)
        return finished(work, "label-only", [seed], [network], [SCORES], make)["scores"]

    scores(0)
    others = set(tmp_path.rglob("*.safetensors"))
    scores(1)
    assert (scores(1) == SCORES + 10).all() and made == [0, 1] and not said
    (file,) = set(tmp_path.rglob("*.safetensors")) - others
    damage(file)
    assert (scores(1) == SCORES + 10).all() and made == [0, 1, 1]
    assert len(said) == 1 and "damaged" in said[0] and "\n" not in said[0]


def test_damaged_weights_are_trained_again(tmp_path: Path) -> None:
    said: list[str] = []
    trainings = []

    def train(model: Classifier) -> None:
        trainings.append(1)
        with torch.no_grad():
            next(model.parameters()).fill_(0.25)

    def control() -> Classifier:
        trainer = Trainer((1, 8, 8), 3, work=Store(tmp_path, notify=said.append))
        images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 3
        return trainer._once("control", images, labels, {}, train)

    first = control()
    file = next(tmp_path.rglob("*.safetensors"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second = control()
    assert len(trainings) == 2 and len(said) == 1
    assert all((ours == theirs).all() for ours, theirs in zip(first.parameters(), second.parameters(), strict=True))
