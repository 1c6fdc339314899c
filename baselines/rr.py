"""Randomised response on every private label, then plain training: the simplest label-private method (LP-1ST).

Reference: Warner, "Randomized Response", JASA 1965, for K classes; Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep
Learning with Label Differential Privacy", NeurIPS 2021, where it is the method of one stage. K classes, epsilon:

1. y~ = y with probability e^epsilon / (e^epsilon + K - 1), else a uniform one of the other K - 1 classes; once per
   label;
2. the student is trained on (x, y~) by cross-entropy. `loss forward` instead descends the cross-entropy of the noisy
   label's distribution under the student, sum over y of P[y~ | y] p_y (Patrini et al., CVPR 2017).

The undefended teacher of the run is not used.

Privacy. A label is used once, by a randomised response over K classes: epsilon, with delta 0, for one label replaced
(unit `label`); it even holds against the collector of the noisy labels. Training is post-processing. The images are
used unprotected, so that a record has no guarantee (unit `example`).

Differs from the paper:
- The method has several papers; the training settings are those of Ghazi et al. for CIFAR-10 in two stages. Their mixup
  is off by default (its strength for one stage is not known) and cutout is left out; crops and flips are a jitter.
- The networks are the run's `--student`, `datalens` by default; theirs is a ResNet-18.
- The rate drops at 30, 60 and 90 % of all steps; in their code the warm-up's length shifts these points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure
from bench.dp_training.label_privacy import (
    label_claim,
    label_game,
    label_ledger,
    released,
    respond,
    response_event,
    response_probabilities,
)
from bench.dp_training.noisy_label_training import (
    ADAM,
    NO_WARMUP,
    NO_WEIGHT_DECAY,
    QUICK,
    SMOKE,
    LabelPrivate,
    RowLoss,
    cross_entropy,
)
from bench.dp_training.records import private_records
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame

SOURCE = "randomised response over K classes (Warner 1965; Ghazi et al. 2021)"
WHY = "randomised response on the label of a private record"


@dataclass(frozen=True)
class Rr(LabelPrivate):
    """Randomised response on all labels, then plain training on the noisy ones."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Warner, JASA 1965; Ghazi et al., NeurIPS 2021, LP-1ST"
    seen_test_sets: ClassVar[dict[str, str]] = {"digits": "that images are augmented, as printed"}
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": QUICK}
    departures: ClassVar[tuple[Departure, ...]] = (ADAM, NO_WARMUP, NO_WEIGHT_DECAY)

    loss: Literal["ce", "forward"] = "ce"
    """Cross-entropy of the student's prediction and the noisy label (ce), or the negative log-probability of the noisy
    label under the student's prediction followed by the randomised response (forward)."""
    mixup: float = 0.0
    """alpha of the Beta distribution for mixup of images and losses; 0 = no mixup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 0, "mixup")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Randomise the labels of `teacher.private`, then train; `teacher.model` is not used."""
        images, labels = private_records(teacher, ctx.device)
        epsilon = self.epsilon_of(budget)
        noisy = respond(labels, teacher.classes, epsilon, ctx.privacy_noise("rr"))
        model = self.network(teacher, student, ctx)
        loss = cross_entropy(noisy) if self.loss == "ce" else forward_loss(noisy, teacher.classes, epsilon)
        records = torch.arange(len(labels), device=ctx.device)
        self.train(model, images, records, loss, ctx, "training on randomised labels", self.mixup)
        ledger = label_ledger(response_event(epsilon, teacher.classes), WHY)
        return released(model, student, ledger, label_claim(epsilon, SOURCE), epsilon)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy label of a record of one of two classes."""
        epsilon = self.epsilon_of(budget)

        def answer(labels: Tensor, rng: torch.Generator) -> Tensor:
            return F.one_hot(respond(labels, classes, epsilon, rng), classes)

        ledger = label_ledger(response_event(epsilon, classes), WHY)
        return label_game(answer, [(0, 1)], ledger, label_claim(epsilon, SOURCE), budget.delta)


def forward_loss(noisy: Tensor, classes: int, epsilon: float) -> RowLoss:
    """Return the loss -log sum over y of P[y~ | y] p_y.

    The sum is P[y~ | another class] + (P[y~ | y~] - P[y~ | another class]) p_y~.
    """
    kept, other = response_probabilities(classes, epsilon)

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        own = logits.log_softmax(1).gather(1, noisy[chosen][:, None])[:, 0]
        return -torch.logaddexp(logits.new_tensor(other).log(), own + logits.new_tensor(kept - other).log())

    return loss
