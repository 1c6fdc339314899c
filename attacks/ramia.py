"""RaMIA: score a range of similar images, and predict that ranges with a high score contain a training record.

Tao, Shokri, "Range Membership Inference Attacks", SaTML 2025 (arXiv 2408.05131). (x, y) a suspect with its true class,
R(x) its range: images that count as the same record.

1. Sample x_1, ..., x_m from R(x): the image, its mirror images, its translations and its rotations.
2. Compute the score s_i of a membership attack for every (x_i, y).
3. The range's score is the mean of the largest scores, those above the quantile q_s. Samples that are far from any
   training record have low scores and would hide a high one.

A range query also finds records that entered training augmented, or as near-duplicates: with `centre=false` the
suspect's own image is never used.

Differs from the paper:
- The samples are the same for all suspects and for all models: the paper's code draws the angle of a rotation.
- The number of averaged scores is rounded, and at least one. The authors' code truncates, which leaves none of few.
- The attack of step 2 is RMIA's likelihood ratio (`score=rmia`), as in the paper, or that of BASE (`score=base`), both
  offline. RMIA's share of population records is a step function of the ratio and would only add ties to its mean.
- Variant `working` has shifts by one pixel and small rotations in place of mirror images and rotations by 30 degrees:
  a mirrored digit is another image, and the teachers here train on shifted images.
- The paper's other ranges, l2 balls and missing columns of tables, are omitted.
- Reference models of kind "teacher" are trained without the defence: an attack on a student then relies on transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackerKnowledge, Context, MembershipResult, Target
from bench.config import Departure
from bench.data import batch_size_for
from bench.membership.confidences import (
    FEW,
    TEACHER_REFERENCES,
    ReferenceAttack,
    query_parts,
    split_by_membership,
    true_class_probability,
)
from bench.membership.likelihood_ratios import base_score, rmia_log_ratio, tempered_log_probability
from bench.membership.ranges import mean_of_largest, transformed_copies
from bench.validate import at_least, between

TEMPERATURE, WEIGHT = 2.0, 0.33
"""Softmax temperature and weight of the references in the score of BASE."""


@dataclass(frozen=True)
class Ramia(ReferenceAttack):
    """Range membership inference attack (RaMIA); the defaults are the paper's for CIFAR-10."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Tao and Shokri, SaTML 2025, arXiv 2408.05131"
    goal: ClassVar[Literal["inversion", "membership"]] = "membership"
    access: ClassVar[Access] = "scores"
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": FEW, "quick": FEW}
    departures: ClassVar[tuple[Departure, ...]] = (
        TEACHER_REFERENCES,
        Departure(
            what="the range has shifts by one pixel and rotations by 10 degrees, no mirror images",
            why="a mirrored digit is another image, and the teachers here train on shifted images",
            sets={"mirror": False, "vertical": False, "shift": 1, "rotation": 10.0},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"a": "score=rmia"}

    score: Literal["rmia", "base"] = "rmia"
    """Score of a single image: RMIA's likelihood ratio, or that of BASE."""
    a: float = 0.3
    """RMIA's constant a, from 0 to 1."""
    top: float = 0.6
    """Share of the samples of a range, those with the largest scores, that are averaged: 1 - q_s."""
    centre: bool = True
    """Whether the suspect's own image is a sample of its range."""
    mirror: bool = True
    """Whether the horizontally mirrored image is a sample."""
    vertical: bool = True
    """Whether the vertically mirrored image is a sample."""
    shift: int = 0
    """Pixels of the four translations that are samples; 0 = none."""
    rotation: float = 30.0
    """Degrees of the two rotations that are samples; 0 = none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        between(self, 0, 1, "a", "top")
        at_least(self, 0, "shift", "rotation")
        if self.top == 0:
            raise ValueError("top is 0; expected a share above 0, up to 1")
        if self.samples == 0:
            raise ValueError("the range has no sample; set centre=true, mirror=true, vertical=true, shift or rotation")

    @property
    def samples(self) -> int:
        """Return m, the number of samples of a range."""
        return self.centre + self.mirror + self.vertical + 4 * bool(self.shift) + 2 * bool(self.rotation)

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: images are too small for shifts."""
        if self.shift >= min(shape[1:]):
            return f"images of {shape[1]}x{shape[2]} pixels cannot be shifted by {self.shift}"
        return None

    def infer(self, target: Target, knowledge: AttackerKnowledge, ctx: Context) -> MembershipResult:
        """Run steps 1 to 3; return a float64 score per suspect."""
        references, members = self.reference_models(knowledge, ctx)
        with ctx.track("RaMIA: querying the samples of the ranges", 1 + len(references)) as advance:
            own = self._signals(target, knowledge, advance)
            known = torch.stack([self._signals(one, knowledge, advance) for one in references], 1)
        scores = [self._of_sample(px, split_by_membership(of, members)[1]) for px, of in zip(own, known, strict=True)]
        return MembershipResult(mean_of_largest(torch.stack(scores), self.top))

    def _signals(self, model: Target, knowledge: AttackerKnowledge, advance: Advance) -> Tensor:
        """Return (samples, n): the probabilities, or tempered log-probabilities, from which scores are computed."""
        images = knowledge.images
        copies = transformed_copies(images, self.mirror, self.vertical, self.shift, self.rotation, self.centre)
        parts = (part for copy in copies for part in copy.split(batch_size_for(images, self.batch)))
        probabilities, labels = query_parts(model, parts), knowledge.labels.repeat(self.samples)
        advance(1)
        if self.score == "rmia":
            return true_class_probability(probabilities, labels).unflatten(0, (self.samples, -1))
        return tempered_log_probability(probabilities, labels, TEMPERATURE).unflatten(0, (self.samples, -1))

    def _of_sample(self, own: Tensor, outside: Tensor) -> Tensor:
        """Return the (n,) scores s_i of one sample of each range."""
        if self.score == "rmia":
            return rmia_log_ratio(own, outside, self.a)
        return base_score(own, outside, WEIGHT)
