"""Loss threshold: predict that records with a small loss are members.

Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting",
CSF 2018 (arXiv 1709.01604), Adversary 2. f the target, (x, y) a suspect with its true class, l the cross-entropy.

1. Query the target for f(x) and compute l(f(x), y) = -log f(x)_y.
2. Call (x, y) a member if l(f(x), y) <= tau, where tau is the mean loss over the training records.

Differs from the paper:
- The score is -l, and the evaluation tries every tau, because an attacker on a released model does not know the mean
  training loss. The paper's tau is one point of the curve.
- The loss is computed from the wrong classes' probabilities as log(1 + e^-phi), phi = log p_y - log sum_{j != y} p_j,
  because -log p_y of a float32 response is 0 for every loss below 3e-8. Probabilities are at least the smallest normal
  float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import logsigmoid

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Size
from bench.membership.confidences import query_probabilities, scaled_confidence
from bench.validate import at_least


@dataclass(frozen=True)
class LossThreshold:
    """Membership by the loss of the true class; trains no network."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Yeom et al., CSF 2018, arXiv 1709.01604, Adversary 2"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    labelled: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {}

    batch: Size[int] = 512
    """Images per query to the target; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return None: the attack needs only the target."""
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return -l(f(x), y) per suspect, float64, at most 0."""
        phi = scaled_confidence(query_probabilities(target, knowledge.images, self.batch), knowledge.labels)
        return MembershipResult(logsigmoid(phi))
