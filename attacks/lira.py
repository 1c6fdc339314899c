"""LiRA: how likely the target's confidence is if it was trained on the record, and if it was not.

Carlini, Chien, Nasr, Song, Terzis, Tramer, "Membership Inference Attacks From First Principles", S&P 2022
(arXiv 2112.03570), Algorithm 1 and Eq. 4. f the target, (x, y) a suspect with its true class.

1. N reference models, each suspect a training record of half of them (IN), unknown to the others (OUT).
2. phi(f(x)_y) = log(p / (1 - p)) with p = f(x)_y: on this scale confidences are close to normal.
3. Per suspect, fit N(mu_in, s_in^2) to the phi of its IN models and N(mu_out, s_out^2) to those of its OUT models.
4. Online: Lambda = N(phi_target; mu_in, s_in^2) / N(phi_target; mu_out, s_out^2).
   Offline, without IN models: Lambda = 1 - Pr[Z > phi_target] with Z ~ N(mu_out, s_out^2) (Eq. 4).
5. Ask about augmented views of x too; each view has means (and, per example, variances) of its own.

Differs from the paper:
- The score is log Lambda online. Offline it is (phi_target - mu_out) / s_out, of which Lambda is the standard normal
  distribution function: the same order without the ties of a Lambda that rounds to 1. Scores of views are averaged, as
  in the authors' code; the paper's text has one multivariate normal of all views.
- The authors' code scores offline by the density, so that improbably small confidences count as membership as well:
  `tail=pdf`. The paper's one-sided test is the default.
- With one variance for all suspects (`variance=fixed`), the authors' code takes s_out from the IN confidences. Here it
  comes from the OUT confidences. As theirs, it is that of all confidences about their common mean.
- Variant `working` is offline with one variance: two IN models tell too little of mu_in.
- The authors' code centres the normals on medians: `centre=median`. The paper's Algorithm 1 has means.
- A standard deviation is at least 1e-6; theirs has 1e-30 added, which makes infinite scores where models agree.
- Models are asked in evaluation mode; the authors' released inference leaves BatchNorm in training mode.
- Views are the image and its four shifts by one pixel; the authors' released code has the image and its mirror image
  (`views=mirror`), which no digit should be turned into.
- phi is computed from the float32 softmax as log p_y - log sum_{j != y} p_j, both at least the smallest normal float32.
- References of kind "teacher" do not know the defence: for a student the attack then rests on transfer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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

FLOOR = 1e-6


@dataclass(frozen=True)
class Lira(ReferenceAttack):
    """Likelihood ratio attack; the defaults are the paper's."""

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "Carlini et al., S&P 2022, arXiv 2112.03570, Algorithm 1"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="offline, with one variance for all suspects",
            why="tier quick has 4 references, 2 of them IN: too few for mu_in and for a variance of each suspect",
            sets={"mode": "offline", "variance": "fixed"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"tail": "mode=offline"}

    references: Size[int] = 256
    """N, reference models; even, each suspect is a training record of half of them."""
    mode: Literal["online", "offline"] = "online"
    """Whether IN models are used too."""
    tail: Literal["cdf", "pdf"] = "cdf"
    """Offline score: one-sided probability (Eq. 4), or the authors' code's two-sided density."""
    variance: Literal["per-example", "fixed"] = "per-example"
    """s^2, IN and OUT apart: one of each suspect, or one of all confidences; the paper's advice below 64 models."""
    centre: Literal["mean", "median"] = "mean"
    """mu_in and mu_out: means (Algorithm 1), or the authors' code's medians."""
    views: Views = "shifts"
    """What is asked about each suspect: the image; with its mirror image; with its four shifts by one pixel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance == "per-example" and self.references < 4:
            raise ValueError(
                f"references is {self.references}; expected 4 or more for a variance per example, or variance=fixed"
            )

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: images too small to be shifted."""
        if self.views == "shifts" and min(shape[1:]) < 2:
            return f"images of {shape[1]}x{shape[2]} pixels cannot be shifted by one"
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """log Lambda (online), (phi - mu_out) / s_out or minus the log density of OUT (offline); float64."""
        references, members = self.reference_models(knowledge, ctx)
        with ctx.track("LiRA: asking the models", 1 + len(references)) as advance:
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
        """(n, views) phi of every view of every suspect."""
        seen = [
            scaled_confidence(query_probabilities(model, view, self.batch), knowledge.labels)
            for view in views(knowledge.images, self.views)
        ]
        advance(1)
        return torch.stack(seen, 1)

    def _normal(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """mu (n, views) and s, which broadcasts with it, of the phi (models, n, views) on one side."""
        mu = phi.mean(0) if self.centre == "mean" else median(phi)
        if self.variance == "per-example":
            variance = phi.var(0, correction=0)
        else:
            variance = phi.var(correction=0)
        return mu, variance.sqrt().clamp_min(FLOOR)


def median(phi: Tensor) -> Tensor:
    """Medians over the first dimension, the mean of the middle two where their number is even."""
    ordered, count = phi.sort(0).values, len(phi)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def log_density(x: Tensor, mu: Tensor, s: Tensor) -> Tensor:
    """log N(x; mu, s^2)."""
    return -0.5 * ((x - mu) / s).square() - s.log() - 0.5 * math.log(2 * math.pi)
