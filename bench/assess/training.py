"""Train the models of an assessment, the unprotected control and reference models; finished ones are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bench import nets
from bench.api.context import Artifacts
from bench.assess.models import BATCH
from bench.nets import Classifier
from bench.progress import track
from bench.seeds import derive
from bench.teachers.recipes.standard import Recipe
from bench.teachers.training import fit, predict

CONTROL, EVALUATOR = "dense-cnn", "evaluator-cnn"
ROUNDS, ROUND = 6, 10
"""The control is trained for at most 6 rounds of 10 passes, until it fits its records."""
FITTED = 0.995
"""Training accuracy from which on the control counts as overfitted."""
JUDGE_EPOCHS, JUDGE_STEPS, JUDGE_STEPS_OF_CLASS = 60, (300, 1000), 30
"""Most passes of the evaluator. Most steps: 30 for each class, but between 300 and 1,000. On 5,000 images of CIFAR-10,
150 / 300 steps give 52 / 59 % (Fashion-MNIST: 86 / 88 %)."""
CPU = torch.device("cpu")


class InMemory:
    """Finished parts of an assessment that keeps no files."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, Tensor]] = {}

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors made once per key, as `bench.api.context.Artifacts`."""
        name = f"{kind} {sorted(key.items())}"
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


@dataclass(frozen=True)
class Trainer:
    """Trains and stores networks for images of one shape.

    Attributes:
        shape: (c, h, w).
        classes: number of outputs.
        network: name of the network.
        epochs: epochs of a reference model's training.
        seed: seed of weights and of the order of records.
        work: store of finished weights, so that an interrupted assessment resumes.
    """

    shape: tuple[int, int, int]
    classes: int
    network: str = CONTROL
    epochs: int = 30
    seed: int = 0
    work: Artifacts = field(default_factory=InMemory)

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

    def evaluator(self, images: Tensor, labels: Tensor) -> Classifier:
        """Train the network that judges reconstructions, on augmented (n, c, h, w) uint8 images."""
        fewest, most = JUDGE_STEPS
        steps = min(max(fewest, JUDGE_STEPS_OF_CLASS * self.classes), most)
        recipe = Recipe(epochs=JUDGE_EPOCHS, max_steps=steps, batch=64, shift=1)

        def train(model: Classifier) -> None:
            with track("evaluator", recipe.steps(len(images))) as advance:
                fit(model, images, labels, recipe, CPU, derive(self.seed, "evaluator"), advance)

        settings = {"epochs": recipe.epochs, "steps": recipe.max_steps}
        return replace(self, network=EVALUATOR)._once("evaluator", images, labels, settings, train)

    def untrained(self) -> Classifier:
        """Return a network with random weights."""
        return self._build("untrained").eval().requires_grad_(False)

    def _build(self, name: str) -> Classifier:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, name))
            return nets.build(nets.identify(self.network), self.shape, self.classes)

    def _once(
        self, name: str, images: Tensor, labels: Tensor, settings: dict[str, int], train: Callable[[Classifier], None]
    ) -> Classifier:
        """Return a trained network, with its stored weights if it was trained before."""
        model = self._build(name)
        digest = hashlib.sha256(images.contiguous().numpy().data)
        digest.update(labels.numpy().tobytes())
        arch = nets.identify(self.network)
        key = {"arch": arch, "classes": self.classes, "seed": self.seed, "data": digest.hexdigest(), **settings}

        def make() -> dict[str, Tensor]:
            train(model)
            return {weight: value.detach().clone() for weight, value in model.state_dict().items()}

        model.load_state_dict(self.work.get(name, key, make))
        return model.eval().requires_grad_(False)
