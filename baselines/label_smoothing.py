"""Label smoothing: undefended training with smoothed labels; a reference without a teacher or a privacy guarantee.

Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, section 7; Struppek,
Hintersdorf, Kersting, "Be Careful What You Smooth For: Label Smoothing Can Be a Privacy Shield but Also a Catalyst for
Model Inversion Attacks", ICLR 2024, for negative smoothing as a defence.

1. A network of the teacher's architecture (or the student's) is trained on the private records like the undefended
   teacher, by cross-entropy to (1 - alpha) onehot(y) + alpha / classes.
2. It is released.

Privacy. None: the released network is trained on the private records, and the ledger says so. Smoothing changes the
success of inversion attacks: positive smoothing mostly increases it, negative smoothing reduces it, without a
guarantee.

Differs from the paper:
- The recipe is `standard` of the bench's teachers (AdamW, a warm-up and a cosine, small shifts), so that the network
  differs from an undefended one of that recipe only in its labels. Other recipes and options of `--teacher.X` are not
  used: compared with such a teacher it differs in those too.
- Negative smoothing starts at the first step; Struppek et al. increase it over the first epochs.
- The loss of negative smoothing has no lower bound; only the number of steps and weight decay limit it.
- The default alpha is Szegedy et al.'s 0.1; `--method.smoothing -0.05` is a setting of Struppek et al.'s defence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from bench import nets, validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Size
from bench.data import to_float
from bench.dp_training.records import private_records
from bench.errors import RunFailed
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget


@dataclass(frozen=True)
class LabelSmoothing:
    """Train on the private records with smoothed labels; without a privacy guarantee."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Szegedy et al., CVPR 2016, section 7; Struppek et al., ICLR 2024"
    unit: ClassVar[str] = str(Unit.NONE)
    releases_images: ClassVar[bool] = False
    tiers: ClassVar[Tiers] = {
        "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
        "quick": {"epochs": 10, "max_steps": 1000, "batch": 64, "shift": 1},
    }

    smoothing: float = 0.1
    """alpha, share of the target that is uniform over all classes; negative values sharpen it. Above -1, below 1."""
    network: Literal["teacher", "student"] = "teacher"
    """Train the network of --teacher, to compare with the undefended one, or that of --student."""
    epochs: Size[int] = 30
    """Passes over the private images."""
    max_steps: Size[int] = 0
    """Largest number of steps; 0 = no limit."""
    batch: Size[int] = 256
    """Images per step; at least 2, for BatchNorm."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    warmup: float = 0.1
    """Share of the steps in which the rate rises to its peak; it then falls to 0 along a cosine."""
    weight_decay: float = 0.02
    """Decay of weight matrices and kernels; biases and normalisation parameters have none."""
    shift: Size[int] = 2
    """s, largest random shift of images in pixels, with black borders: (2 s + 1)^2 shifts of each; 0 = none."""

    def __post_init__(self) -> None:
        validate.inside(self, -1, 1, "smoothing")
        validate.at_least(self, 1, "epochs")
        validate.at_least(self, 2, "batch")
        validate.at_least(self, 0, "max_steps", "weight_decay", "shift")
        validate.positive(self, "lr")
        validate.between(self, 0, 1, "warmup")

    @property
    def needs(self) -> frozenset[str]:
        """The private records, and the teacher's architecture if it is trained."""
        return frozenset({"private_data"} | ({"teacher_network"} if self.network == "teacher" else set()))

    @property
    def trains_student(self) -> bool:
        """Whether the run's --student network is trained."""
        return self.network == "student"

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse to account a finite epsilon; any claimed epsilon is accepted, because there is no guarantee."""
        refuse_finite_budget(budget, (Unit.EXAMPLE,), "the private records train the network without noise")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Train on `teacher.private`; the teacher's weights are not used, and `budget` has no effect."""
        private = private_records(teacher)
        ledger = Ledger()
        ledger.spend(NonPrivateDpEvent(), why="the private records train the network that is released")
        arch = teacher.arch if self.network == "teacher" else student
        model = ctx.prepared(nets.build(arch, teacher.shape, teacher.classes))
        self._train(model, *private, ctx)
        return Release(model.eval(), arch, ledger, claim=None)

    def _train(self, model: nn.Module, images: Tensor, labels: Tensor, ctx: Context) -> None:
        """Run step 1 in place, on (n, c, h, w) uint8 images and (n,) labels. Raises RunFailed if the loss diverges."""
        model.train()
        rng, call, loss = ctx.generator("label smoothing"), ctx.compiled(model), torch.zeros(())
        images, labels = images.to(ctx.device), labels.to(ctx.device)
        per_epoch = -(-len(images) // self.batch)
        total = min(self.epochs * per_epoch, self.max_steps or math.inf)
        # Weight matrices and kernels decay, biases and normalisation parameters do not
        weights = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in weights if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, int(total), self.warmup))
        with ctx.track(f"label smoothing {self.smoothing:g}", int(total)) as advance:
            for step in range(int(total)):
                if step % per_epoch == 0:
                    order = torch.randperm(len(images), generator=rng, device=ctx.device)
                    order = torch.cat([order, order[: per_epoch * self.batch - len(images)]])
                chosen = order[step % per_epoch * self.batch :][: self.batch]
                with ctx.precision():
                    logits = call(shifted(to_float(images[chosen]), self.shift, rng))
                loss = smoothed_loss(logits.float(), labels[chosen], self.smoothing)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                advance(1)
        if not torch.isfinite(loss):
            raise RunFailed(f"training with smoothing {self.smoothing:g} diverged; lower --method.lr or |smoothing|")


def smoothed_loss(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Compute the cross-entropy to (1 - alpha) onehot(y) + alpha / c, batch mean; alpha may be negative."""
    log_p = logits.log_softmax(1)
    return (1 - alpha) * F.nll_loss(log_p, labels) - alpha * log_p.mean()


def rate(step: int, total: int, warmup: float) -> float:
    """Return the factor of the peak learning rate at step 0..total: a linear warm-up, then a cosine down to 0."""
    rising = int(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return 0.5 + 0.5 * math.cos(math.pi * (step - rising) / max(total - rising, 1))


def shifted(images: Tensor, most: int, rng: torch.Generator) -> Tensor:
    """Shift each (c, h, w) image by random whole numbers of pixels in -most..most, with black borders."""
    if not most:
        return images
    n, _, h, w = images.shape
    down, right = torch.randint(0, 2 * most + 1, (2, n, 1), generator=rng, device=images.device)
    y, x = (moved + torch.arange(side, device=images.device) for moved, side in ((down, h), (right, w)))
    every = torch.arange(n, device=images.device)[:, None, None]
    padded = F.pad(images, (most, most, most, most))
    return padded[every, :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2).contiguous()
