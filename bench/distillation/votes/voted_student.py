"""A student trained on an ensemble's noisy votes: the query images, their labels, and semi-supervised training.

It is shared by the PATE baselines and those of DGD's Fig. 4. A subclass provides the images and the ledger. Here the
teachers vote once on the first images. The student is trained by cross-entropy on the labelled images, and on the other
ones by its own confident predictions: if its largest probability reaches `sure`, that class is the target for an
augmented copy of the same image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import data, nets
from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size
from bench.data import to_float
from bench.data.affine import random_affine
from bench.distillation.training import descend
from bench.distillation.votes.noisy_votes import NoisyEnsemble, VotePlan, noisy_votes, posterior
from bench.errors import BenchError, RunFailed
from bench.nets import Ensemble
from bench.nets.small_net import xavier
from bench.privacy import Budget, Claim, Ledger
from bench.validate import at_least, between, positive

PAPER_TEACHERS = 250
"""Number of teachers of the PATE papers and DGD."""
SHOWN = 60
"""Number of images that are released with the student."""
MOVED_ABOUT = Departure(
    what="labelled images are rotated, scaled, sheared and shifted a little whenever they are used",
    why="a student of some hundred labels, trained for hundreds of passes over them, memorises images and noise",
    sets={"augment": True},
)


class StudentImages(NamedTuple):
    """The images for a student's training.

    Attributes:
        images: (n, c, h, w) in [0, 1]: first the query images, then the unlabelled ones.
        shown: True if some of them may be released with the student.
        generator: the released generator that drew them, or None.
    """

    images: Tensor
    shown: bool
    generator: nn.Module | None = None


@dataclass(frozen=True)
class VotedStudent(ABC):
    """Options of the teachers and of the student; a subclass adds the images, the noise and the ledger."""

    only_with: ClassVar[dict[str, str]] = {
        "unlabelled_weight": "unlabelled>0",
        "sure": "unlabelled>0 unlabelled_weight>0",
    }

    teachers: Size[int] = 250
    """K, the number of teachers on disjoint parts of the private data; 0 = 250, fewer on small data sets (digits 48,
    usps 100)."""
    teacher_net: Size[str] = "dgd-cnn"
    """Network of the K teachers: a name as for --teacher, or `same` for the run's own --teacher."""
    teacher_steps: Size[int] = 3000
    """Training steps of the teachers; networks on fixed features are solved in closed form instead."""
    teacher_batch: Size[int] = 128
    """Images per training step of a teacher."""
    teacher_lr: float = 1e-3
    """Initial learning rate of the teachers (Adam), falling linearly to 0."""
    teacher_shift: int = 0
    """Largest random shift of the teachers' training images, in pixels."""
    unlabelled: Size[int] = 8900
    """Images without labels for the student's semi-supervised loss; fewer if fewer are available."""
    unlabelled_weight: float = 1.0
    """Weight of the loss on the unlabelled images."""
    sure: float = 0.9
    """Smallest probability at which the student's own prediction becomes the target of an unlabelled image."""
    target_estimator: Literal["argmax", "posterior"] = "argmax"
    """Target from noisy counts: their arg-max (the papers), or the posterior mean of the class given all counts."""
    steps: Size[int] = 3000
    """Steps of the student's training."""
    batch: Size[int] = 128
    """Labelled images per student step, and the same number of unlabelled ones."""
    lr: float = 1e-3
    """Initial learning rate of the student (Adam), falling linearly to 0."""
    augment: bool = False
    """Randomly rotate, scale, shear and shift labelled images a little whenever they are used."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teacher_steps", "teacher_batch", "steps")
        at_least(self, 2, "batch")
        at_least(self, 0, "teachers", "teacher_shift", "unlabelled", "unlabelled_weight")
        positive(self, "teacher_lr", "lr")
        between(self, 0, 1, "sure")

    @abstractmethod
    def query_plan(self, teachers: int) -> VotePlan:
        """Return the query plan for this many teachers, with the noise of the fields."""

    @abstractmethod
    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """Return the queries and the noise on the votes (or the number of queries), calibrated to the budget."""

    @abstractmethod
    def ledger(self, plan: VotePlan) -> Ledger:
        """Return the ledger of all uses of the private data."""

    @abstractmethod
    def claim(self, plan: VotePlan, delta: float) -> Claim | None:
        """Return the paper's claim at these settings; None = the paper claims nothing."""

    @abstractmethod
    def _images(self, teacher: Teacher, plan: VotePlan, ctx: Context) -> StudentImages:
        """Return the query images, at least `plan.candidates`, and the unlabelled images."""

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Return the settings of the K teachers."""
        return Shards(
            count=self._k(dataset),
            archs=(teacher_arch if self.teacher_net == "same" else self.teacher_net,),
            steps=self.teacher_steps,
            batch=self.teacher_batch,
            lr=self.teacher_lr,
            shift=self.teacher_shift,
        )

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, if no noise and no number of queries meets the budget."""
        self.plan(budget, dataset)

    def _k(self, dataset: str) -> int:
        return self.teachers or data.facts(dataset).teachers or PAPER_TEACHERS

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Label the first images by the teachers' votes, then train the student. The teachers are used only here."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        images, shown, generator = self._images(teacher, plan, ctx)
        queried, unlabelled = images[: plan.candidates], images[plan.candidates :]
        passed, counts = noisy_votes(plan, queried, teacher.members(), ctx.privacy_noise("votes"))
        if len(passed) == 0:
            raise RunFailed("no query passed the threshold: lower --method.threshold, or raise --method.query_count")
        trained = self._learn(student, teacher, images[passed], self._targets(counts, plan), unlabelled, ctx)
        return Release(
            student=trained,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            generator=generator,
            synthetic=images[:SHOWN] if shown else None,
            solved=self._solved(plan, queried, teacher.members(), passed, budget.delta),
            votes=NoisyEnsemble(teacher.members(), plan.aggregation, ctx.privacy_noise("votes measured")),
        )

    def _solved(
        self, plan: VotePlan, queried: Tensor, members: Ensemble, passed: Tensor, delta: float
    ) -> dict[str, float]:
        """Return the solved parameters for the record.

        Args:
            queried: (candidates, c, h, w) images.
            passed: (m,) int64 rows that passed the threshold.
        """
        noise = plan.aggregation
        found = {"queries": plan.candidates, "answers": plan.queries, "answered": len(passed), "scale": noise.scale}
        if noise.threshold > 0:
            found["threshold_scale"] = noise.threshold_scale
        return found

    def _targets(self, counts: Tensor, plan: VotePlan) -> Tensor:
        """Return (m, classes) targets computed from (m, classes) noisy counts."""
        if self.target_estimator == "posterior":
            return posterior(counts, plan.aggregation, plan.teachers)
        return F.one_hot(counts.argmax(1), counts.shape[1]).float()

    def _learn(
        self, student: str, teacher: Teacher, labelled: Tensor, targets: Tensor, unlabelled: Tensor, ctx: Context
    ) -> nn.Module:
        """Train the student on (m, c, h, w) images with (m, classes) targets and (u, c, h, w) images without."""
        phi_s, rng = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes))), ctx.generator("student")
        call = ctx.compiled(phi_s)
        optimizer = torch.optim.Adam(phi_s.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)
        with ctx.track("student of the votes", self.steps) as advance:
            for _ in range(self.steps):
                rows = _draw_rows(len(labelled), self.batch, rng)
                x = random_affine(labelled[rows], rng) if self.augment else labelled[rows]
                phi_s.train()
                with ctx.precision():
                    loss = F.cross_entropy(call(x).float(), targets[rows])
                    if len(unlabelled) and self.unlabelled_weight:
                        others = unlabelled[_draw_rows(len(unlabelled), self.batch, rng)]
                        loss = loss + self.unlabelled_weight * self._self_training_loss(phi_s, call, others, rng)
                descend(optimizer, loss)
                schedule.step()
                advance(1)
        return phi_s.eval()

    def _self_training_loss(
        self, phi_s: nn.Module, call: Callable[[Tensor], Tensor], images: Tensor, rng: torch.Generator
    ) -> Tensor:
        """Return the mean cross-entropy of augmented images to the student's own confident predictions.

        As in FixMatch (Sohn et al., NeurIPS 2020): predictions below the probability `sure` have weight 0.
        """
        phi_s.eval()
        with torch.no_grad():
            largest, predicted = call(images).float().softmax(1).max(1)
        phi_s.train()
        each = F.cross_entropy(call(random_affine(images, rng)).float(), predicted, reduction="none")
        return (each * (largest >= self.sure)).mean()


def draw_some(images: Tensor, owner: str, candidates: int, count: int, rng: torch.Generator) -> Tensor:
    """Return at most `count` of the images in random order, (n, c, h, w) float32 in [0, 1].

    Args:
        images: (m, c, h, w) uint8.
        owner: kind of the images, "public" or "private", for the message.
        candidates: number of images that the queries need.

    Raises:
        BenchError: there are fewer than `candidates` images.
    """
    if len(images) < candidates:
        raise BenchError(f"{candidates} queries, but only {len(images)} {owner} images; lower --method.query_count")
    order = torch.randperm(len(images), generator=rng, device=rng.device)[:count]
    return to_float(images.to(rng.device)[order])


def _draw_rows(size: int, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` of `size` row indices, with replacement."""
    return torch.randint(size, (count,), generator=rng, device=rng.device)
