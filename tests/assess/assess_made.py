"""Small image sets, models trained on them, score sets with a known amount of leakage, and files of all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bench import nets
from bench.nets import Classifier
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit

CLASSES, SHAPE = 3, (1, 8, 8)


@dataclass(frozen=True)
class Made:
    """(n, 1, 8, 8) uint8 images, (n,) int64 labels."""

    images: Tensor
    labels: Tensor

    def save(self, path: Path, **arrays: object) -> Path:
        np.savez(path, images=self.images[:, 0].numpy(), labels=self.labels.numpy(), **arrays)
        return path

    def folder(self, path: Path) -> Path:
        for number, (image, label) in enumerate(zip(self.images, self.labels.tolist(), strict=True)):
            (path / f"class{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(path / f"class{label}" / f"{path.name}{number:04}.png")
        return path


def images(n: int, seed: int, noise: float = 90, brighter: float = 0) -> Made:
    """Blobs in one of three places under noise: hard enough to be memorised."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    values = rng.normal(100 + brighter, noise, (n, 8, 8))
    for number, label in enumerate(labels):
        values[number, label * 2 + 1 : label * 2 + 3, 2:6] += 60
    return Made(torch.from_numpy(values.clip(0, 255).astype(np.uint8))[:, None], torch.from_numpy(labels))


@cache
def trained(n: int = 150, seed: int = 0, epochs: int = 12) -> Classifier:
    """A network that overfits `images(n, seed)`."""
    data = images(n, seed)
    torch.manual_seed(0)
    model = nets.build("dense-cnn", SHAPE, CLASSES)
    fit(model, data.images, data.labels, Recipe(epochs=epochs, batch=32, shift=0), torch.device("cpu"), 0)
    return model


Floats = NDArray[np.float64]


def made_logits(n: int, shift: float, seed: int, classes: int = 3) -> tuple[Floats, NDArray[np.int64]]:
    """(n, classes) logits whose true class has N(1 + shift, 1), and (n,) labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) * 0.1
    logits[np.arange(n), labels] += rng.normal(1 + shift, 1, n)
    return logits, labels


def write_csv(path: Path, columns: dict[str, object]) -> Path:
    rows = zip(*(list(values) for values in columns.values()), strict=True)  # type: ignore[call-overload]
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_logits(path: Path, n: int, shift: float, seed: int, **columns: object) -> Path:
    logits, labels = made_logits(n, shift, seed)
    wide = {f"logit_{place}": logits[:, place] for place in range(logits.shape[1])}
    return write_csv(path, {"label": labels, **wide, **columns})
