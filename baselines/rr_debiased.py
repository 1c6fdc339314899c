"""Randomised response on every private label, then training on an unbiased estimate of the loss (backward correction).

Reference: Ghazi et al., "LabelDP-Pro: Learning with Label Differential Privacy via Projections", ICLR 2024, where it is
the baseline RR-debiased; Natarajan et al., "Learning with Noisy Labels", NeurIPS 2013; Patrini et al., CVPR 2017
(backward correction). K classes, l the cross-entropy, f the student:

1. y~ = y with probability e^epsilon / (e^epsilon + K - 1), else a uniform one of the other K - 1 classes; once per
   label. With p = K / (e^epsilon + K - 1) this is: with probability p a uniform class, else y.
2. the student descends l^(f, y~) = [l(f, y~) - (p / K) sum over k of l(f, k)] / (1 - p), whose mean over y~ is l(f, y).

The undefended teacher of the run is not used.

Privacy. As in `rr.py`: a label is used once, by a randomised response over K classes, epsilon with delta 0 for one
label replaced (unit `label`); the images are used unprotected (unit `example`: no guarantee).

Differs from the paper:
- The estimate has no lower bound: it rewards probabilities near 0 for classes other than the noisy label, and more so
  with more noise. As in the paper, the only remedy is few passes; long training overfits at small epsilon.
- The networks are the run's `--student`, `datalens` by default; the paper's small CNNs and ResNet-18 are left out.
- The paper chooses rate and passes per setting from {0.01, 0.05, 0.1, 0.2} and {2, 5, 10} ({50, 100} on CIFAR-10), by
  accuracy; here one choice is used for all settings. Its momentum is not known; 0.9 is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.dp_training.label_privacy import label_claim, label_game, label_ledger, released, respond, response_event
from bench.dp_training.noisy_label_training import ADAM, QUICK, SMOKE, LabelPrivate, RowLoss
from bench.dp_training.records import private_records
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame

SOURCE = "randomised response over K classes (Ghazi et al. 2024, RR-debiased)"
WHY = "randomised response on the label of a private record"


@dataclass(frozen=True)
class RrDebiased(LabelPrivate):
    """Randomised response on all labels, then training on the unbiased loss."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ghazi et al., LabelDP-Pro, ICLR 2024, RR-debiased; Natarajan et al., NeurIPS 2013"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": QUICK}
    departures: ClassVar[tuple[Departure, ...]] = (ADAM,)

    epochs: Size[int] = 10
    batch: Size[int] = 1024
    rate: float = 0.1
    weight_decay: float = 0.0
    schedule: Literal["steps", "cosine", "constant"] = "constant"
    warmup: float = 0.0
    augment: bool = False

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Randomise the labels of `teacher.private`, then train; `teacher.model` is not used."""
        images, labels = private_records(teacher, ctx.device)
        epsilon = self.epsilon_of(budget)
        noisy = respond(labels, teacher.classes, epsilon, ctx.privacy_noise("rr-debiased"))
        model = self.network(teacher, student, ctx)
        records = torch.arange(len(labels), device=ctx.device)
        loss = debiased_loss(noisy, teacher.classes, epsilon)
        self.train(model, images, records, loss, ctx, "training on the debiased loss")
        ledger = label_ledger(response_event(epsilon, teacher.classes), WHY)
        return released(model, student, ledger, label_claim(epsilon, SOURCE), epsilon)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy label of a record of one of two classes."""
        epsilon = self.epsilon_of(budget)

        def answer(labels: Tensor, rng: torch.Generator) -> Tensor:
            return F.one_hot(respond(labels, classes, epsilon, rng), classes)

        ledger = label_ledger(response_event(epsilon, classes), WHY)
        return label_game(answer, [(0, 1)], ledger, label_claim(epsilon, SOURCE), budget.delta)


def debiased_loss(noisy: Tensor, classes: int, epsilon: float) -> RowLoss:
    """Return the loss l^(f, y~), whose expectation over the randomised response y~ of y is the cross-entropy to y.

    1 - p = (e^epsilon - 1) / (e^epsilon + K - 1) and p / K = 1 / (e^epsilon + K - 1) are computed from e^-epsilon.
    """
    odds = math.exp(-epsilon)
    per_class, rest = odds / (1 + (classes - 1) * odds), -math.expm1(-epsilon) / (1 + (classes - 1) * odds)

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        losses = -logits.log_softmax(1)
        own = losses.gather(1, noisy[chosen][:, None])[:, 0]
        return (own - per_class * losses.sum(1)) / rest

    return loss
