"""Quantile regression: records that the target is surer of than of others like them are called members.

Bertran, Tang, Roth, Kearns, Morgenstern, Wu, "Scalable Membership Inference Attacks via Quantile Regression", NeurIPS
2023 (arXiv 2307.03694), Algorithm 1 with a Gaussian head. f the target, (x, y) a suspect with its true class.

1. The score of a record is s(x, y) = z_y - max_{j != y} z_j, z the logits.
2. On records that are no one's training records, regress the law of s given (x, y): N(mu(x, y), sd(x, y)^2).
3. Call (x, y) a member if s(x, y) > mu(x, y) + sd(x, y) Phi^-1(1 - alpha), alpha the false positive rate allowed.

Differs from the paper:
- The score here is (s - mu) / sd, of which every alpha is a threshold.
- mu and log sd are ridge regressions on 64 whitened principal components of x, y and a constant, instead of a ConvNeXt
  that is trained on the images; the spread is learnt from residuals of five-fold mus, as those of its own fit are too
  small.
- Logits are read from the answers, log p_y - log max_{j != y} p_j, both at least the smallest normal float32.
- It is refused with fewer than 1,000 such records, of which the spread cannot be learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Size
from bench.membership.confidences import TINY, query_probabilities, true_class_probability
from bench.membership.neighbours import Components
from bench.validate import at_least, positive

LEAST, FOLDS = 1000, 5
LEAST_ERROR = 1e-12
MEAN_LOG_CHI_SQUARE = -1.2703628454614782
"""E log X^2 of a standard normal X: -gamma - log 2."""


@dataclass(frozen=True)
class Quantile:
    """One question a suspect, and no reference models."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Bertran et al., NeurIPS 2023, arXiv 2307.03694, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    components: int = 64
    """Most principal components of x; at most one for every five records outside."""
    ridge: float = 0.01
    """Penalty of both regressions, for features of variance 1, per record."""
    batch: Size[int] = 512
    """Images put to the target at once; changes rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "components", "batch")
        positive(self, "ridge")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: too few records outside."""
        return None if aux >= LEAST else f"{aux} labelled records outside; the regression needs {LEAST}"

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Steps 1 to 3 for every suspect, float64."""
        images, labels = knowledge.population
        s, outside = (
            margin(query_probabilities(target, x, self.batch), y)
            for x, y in ((knowledge.images, knowledge.labels), (images, labels))
        )
        phi = Components.of(images, self.components)
        seen, known = (
            torch.cat([phi.whiten(x), one_hot(y, target.classes).double()], 1)
            for x, y in ((knowledge.images, knowledge.labels), (images, labels))
        )
        mu = fitted(known, outside, seen, self.ridge)
        errors = (outside - self._out_of_fold(known, outside)).square().clamp_min(LEAST_ERROR).log()
        log_variance = fitted(known, errors, seen, self.ridge) - MEAN_LOG_CHI_SQUARE
        return MembershipResult((s - mu) / (log_variance / 2).exp())

    def _out_of_fold(self, known: Tensor, s: Tensor) -> Tensor:
        """(m,) mu of each record by a regression on the other folds."""
        fold = torch.arange(len(s), device=s.device) % FOLDS
        mu = torch.empty_like(s)
        for k in range(FOLDS):
            mu[fold == k] = fitted(known[fold != k], s[fold != k], known[fold == k], self.ridge)
        return mu


def margin(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(n,) log p_y - log max_{j != y} p_j.

    Args:
        probabilities: (n, classes) float64. labels: (n,) int64.
    """
    others = probabilities.scatter(1, labels.unsqueeze(1), 0.0).amax(1).clamp_min(TINY)
    return true_class_probability(probabilities, labels).log() - others.log()


def fitted(inputs: Tensor, wanted: Tensor, at: Tensor, ridge: float) -> Tensor:
    """(n,) the ridge regression of (m,) values on (m, k) inputs, at (n, k): the constant is not penalised.

    Args:
        ridge: minimised are mean squared error + ridge ||w||^2.
    """
    mean = inputs.mean(0)
    centred = inputs - mean
    penalty = ridge * len(inputs) * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    weights = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (wanted - wanted.mean()))
    return (at - mean) @ weights + wanted.mean()
