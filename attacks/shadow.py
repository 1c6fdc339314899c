"""Shadow models: train a classifier on reference models' responses to members and non-members.

Shokri, Stronati, Song, Shmatikov, "Membership Inference Attacks Against Machine Learning Models", S&P 2017
(arXiv 1610.05820). f the target, (x, y) a suspect with its true class.

1. Train n shadow models like the target, on records known to the attacker.
2. Query every shadow model with its training records ("in") and equally many others ("out"); one attack record is
   (y, the predicted probabilities, in or out).
3. For each class y train a classifier in/out on the attack records of that class: one hidden layer of 64 ReLU units.
4. Query the target for f(x); the score is the output of the classifier of class y.

Differs from the paper:
- The shadows' records are the suspects themselves, each "in" half of the shadows and "out" of the others; the paper's
  shadow data are disjoint from the target's. The target's own membership is not used.
- The score is the classifier's log odds of "in"; the paper's decision is at 0.
- The paper does not say how the classifiers are trained. Here: full-batch Adam, with cross-entropy,
  decoupled weight decay and inputs standardised by the attack records.
- `features=statistics` (variant `working`) is not the paper's: sorted probabilities, the loss, the entropy, the
  logit-scaled confidence phi = log p_y - log sum_{j != y} p_j and the class, for one logistic regression of all classes
  (`hidden=0`, `per_class=false`). Few shadows have too few records per class, a hidden layer memorises them, and
  probabilities near 1 are all equal.
- Shadow models of kind "teacher" are trained without the defence: an attack on a student then relies on transfer. Kind
  "student" repeats the teacher's training and the conversion into a student for every shadow model.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Departure, Size
from bench.membership.confidences import (
    FEW,
    TEACHER_REFERENCES,
    ReferenceAttack,
    query_probabilities,
    scaled_confidence,
)
from bench.validate import at_least, positive


@dataclass(frozen=True)
class Shadow(ReferenceAttack):
    """Membership by classifiers trained on shadow models' responses; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Shokri et al., S&P 2017, arXiv 1610.05820"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": {**FEW, "steps": 20}, "quick": {**FEW, "steps": 500}}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="one logistic regression for all classes, on sorted probabilities and statistics of the response",
            why="4 shadow models have too few records per class, and a hidden layer memorises them",
            sets={"features": "statistics", "per_class": False, "hidden": 0},
        ),
    )

    references: Size[int] = 50
    """n, number of shadow models, even; each suspect is a training record of half of them."""
    features: Literal["probabilities", "statistics"] = "probabilities"
    """Input of the attack classifier: probabilities (the paper), or sorted ones and statistics of the response."""
    per_class: bool = True
    """One attack classifier per true class (the paper's), or one for all."""
    hidden: Size[int] = 64
    """ReLU units of the attack classifier; 0 = logistic regression."""
    steps: Size[int] = 100
    """Full-batch Adam steps of each attack classifier."""
    lr: float = 0.01
    """Learning rate of the attack classifiers."""
    weight_decay: float = 0.01
    """Decoupled weight decay of the attack classifiers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "hidden", "weight_decay")
        at_least(self, 1, "steps")
        positive(self, "lr")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs only suspects and shadow models."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return the log odds of "in" per suspect, float64."""
        shadows, members = self.reference_models(knowledge, ctx)
        with ctx.track("shadow models: querying", 1 + len(shadows)) as advance:
            features = []
            for model in (target, *shadows):
                probabilities = query_probabilities(model, knowledge.images, self.batch)
                features.append(self._features(probabilities, knowledge.labels))
                advance(1)
        suspects, records = features[0], torch.stack(features[1:])
        groups = knowledge.labels if self.per_class else torch.zeros_like(knowledge.labels)
        scores = torch.zeros(len(suspects), dtype=torch.float64, device=suspects.device)
        rng = ctx.generator("shadow/classifiers")
        for group in groups.unique():
            chosen = groups == group
            inputs, insides = records[:, chosen].flatten(0, 1), members[:, chosen].flatten()
            scores[chosen] = self._log_odds(inputs, insides, suspects[chosen], rng)
        return MembershipResult(scores)

    def _features(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Return the attack classifier's inputs, (n, features) float64, from (n, classes) probabilities."""
        if self.features == "probabilities":
            return probabilities
        return statistics(probabilities, labels)

    def _log_odds(self, inputs: Tensor, insides: Tensor, suspects: Tensor, rng: torch.Generator) -> Tensor:
        """Train a classifier on `inputs` (records, features); return the suspects' log odds of "in", (n,)."""
        mean, scale = inputs.mean(0), inputs.std(0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        inputs, suspects, wanted = (inputs - mean) / scale, (suspects - mean) / scale, insides.double()
        weights = _initial_weights([inputs.shape[1], *([self.hidden] if self.hidden else []), 1], rng)
        optimizer = torch.optim.AdamW(weights, lr=self.lr, weight_decay=self.weight_decay)
        for _ in range(self.steps):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(_odds(weights, inputs), wanted).backward()
            optimizer.step()
        with torch.no_grad():
            return _odds(weights, suspects)


def statistics(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return probabilities in descending order, loss, entropy, phi and one-hot class, (n, 2 classes + 3) float64."""
    phi = scaled_confidence(probabilities, labels)
    entropy = torch.special.entr(probabilities).sum(1)
    scalars = torch.stack([softplus(-phi), entropy, phi], 1)
    classes = one_hot(labels, probabilities.shape[1]).double()
    return torch.cat([probabilities.sort(1, descending=True).values, scalars, classes], 1)


def _initial_weights(widths: list[int], rng: torch.Generator) -> list[Tensor]:
    """Draw weights and biases of the layers between these widths, uniform within 1 / sqrt(inputs)."""
    weights = []
    for fan_in, fan_out in itertools.pairwise(widths):
        for shape in ((fan_in, fan_out), (fan_out,)):
            drawn = torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)
            weights.append(((2 * drawn - 1) / math.sqrt(fan_in)).requires_grad_())
    return weights


def _odds(weights: list[Tensor], inputs: Tensor) -> Tensor:
    """Return the classifier's log odds, (n,)."""
    x = inputs @ weights[0] + weights[1]
    for weight, bias in zip(weights[2::2], weights[3::2], strict=True):
        x = x.relu() @ weight + bias
    return x.squeeze(1)
