"""Students of DGD's Fig. 4 that learn from the private images, or from a generator trained on them.

Ge et al., DGD (IEEE TIP 2023), section IV-B, "Generator Learning": the figure keeps DGD's student and changes D^, the
images that it learns from: the private images themselves (RAW), or those of ACGAN, WGAN and InfoGAN trained on them.
The teachers' noisy votes label the few images D^_s of D^; all others, D^_u, are unlabelled.

Privacy. None: neither the generator's training nor the private images are protected, and the ledger lists them so. The
votes have noise as in DGD: `--epsilon 10` sets the noise at which DGD claims 10 for the votes, `--epsilon inf` sets
none, and `--epsilon none` uses the fields. Nothing is claimed, as the figure has no epsilon.

Differs from the paper (DGD), for all of them:
- On D^_u the student learns from its own confident predictions (`bench/distillation/votes/voted_student.py`), not from
  the VAE's triples by E_u (Eq. 4 and 6).
- The paper does not state how many of the 60,000 images are voted on in this figure; here 1300, as at epsilon 10.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Context, Sampler, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.votes.noisy_votes import CHUNK, Aggregation, VotePlan, calibrate, votes_epsilon
from bench.distillation.votes.voted_student import MOVED_ABOUT, StudentImages, VotedStudent
from bench.nets.generators import Shape
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget
from bench.privacy.events import unprotected_event
from bench.validate import at_least

UNITS = (Unit.EXAMPLE,)
SMOKE: dict[str, Any] = {
    "teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "teacher_batch": 8, "query_count": 6,
    "unlabelled": 16, "steps": 3, "batch": 8,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16, "query_count": 1000,
    "unlabelled": 3000, "steps": 600, "batch": 64,
}  # fmt: skip
DEPARTURES = (
    MOVED_ABOUT,
    Departure(
        what="teachers are trained by Adam at 3e-3 instead of 0.05, on images shifted by up to a pixel",
        why="tier quick has 120 steps of 16 images instead of 3000 of 128; at 0.05 Adam does not converge",
        sets={"teacher_lr": 3e-3, "teacher_shift": 1},
    ),
    Departure(
        what="votes have Gaussian noise (the paper's DGD+) instead of Laplace noise, and the student's targets are the "
        "class posteriors given all counts instead of the arg-max",
        why="as in the variant `working` of dgd: at equal epsilon the accountant requires less noise if it is Gaussian",
        sets={"aggregation": "gaussian", "target_estimator": "posterior"},
    ),
)


@dataclass(frozen=True)
class UnprotectedImages(VotedStudent):
    """Options of votes on unprotected images; the defaults are DGD's for MNIST."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data", "teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.NONE)
    departures: ClassVar[tuple[Departure, ...]] = DEPARTURES

    teacher_lr: float = 0.05
    unlabelled: Size[int] = 58_700
    steps: Size[int] = 500
    aggregation: Literal["laplace", "gaussian"] = "laplace"
    """Noise on the vote counts: Laplace (Eq. 3) or Gaussian (DGD+)."""
    query_count: Size[int] = 1300
    """|D^_s|, the number of queries to the teachers; each gets a label."""
    scale: Solved[float] = 40.0
    """Scale of the Laplace noise, 2 / epsilon_0, or sigma of Gaussian noise; solved from the budget unless --solve
    steps or none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "query_count")
        at_least(self, 0, "scale")

    @property
    def unprotected(self) -> str:
        """Return a description of the unprotected use of the private data."""
        return "the generator is trained on the private images"

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, if a finite epsilon must be accounted or the unit is not example."""
        refuse_finite_budget(budget, UNITS, self.unprotected)
        super().check(budget, dataset, classes)

    def query_plan(self, teachers: int) -> VotePlan:
        """Return the plan: |D^_s| images, all of which get a label."""
        return VotePlan(Aggregation(self.aggregation, self.scale), self.query_count, self.query_count, teachers)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """Return the noise, or the number, of votes at which DGD claims the budget's epsilon for the votes only."""
        return calibrate(self.query_plan(self._k(dataset)), partial(votes_epsilon, delta=budget.delta), budget)

    def ledger(self, plan: VotePlan) -> Ledger:
        """Return the ledger of the votes and of the unprotected private images; its epsilon is infinite."""
        ledger = plan.ledger()
        ledger.spend(unprotected_event(), why=self.unprotected)
        return ledger

    def claim(self, plan: VotePlan, delta: float) -> Claim | None:
        """Return None, as the figure states no epsilon."""
        return None


@dataclass(frozen=True)
class UnprotectedGenerator(UnprotectedImages):
    """Options of a student whose images D^ come from a generator trained on the private records."""

    @abstractmethod
    def sampler(self, shape: Shape, classes: int, dataset: str) -> Sampler:
        """Build the untrained generator with the distribution of its latents."""

    @abstractmethod
    def train(self, sampler: Sampler, shape: Shape, images: Tensor, labels: Tensor, ctx: Context) -> None:
        """Train the sampler's generator in place, on the context's device.

        Args:
            shape: (c, h, w).
            images: (n, c, h, w) uint8 on that device.
            labels: (n,) int64.
        """

    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        if teacher.private is None:
            raise RuntimeError('the private images are used; the method\'s `needs` must name "private_data"')
        images, labels = (part.to(ctx.device) for part in teacher.private)
        sampler = self.sampler(teacher.shape, teacher.classes, teacher.dataset)
        ctx.prepared(sampler.generator)
        self.train(sampler, teacher.shape, images, labels, ctx)
        sampler.generator.eval()
        drawn = draw_images(sampler, plan.candidates + self.unlabelled, ctx.generator("images"))
        return StudentImages(drawn, shown=True, generator=sampler.generator)


@torch.no_grad()
def draw_images(sampler: Sampler, count: int, rng: torch.Generator) -> Tensor:
    """Draw (count, c, h, w) images; a conditional generator cycles through the labels."""
    images = []
    for start in range(0, count, CHUNK):
        labels = torch.arange(start, min(start + CHUNK, count), device=rng.device) % max(1, sampler.classes)
        images.append(sampler.decode(sampler.latents(len(labels), rng), labels).float())
    return torch.cat(images)
