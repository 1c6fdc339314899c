"""Shadow models: a classifier learns from reference models what answers on training records look like.

Shokri, Stronati, Song, Shmatikov, "Membership Inference Attacks Against Machine Learning Models", S&P 2017
(arXiv 1610.05820). f the target, (x, y) a suspect with its true class.

1. Train n shadow models like the target, on records known to the attacker.
2. Ask every shadow model about its training records ("in") and about as many others ("out"); one attack record is
   (y, the answered probabilities, in or out).
3. For each class y train a classifier in/out on the attack records of that class: one hidden layer of 64 ReLU units.
4. Ask the target for f(x); the score is what the classifier of class y says of it.

Differs from the paper:
- The shadows' records are the suspects themselves, each "in" half of the shadows and "out" of the others; the paper's
  shadow data are apart from the target's. Whether the target was trained on them is not used.
- The score is the classifier's log odds of "in"; the paper's decision is at 0.
- The paper does not say how the classifiers are trained: here by Adam over all records at once, with cross-entropy,
  decoupled weight decay and inputs standardised by the attack records.
- `features=statistics` (variant `working`) is not the paper's: sorted probabilities, the loss, the entropy, the
  logit-scaled confidence phi = log p_y - log sum_{j != y} p_j and the class, for one logistic regression of all classes
  (`hidden=0`, `per_class=false`). Few shadows have too few records of each class, a hidden layer fits them by heart,
  and probabilities near 1 are all equal.
- References of kind "teacher" do not know the defence: for a student the attack then rests on transfer. The shadow of a
  student must repeat the teacher's training and the conversion, which is kind "student".
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
    """Shadow models with a learned attack; the defaults are the paper's for MNIST."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Shokri et al., S&P 2017, arXiv 1610.05820"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": {**FEW, "steps": 20}, "quick": {**FEW, "steps": 500}}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="one logistic regression of all classes, on sorted probabilities and statistics of the answer",
            why="4 shadows have too few records of each class, and a hidden layer fits them by heart",
            sets={"features": "statistics", "per_class": False, "hidden": 0},
        ),
    )

    references: Size[int] = 50
    """n, shadow models; even, each suspect is a training record of half of them."""
    features: Literal["probabilities", "statistics"] = "probabilities"
    """What the attack classifier sees: the raw answer (the paper's), or sorted probabilities with statistics of y."""
    per_class: bool = True
    """One attack classifier per true class (the paper's), or one for all."""
    hidden: Size[int] = 64
    """ReLU units of the attack classifier; 0 makes it a logistic regression."""
    steps: Size[int] = 100
    """Adam steps of each attack classifier, over all its records."""
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
        """None: the suspects and the shadow models are all that is needed."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Log odds of "in" of every suspect, float64."""
        shadows, members = self.reference_models(knowledge, ctx)
        with ctx.track("shadow models: asking", 1 + len(shadows)) as advance:
            answers = []
            for model in (target, *shadows):
                answers.append(self._see(query_probabilities(model, knowledge.images, self.batch), knowledge.labels))
                advance(1)
        suspects, records = answers[0], torch.stack(answers[1:])
        groups = knowledge.labels if self.per_class else torch.zeros_like(knowledge.labels)
        scores = torch.zeros(len(suspects), dtype=torch.float64, device=suspects.device)
        rng = ctx.generator("shadow/classifiers")
        for group in groups.unique():
            chosen = groups == group
            inputs, insides = records[:, chosen].flatten(0, 1), members[:, chosen].flatten()
            scores[chosen] = self._learn(inputs, insides, suspects[chosen], rng)
        return MembershipResult(scores)

    def _see(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """(n, features) float64 of the (n, classes) answers."""
        if self.features == "probabilities":
            return probabilities
        return statistics(probabilities, labels)

    def _learn(self, inputs: Tensor, insides: Tensor, suspects: Tensor, rng: torch.Generator) -> Tensor:
        """(n,) log odds that the classifier trained on `inputs` (records, features) gives to the suspects."""
        mean, scale = inputs.mean(0), inputs.std(0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        inputs, suspects, wanted = (inputs - mean) / scale, (suspects - mean) / scale, insides.double()
        weights = _start([inputs.shape[1], *([self.hidden] if self.hidden else []), 1], rng)
        optimizer = torch.optim.AdamW(weights, lr=self.lr, weight_decay=self.weight_decay)
        for _ in range(self.steps):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(_odds(weights, inputs), wanted).backward()
            optimizer.step()
        with torch.no_grad():
            return _odds(weights, suspects)


def statistics(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(n, 2 classes + 3) float64: probabilities from the largest to the smallest, loss, entropy, phi, one-hot class."""
    phi = scaled_confidence(probabilities, labels)
    entropy = torch.special.entr(probabilities).sum(1)
    apart = torch.stack([softplus(-phi), entropy, phi], 1)
    classes = one_hot(labels, probabilities.shape[1]).double()
    return torch.cat([probabilities.sort(1, descending=True).values, apart, classes], 1)


def _start(widths: list[int], rng: torch.Generator) -> list[Tensor]:
    """Weights and biases of the layers between these widths, uniform within 1 / sqrt(inputs)."""
    weights = []
    for fan_in, fan_out in itertools.pairwise(widths):
        for shape in ((fan_in, fan_out), (fan_out,)):
            drawn = torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)
            weights.append(((2 * drawn - 1) / math.sqrt(fan_in)).requires_grad_())
    return weights


def _odds(weights: list[Tensor], inputs: Tensor) -> Tensor:
    """(n,) log odds of the classifier."""
    x = inputs @ weights[0] + weights[1]
    for weight, bias in zip(weights[2::2], weights[3::2], strict=True):
        x = x.relu() @ weight + bias
    return x.squeeze(1)
