"""Quantile regression: predict that records with an unusually high confidence for their kind are members.

Bertran, Tang, Roth, Kearns, Morgenstern, Wu, "Scalable Membership Inference Attacks via Quantile Regression", NeurIPS
2023 (arXiv 2307.03694), Algorithm 1 with a Gaussian head. f the target, (x, y) a suspect with its true class.

1. The score of a record is s(x, y) = z_y - max_{j != y} z_j, z the logits.
2. On records outside the training set, fit the distribution of s given (x, y) by regression: N(mu(x, y), sd(x, y)^2).
3. (x, y) is a member if s(x, y) > mu(x, y) + sd(x, y) Phi^-1(1 - alpha), with alpha the allowed false positive rate.

Differs from the paper:
- The score here is (s - mu) / sd; every alpha is a threshold on it.
- mu and log sd are ridge regressions on 64 whitened principal components of x, y and a constant, not a ConvNeXt
  trained on the images. The spread is fitted to residuals of five-fold cross-validation, because in-sample residuals
  are too small.
- Differences of logits come from probabilities, log p_y - log max_{j != y} p_j, both at least the smallest normal
  float32.
- The attack is skipped with fewer than 1,000 records outside the training set, which are too few to fit the spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bench.api import Access, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Size
from bench.membership.confidences import TINY, query_probabilities, true_class_probability
from bench.membership.neighbours import Components
from bench.validate import at_least, positive

FOLDS = 5
MIN_ERROR = 1e-12
"""Smallest squared residual."""
MEAN_LOG_CHI_SQUARE = -1.2703628454614782
"""E log X^2 of a standard normal X: -gamma - log 2."""


@dataclass(frozen=True)
class Quantile:
    """Membership by quantile regression: one query per suspect, no reference models."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Bertran et al., NeurIPS 2023, arXiv 2307.03694, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    min_records: ClassVar[int] = 1000
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {}

    components: int = 64
    """Largest number of principal components of the images; at most one per five records outside the training set."""
    ridge: float = 0.01
    """Ridge penalty of both regressions, per record, for features of variance 1."""
    batch: Size[int] = 512
    """Images per query to the target; affects rounding only."""

    def __post_init__(self) -> None:
        at_least(self, 1, "components", "batch")
        positive(self, "ridge")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: too few records outside the training set."""
        least = self.min_records
        return None if aux >= least else f"{aux} labelled auxiliary records; expected at least {least}"

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 3; return a float64 score per suspect."""
        images, labels = knowledge.population
        s, outside = (
            margin(query_probabilities(target, x, self.batch), y)
            for x, y in ((knowledge.images, knowledge.labels), (images, labels))
        )
        phi = Components.of(images, self.components)
        suspects, known = (
            torch.cat([phi.whiten(x), one_hot(y, target.classes).double()], 1)
            for x, y in ((knowledge.images, knowledge.labels), (images, labels))
        )
        mu = ridge_predictions(known, outside, suspects, self.ridge)
        errors = (outside - self._out_of_fold(known, outside)).square().clamp_min(MIN_ERROR).log()
        log_variance = ridge_predictions(known, errors, suspects, self.ridge) - MEAN_LOG_CHI_SQUARE
        return MembershipResult((s - mu) / (log_variance / 2).exp())

    def _out_of_fold(self, known: Tensor, s: Tensor) -> Tensor:
        """Return mu of each record, (m,), from a regression on the other folds."""
        fold = torch.arange(len(s), device=s.device) % FOLDS
        mu = torch.empty_like(s)
        for k in range(FOLDS):
            mu[fold == k] = ridge_predictions(known[fold != k], s[fold != k], known[fold == k], self.ridge)
        return mu


def margin(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return log p_y - log max_{j != y} p_j, (n,).

    Args:
        probabilities: (n, classes) float64. labels: (n,) int64.
    """
    others = probabilities.scatter(1, labels.unsqueeze(1), 0.0).amax(1).clamp_min(TINY)
    return true_class_probability(probabilities, labels).log() - others.log()


def ridge_predictions(inputs: Tensor, wanted: Tensor, at: Tensor, ridge: float) -> Tensor:
    """Fit a ridge regression of (m,) values on (m, k) inputs; return its (n,) predictions at (n, k) points.

    Args:
        ridge: weight of ||w||^2 relative to the mean squared error; the constant is not penalised.
    """
    mean = inputs.mean(0)
    centred = inputs - mean
    penalty = ridge * len(inputs) * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    weights = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (wanted - wanted.mean()))
    return (at - mean) @ weights + wanted.mean()
