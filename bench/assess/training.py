"""Train the models of an assessment, the unprotected control and reference models; finished ones are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench import nets
from bench.assess.models import BATCH
from bench.nets import Classifier
from bench.progress import track
from bench.seeds import derive
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit, predict
from bench.teachers.weights import load, save

CONTROL = "dense-cnn"
ROUNDS, ROUND = 6, 10
"""The control is trained for at most 6 rounds of 10 passes, until it fits its records."""
FITTED = 0.995
"""Training accuracy from which on the control counts as overfitted."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trainer:
    """Trains and stores networks for images of one shape.

    Attributes:
        shape: (c, h, w).
        classes: number of outputs.
        network: name of the network.
        epochs: epochs of a reference model's training.
        seed: seed of weights and of the order of records.
        folder: folder for finished weights, so that an interrupted assessment resumes; None = do not store them.
    """

    shape: tuple[int, int, int]
    classes: int
    network: str = CONTROL
    epochs: int = 30
    seed: int = 0
    folder: Path | None = None

    def control(self, images: Tensor, labels: Tensor) -> Classifier:
        """Train an unprotected network until it fits (n, c, h, w) uint8 images; no weight decay, no augmentation."""
        recipe = Recipe(epochs=ROUND, batch=64, shift=0, weight_decay=0.0)

        def train(model: Classifier) -> None:
            with track("unprotected control", ROUNDS) as advance:
                for number in range(ROUNDS):
                    fit(model, images, labels, recipe, CPU, derive(self.seed, "control", number))
                    advance(1)
                    if float((predict(model, images, CPU, BATCH).argmax(1) == labels).double().mean()) >= FITTED:
                        advance(ROUNDS - number - 1)
                        return

        return self._once("control", images, labels, {"rounds": ROUNDS, "passes": ROUND}, train)

    def reference(self, images: Tensor, labels: Tensor, number: int) -> Classifier:
        """Train reference model `number` by the standard recipe, without augmentation or weight decay."""
        recipe = Recipe(epochs=self.epochs, batch=64, shift=0, weight_decay=0.0)

        def train(model: Classifier) -> None:
            with track(f"reference model {number + 1}", recipe.steps(len(images))) as advance:
                fit(model, images, labels, recipe, CPU, derive(self.seed, "reference", number), advance)

        return self._once(f"reference-{number}", images, labels, {"epochs": self.epochs}, train)

    def _once(
        self, name: str, images: Tensor, labels: Tensor, settings: dict[str, int], train: Callable[[Classifier], None]
    ) -> Classifier:
        """Return a trained network, from its file if that exists."""
        arch = nets.identify(self.network)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, name))
            model = nets.build(arch, self.shape, self.classes)
        path = None
        if self.folder is not None:
            digest = hashlib.sha256(json.dumps([arch, self.classes, self.seed, settings], sort_keys=True).encode())
            digest.update(images.contiguous().numpy().data)
            digest.update(labels.numpy().tobytes())
            path = self.folder / f"{name}-{digest.hexdigest()[:16]}.safetensors"
        if path is not None and path.is_file():
            load(path, model)
        else:
            train(model)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished")
                save(unfinished, model)
                unfinished.replace(path)
        return model.eval().requires_grad_(False)
