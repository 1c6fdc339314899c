"""LP-2ST: randomised response over the classes that a first model finds likely, in two stages.

Reference: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy", NeurIPS 2021,
Algorithms 1 to 3 (RRTop-k, RRWithPrior, LP-MST with two stages). K classes, epsilon, prior p over the classes:

RRWithPrior(y). For k = 1..K let w_k = e^epsilon / (e^epsilon + k - 1) times the sum of the k largest p_j, which is the
probability that y, drawn from p, is kept; k* = argmax w_k; Y = the k* most likely classes. If y is in Y, it is kept
with probability e^epsilon / (e^epsilon + k* - 1), else replaced by a uniform other member of Y; if it is not in Y, it
is replaced by a uniform member of Y.

1. The records are divided at random into S1 (`share` of them) and S2, independently of the labels.
2. Stage 1: RRWithPrior with the uniform prior, which is plain randomised response, on the labels of S1; M1 is trained
   on them.
3. Stage 2: RRWithPrior on the labels of S2, p = softmax(M1(x) / temperature); M2, which starts as M1, is trained on
   the noisy labels of both parts. Records of S1 whose noisy label is not among M1's k most likely classes, k the mean
   k* rounded down, are left out (`select`).

The undefended teacher of the run is not used.

Privacy. S1 and S2 are disjoint and every label is randomised exactly once, those of S2 with a prior that depends only
on S1's noisy labels: epsilon, with delta 0, for one label replaced (parallel composition; unit `label`). k* does not
depend on the label. The candidates differ from record to record; the ledger has a randomised response over two classes,
which dominates every epsilon-private mechanism. The images are used unprotected (unit `example`: no guarantee).

Differs from the paper:
- w_k is the paper's. The official code uses a set size that is one too small in the denominator: still private, but
  less accurate at small epsilon, and with a uniform prior at epsilon 0.5 it always returns the same class.
- Sharpened prior, selection and starting from M1 are in the official configuration, not in the algorithms.
- `share`, `temperature` and `mixup` of 0, 0 and -1 are that configuration's for epsilon 1, 2, 4 and 8; epsilons in
  between use the next larger one (above 8 that of 8). It is for CIFAR-10 and was chosen by accuracy there.
- The networks are the run's `--student`, `datalens` by default; the paper has a ResNet-18.
- No cutout; crops and flips are a jitter. The rate drops at 30, 60 and 90 % of a stage's steps; in the official code
  the warm-up's length shifts these points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure
from bench.data import to_float
from bench.dp_training.label_privacy import CHUNK, label_claim, label_game, label_ledger, released, response_event
from bench.dp_training.noisy_label_training import (
    ADAM,
    BY_TIME,
    NO_WARMUP,
    NO_WEIGHT_DECAY,
    QUICK,
    SMOKE,
    LabelPrivate,
    cross_entropy,
)
from bench.dp_training.records import private_records
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import selective_response
from bench.privacy.noise import Source

SOURCE = "Ghazi et al. 2021, RRWithPrior, each label in one of two disjoint stages"
WHY = "RRWithPrior on the label of a private record, in one of two disjoint stages"
PAPER = (
    (1.0, 0.8, 0.6, 16.0, 8.0),
    (2.0, 0.7, 0.5, 8.0, 8.0),
    (4.0, 0.6, 0.5, 8.0, 4.0),
    (math.inf, 0.6, 0.5, 4.0, 4.0),
)
"""Largest epsilon of a row, and its share, temperature, alpha of mixup in stage 1 and in stage 2."""


@dataclass(frozen=True)
class Lp2st(LabelPrivate):
    """Train in two stages, the second one on labels that were randomised with the first model's prior."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Ghazi et al., NeurIPS 2021, Algorithms 1 to 3, T = 2"
    seen_test_sets: ClassVar[dict[str, str]] = {"digits": "that images are augmented, as printed"}
    tiers: ClassVar[Tiers] = {
        "smoke": SMOKE,
        "quick": {**QUICK, "epochs": 2},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        ADAM,
        NO_WARMUP,
        NO_WEIGHT_DECAY,
        Departure(
            what="no mixup in either stage",
            why=f"mixup needs the many passes of the published setting, although it helps on digits; {BY_TIME}",
            sets={"mixup": 0.0},
        ),
    )

    share: float = 0.0
    """Share of the records in stage 1; 0 = the paper's for the budget, from 0.8 at epsilon 1 to 0.6 above 2."""
    temperature: float = 0.0
    """The prior is softmax(logits / temperature); 0 = the paper's for the budget, 0.6 at epsilon 1, else 0.5."""
    select: bool = True
    """Leave out records of stage 1 in stage 2 if their noisy label is unlikely by the first model."""
    resume: bool = True
    """Start stage 2 from the first model's weights instead of new ones."""
    mixup: float = -1.0
    """alpha of mixup in both stages; 0 = none, -1 = the paper's for the budget, 16 and 8 at epsilon 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 0, "share", "temperature")
        validate.below(self, 1, "share")
        if self.mixup < 0 and self.mixup != -1:
            raise ValueError(f"mixup is {self.mixup}; expected at least 0, or -1")

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run LP-MST with two stages on `teacher.private`; `teacher.model` is not used."""
        images, labels = private_records(teacher, ctx.device)
        epsilon, noise = self.epsilon_of(budget), ctx.privacy_noise("lp-2st")
        share, temperature, *mixups = self._settings(epsilon)
        first, second = stages(len(labels), share, ctx.generator("lp-2st/stages"))
        noisy = torch.full_like(labels, -1)

        uniform = torch.full((len(first), teacher.classes), 1 / teacher.classes, device=ctx.device)
        noisy[first] = rr_with_prior(labels[first], uniform, epsilon, noise)
        model = self.network(teacher, student, ctx)
        self.train(model, images, first, cross_entropy(noisy), ctx, "LP-2ST, stage 1", mixups[0])

        prior = (logits_of(model, images[second]) / temperature).softmax(1)
        noisy[second] = rr_with_prior(labels[second], prior, epsilon, noise)
        mean = float(candidates(prior, epsilon).sum(1).double().mean())
        kept = first[likely(logits_of(model, images[first]), noisy[first], int(mean))] if self.select else first
        if not self.resume:
            model = self.network(teacher, student, ctx)
        records = torch.cat([kept, second])
        self.train(model, images, records, cross_entropy(noisy), ctx, "LP-2ST, stage 2", mixups[1])

        ledger, claim = label_ledger(response_event(epsilon, 2), WHY), label_claim(epsilon, SOURCE)
        return released(model, student, ledger, claim, epsilon, share=share, mean_candidates=mean)

    def _settings(self, epsilon: float) -> tuple[float, ...]:
        """Return share, temperature and the two stages' alphas at this epsilon."""
        _, share, temperature, *mixups = next(row for row in PAPER if epsilon <= row[0])
        if self.mixup >= 0:
            mixups = [self.mixup, self.mixup]
        return self.share or share, self.temperature or temperature, *mixups

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the noisy label where half of the classes are candidates."""
        epsilon, half = self.epsilon_of(budget), max(2, classes // 2)
        prior = (torch.arange(classes) < half).double() / half

        def answer(labels: Tensor, rng: torch.Generator) -> Tensor:
            return F.one_hot(rr_with_prior(labels, prior.expand(len(labels), -1), epsilon, rng), classes)

        pairs = [(0, 1)] + ([(0, classes - 1)] if half < classes else [])
        ledger, claim = label_ledger(response_event(epsilon, 2), WHY), label_claim(epsilon, SOURCE)
        return label_game(answer, pairs, ledger, claim, budget.delta)


def stages(records: int, share: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Divide 0..records - 1 at random into two disjoint parts, independently of the labels.

    Raises:
        BenchError: fewer than 4 records.
    """
    if records < 4:
        raise BenchError(f"LP-2ST trains in two stages: {records} private records; expected at least 4")
    order = torch.randperm(records, generator=rng, device=rng.device)
    size = min(max(round(share * records), 2), records - 2)
    return order[:size], order[size:]


def candidates(prior: Tensor, epsilon: float) -> Tensor:
    """Return (n, K) bool, the k* most likely classes of each row of the prior; all classes for an infinite epsilon."""
    if math.isinf(epsilon):
        return torch.ones_like(prior, dtype=torch.bool)
    ranked, order = prior.double().sort(dim=1, descending=True, stable=True)
    before = torch.arange(prior.shape[1], device=prior.device)
    w = ranked.cumsum(1) / (1 + before * math.exp(-epsilon))
    return torch.zeros_like(prior, dtype=torch.bool).scatter(1, order, before <= w.argmax(1, keepdim=True))


def rr_with_prior(labels: Tensor, prior: Tensor, epsilon: float, source: Source) -> Tensor:
    """Randomise (n,) labels given (n, K) priors, which must not depend on these labels."""
    parts = zip(labels.split(CHUNK), prior.split(CHUNK), strict=True)
    return torch.cat([selective_response(y, candidates(p, epsilon), epsilon, source) for y, p in parts])


def likely(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return (n,) bool, whether each label is among the k >= 1 largest of its row's (n, K) logits."""
    return (logits.topk(k, 1).indices == labels[:, None]).any(1)


@torch.no_grad()
def logits_of(model: Classifier, images: Tensor) -> Tensor:
    """Compute (n, K) float32 logits of (n, c, h, w) uint8 images."""
    return torch.cat([model(to_float(part)).float() for part in images.split(1024)])
