"""LiRA: likelihood ratio of the target's confidence with and without the record in its training data.

Carlini, Chien, Nasr, Song, Terzis, Tramer, "Membership Inference Attacks From First Principles", S&P 2022
(arXiv 2112.03570), Algorithm 1 and Eq. 4. f the target, (x, y) a suspect with its true class.

1. Train N reference models; each suspect is a training record of half of them (IN) and not of the others (OUT).
2. phi(f(x)_y) = log(p / (1 - p)) with p = f(x)_y: on this scale confidences are close to normal.
3. Per suspect, fit N(mu_in, s_in^2) to the phi of its IN models and N(mu_out, s_out^2) to those of its OUT models.
4. Online: Lambda = N(phi_target; mu_in, s_in^2) / N(phi_target; mu_out, s_out^2).
   Offline, without IN models: Lambda = 1 - Pr[Z > phi_target] with Z ~ N(mu_out, s_out^2) (Eq. 4).
5. Query augmented views of x too; each view has separate means (and, per example, variances).

Differs from the paper:
- The score is log Lambda online. Offline it is (phi_target - mu_out) / s_out, and Lambda is its standard normal
  distribution function: the same order, without ties where Lambda rounds to 1. Scores of views are averaged, as in the
  authors' code; the paper's text has one multivariate normal of all views.
- The authors' code scores offline by the density, so very small confidences count as membership as well: `tail=pdf`.
  The paper's one-sided test is the default.
- With one variance for all suspects (`variance=fixed`), the authors' code takes s_out from the IN confidences. Here it
  comes from the OUT confidences. Like theirs, it is the variance of all confidences around their common mean.
- Variant `working` is offline with one variance: two IN models are too few to estimate mu_in.
- The authors' code centres the normals on medians: `centre=median`. The paper's Algorithm 1 has means.
- A standard deviation is at least 1e-6; theirs has 1e-30 added, which gives infinite scores where models agree.
- Models are in evaluation mode; the authors' released inference leaves BatchNorm in training mode.
- Views are the image and its four shifts by one pixel; the authors' released code has the image and its mirror image
  (`views=mirror`), which is wrong for digits.
- phi is computed from the float32 softmax as log p_y - log sum_{j != y} p_j, both at least the smallest normal float32.
- Reference models of kind "teacher" are trained without the defence: an attack on a student then relies on transfer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Departure, Size
from bench.membership.confidences import (
    FEW,
    TEACHER_REFERENCES,
    ReferenceAttack,
    Views,
    query_probabilities,
    scaled_confidence,
    split_by_membership,
    views,
)

MIN_SD = 1e-6
"""Smallest standard deviation of phi."""


@dataclass(frozen=True)
class Lira(ReferenceAttack):
    """Membership by the likelihood ratio attack; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Carlini et al., S&P 2022, arXiv 2112.03570, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="offline, with one variance for all suspects",
            why="tier quick has 4 reference models, 2 of them IN: too few to estimate mu_in and a variance per suspect",
            sets={"mode": "offline", "variance": "fixed"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"tail": "mode=offline"}

    references: Size[int] = 256
    """N, number of reference models, even; each suspect is a training record of half of them."""
    mode: Literal["online", "offline"] = "online"
    """Reference models: those trained on the suspect and those that were not (online), or only the latter (offline)."""
    tail: Literal["cdf", "pdf"] = "cdf"
    """Offline score: one-sided probability (Eq. 4), or two-sided density (the authors' code)."""
    variance: Literal["per-example", "fixed"] = "per-example"
    """Variance of confidences: one per suspect, or one for all, which the paper recommends below 64 models."""
    centre: Literal["mean", "median"] = "mean"
    """Centre of confidences: means (the paper's Algorithm 1), or medians (the authors' code)."""
    views: Views = "shifts"
    """Queries per suspect: the image (none), also its mirror image (mirror), or also its four shifts by one pixel
    (shifts)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance == "per-example" and self.references < 4:
            raise ValueError(
                f"references is {self.references}; expected 4 or more for a variance per example, or variance=fixed"
            )

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: images are too small for shifts."""
        if self.views == "shifts" and min(shape[1:]) < 2:
            return f"images of {shape[1]}x{shape[2]} pixels cannot be shifted by one"
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Return float64 scores: log Lambda (online), (phi - mu_out) / s_out or minus OUT's log density (offline)."""
        references, members = self.reference_models(knowledge, ctx)
        with ctx.track("LiRA: querying the models", 1 + len(references)) as advance:
            observed = self._phi(target, knowledge, advance)
            known = torch.stack([self._phi(one, knowledge, advance) for one in references])
        inside, outside = split_by_membership(known, members)
        mu_out, s_out = self._normal(outside)
        if self.mode == "online":
            score = log_density(observed, *self._normal(inside)) - log_density(observed, mu_out, s_out)
        elif self.tail == "cdf":
            score = (observed - mu_out) / s_out
        else:
            score = -log_density(observed, mu_out, s_out)
        return MembershipResult(score.mean(1))

    def _phi(self, model: Target, knowledge: AttackerKnowledge, advance: Advance) -> Tensor:
        """Return phi of every view of every suspect, (n, views)."""
        phi = [
            scaled_confidence(query_probabilities(model, view, self.batch), knowledge.labels)
            for view in views(knowledge.images, self.views)
        ]
        advance(1)
        return torch.stack(phi, 1)

    def _normal(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu (n, views), and s, which broadcasts with it, of the phi (models, n, views) of IN or OUT models."""
        mu = phi.mean(0) if self.centre == "mean" else median(phi)
        if self.variance == "per-example":
            variance = phi.var(0, correction=0)
        else:
            variance = phi.var(correction=0)
        return mu, variance.sqrt().clamp_min(MIN_SD)


def median(phi: Tensor) -> Tensor:
    """Return medians over the first dimension; for an even number, the mean of the middle two."""
    ordered, count = phi.sort(0).values, len(phi)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def log_density(x: Tensor, mu: Tensor, s: Tensor) -> Tensor:
    """Return log N(x; mu, s^2)."""
    return -0.5 * ((x - mu) / s).square() - s.log() - 0.5 * math.log(2 * math.pi)
