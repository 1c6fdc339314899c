"""Training on noisy labels, shared by the label-privacy baselines: options, and passes over the private images.

Training is standard: passes over the records in random order, with SGD or Adam; each pass drops the last incomplete
batch. Orders, augmentation and mixup do not depend on the labels. `label_privacy.py` has the labels' privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import nets, validate
from bench.api import Context, Teacher
from bench.config import Departure, Size
from bench.data import to_float
from bench.data.affine import random_affine
from bench.dp_training.label_privacy import label_epsilon
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget, Unit
from bench.privacy.events import check_response_epsilon
from bench.seeds import derive

RowLoss = Callable[[Tensor, Tensor, float], Tensor]
"""Loss per record: (b, c) logits, (b,) record indices, fraction of the training done in [0, 1) -> (b,) losses."""

SMOKE = {"epochs": 1, "batch": 32}
QUICK = {"epochs": 3, "least_steps": 300, "batch": 256}
BY_TIME = "set by time on two CPU cores, without looking at any accuracy"
"""End of a reason: how a setting was chosen."""
ADAM = Departure(
    what="Adam at 1e-3 with a rate that falls along a cosine, instead of the published SGD and schedule",
    why=f"the published schedule needs far more steps than a few passes have; {BY_TIME}",
    sets={"optimizer": "adam", "rate": 1e-3, "schedule": "cosine"},
)
NO_WARMUP = Departure(
    what="no warm-up of the learning rate",
    why=f"the warm-up would take a share of the few passes; {BY_TIME}",
    sets={"warmup": 0.0},
)
NO_WEIGHT_DECAY = Departure(
    what="no weight decay",
    why=f"the published weight decay is meant for SGD and many passes; {BY_TIME}",
    sets={"weight_decay": 0.0},
)
NO_AUGMENTATION = Departure(
    what="training images are not augmented",
    why=f"augmentation takes time in every step; {BY_TIME}",
    sets={"augment": False},
)


@dataclass(frozen=True)
class LabelPrivate:
    """Options of training on noisy labels, and the shared checks; the defaults are Ghazi et al.'s (2021)."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    releases_images: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.LABEL)
    responds: ClassVar[bool] = True
    """Whether labels are randomised by randomised response, whose finite epsilons have an upper limit."""
    only_with: ClassVar[dict[str, str]] = {"momentum": "optimizer=sgd", "drop": "schedule=steps"}

    label_epsilon: float = 1.0
    """epsilon of one label's randomisation, used if no budget determines it (--epsilon none or --solve none)."""
    epochs: Size[int] = 200
    """Passes over the records in each training stage."""
    least_steps: Size[int] = 0
    """Smallest number of steps in a stage; small data sets get more passes to reach it."""
    batch: Size[int] = 512
    """Records per step; at least 2."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    rate: float = 0.4
    """Highest learning rate."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 1e-4
    """L2 penalty on all parameters."""
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    """Learning rate after the warm-up: multiplied by `drop` at 30, 60 and 90 % of the steps (steps), falling along a
    cosine, or constant."""
    warmup: float = 0.15
    """Share of the steps in which the rate rises linearly."""
    drop: float = 0.1
    """Factor on the learning rate at every drop of schedule `steps`."""
    augment: bool = True
    """Randomly rotate, scale, shear and shift images a little whenever they are used."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "epochs")
        validate.at_least(self, 2, "batch")
        validate.at_least(self, 0, "least_steps", "weight_decay", "momentum", "warmup")
        validate.below(self, 1, "momentum", "warmup")
        validate.positive(self, "label_epsilon", "rate", "drop")
        if self.optimizer == "sgd" and self.momentum == 0:
            raise ValueError("momentum is 0; expected more, as Nesterov's SGD needs it (or optimizer adam)")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, for a budget that label privacy cannot meet."""
        epsilon = self.epsilon_of(budget)
        if self.responds:
            check_response_epsilon(epsilon, 2)

    def epsilon_of(self, budget: Budget) -> float:
        """Return the epsilon of one label's randomisation within `budget`, as `label_privacy.label_epsilon`."""
        return label_epsilon(budget, self.label_epsilon)

    def network(self, teacher: Teacher, student: str, ctx: Context) -> Classifier:
        """Build an untrained student on the context's device."""
        return ctx.prepared(nets.build(student, teacher.shape, teacher.classes))

    def train(
        self,
        model: Classifier,
        images: Tensor,
        records: Tensor,
        loss: RowLoss,
        ctx: Context,
        stage: str,
        mixup: float = 0.0,
    ) -> None:
        """Train `model` in place on the given records; it ends in eval mode.

        Args:
            images: (n, c, h, w) uint8, on the context's device.
            records: (m,) int64 indices of the training records; m at least 2.
            loss: must depend on noisy labels only.
            stage: label of the progress bar and of the random generators.
            mixup: alpha of the Beta distribution of mixup weights; 0 = no mixup.

        Raises:
            BenchError: fewer than 2 records.
            RuntimeError: the weights became NaN or infinite.
        """
        if len(records) < 2:
            raise BenchError(f"{stage}: {len(records)} private record(s) to train on; expected at least 2")
        batch = min(self.batch, len(records))
        per_epoch = len(records) // batch
        total = max(self.epochs * per_epoch, self.least_steps)
        rng, mix = ctx.generator(stage), np.random.default_rng(derive(ctx.seed, stage, "mixup"))
        compiled = ctx.compiled(model)
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(model.parameters(), lr=self.rate, weight_decay=self.weight_decay)
        else:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=self.rate, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=True
            )
        model.train()
        with ctx.track(stage, total) as advance:
            for step in range(total):
                position = step % per_epoch
                if position == 0:
                    shuffled = records[torch.randperm(len(records), generator=rng, device=rng.device)]
                chosen = shuffled[position * batch : (position + 1) * batch]
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * self.rate_factor(step, total)
                share = mix.beta(mixup, mixup) if mixup else 1.0
                partner = torch.randperm(batch, generator=rng, device=rng.device)
                x = to_float(images[chosen])
                x = random_affine(x, rng) if self.augment else x
                x = share * x + (1 - share) * x[partner] if mixup else x
                with ctx.precision():
                    logits = compiled(x)
                rows = loss(logits.float(), chosen, step / total)
                if mixup:
                    rows = share * rows + (1 - share) * loss(logits.float(), chosen[partner], step / total)
                optimizer.zero_grad(set_to_none=True)
                rows.mean().backward()
                optimizer.step()
                advance(1)
        optimizer.zero_grad(set_to_none=True)
        model.eval()
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            raise RuntimeError(f"{stage}: the weights became NaN or infinite; lower the learning rate")

    def rate_factor(self, step: int, total: int) -> float:
        """Return the learning rate of step `step` in [0, total - 1], divided by the highest rate."""
        rising = int(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        if self.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * (step - rising) / (total - rising))
        if self.schedule == "constant":
            return 1.0
        return self.drop ** sum(10 * step >= at * total for at in (3, 6, 9))


def cross_entropy(labels: Tensor) -> RowLoss:
    """Return the cross-entropy loss for the given labels, (n,) int64, one per record."""
    return lambda logits, chosen, done: F.cross_entropy(logits, labels[chosen], reduction="none")
