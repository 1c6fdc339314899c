"""Data-free distillation without noise, of a classifier that needs no protection or has it already.

After Chen et al., "Data-Free Learning of Student Networks" (DAFL), ICCV 2019. N_T teacher, N_S student, G generator.
Every round:

1. the generator descends L_oh + alpha L_a + beta L_ie on images of fresh vectors z, judged by the teacher: confident
   (one-hot), of large features, all classes equally often;
2. a batch of new images, drawn so that the teacher's classes are balanced, joins those kept;
3. the student descends KL(N_T(x) || N_S(x)) on images kept, moved about a little; the teacher is asked about every x.

Privacy. The teacher's answers and gradients are used freely, so the outcome is as private as the teacher's weights and
costs nothing more: post-processing of a privately trained teacher, no protection at all of any other.

Differs from the paper: images are kept and replayed, chosen for balance, and moved about; the feature term is an L2
norm; images of digits can be strokes of a pen. With rounds of one generator and one student step, `choose` 1 and no
jitter what is left of the replay is its random draw among the kept images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import Context
from bench.data.affine import random_affine
from bench.distillation.generator_training import fixed, make_generator
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss, kd_loss
from bench.distillation.replay import balanced
from bench.nets import Classifier
from bench.nets.initialise import xavier

Shape = tuple[int, int, int]

SHOWN = 60


@dataclass(frozen=True)
class FreeSettings:
    """How to distil; public.

    Attributes:
        rounds: batches of new images.
        batch: images per generator step and per round.
        choose: images made per image kept; the teacher's classes are balanced among those kept.
        keep: rounds whose images are kept, the newest ones.
        generator_steps, student_steps: per round.
        student_batch: images per student step.
        rate_generator, rate_student: of Adam; the student's falls to 0 along a cosine.
        confidence, balance, activation: weights of L_oh, L_ie and L_a.
        latent, width: of the upsampling generator.
        images: "upsample", "strokes", or "auto": strokes on digits and mnist alone.
        augment: images kept are turned, scaled, sheared and moved a little whenever the student sees them.
    """

    rounds: int = 40
    batch: int = 256
    choose: int = 4
    keep: int = 40
    generator_steps: int = 10
    student_steps: int = 30
    student_batch: int = 128
    rate_generator: float = 1e-3
    rate_student: float = 2e-3
    confidence: float = 1.0
    balance: float = 5.0
    activation: float = 0.02
    latent: int = 100
    width: int = 32
    images: Literal["upsample", "strokes", "auto"] = "auto"
    augment: bool = True

    def __post_init__(self) -> None:
        for name in ("rounds", "batch", "choose", "keep", "student_steps", "student_batch", "latent", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("rate_generator", "rate_student"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("generator_steps", "confidence", "balance", "activation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")


def distil(
    model: Classifier, dataset: str, shape: Shape, classes: int, student_arch: str, settings: FreeSettings, ctx: Context
) -> tuple[Classifier, nn.Module, Tensor]:
    """Distil `model` into a new student by generated images alone.

    Args:
        model: the teacher, on the context's device; it comes back as it was given.
        dataset: decides about strokes where `settings.images` is "auto"; nothing else of the data set is used.
        shape: (c, h, w) of an image.
        student_arch: a name that `bench.nets.build` knows.

    Returns:
        The student in eval mode, the generator, and (at most 60, c, h, w) of its images in [0, 1].

    Raises:
        BenchError: a student or generator that cannot take images of this shape.
    """
    with fixed(model):
        work = _Work(model, dataset, shape, classes, student_arch, settings, ctx)
        with ctx.track(f"distilling into {student_arch}", settings.rounds * settings.student_steps) as advance:
            for _ in range(settings.rounds):
                work.train_generator()
                work.keep_new_images()
                for _ in range(settings.student_steps):
                    work.train_student()
                    advance(1)
        return work.student.eval(), work.generator, work.balanced_images()[:SHOWN]


class _Work:
    """The networks, their optimisers and the images kept."""

    def __init__(
        self,
        model: Classifier,
        dataset: str,
        shape: Shape,
        classes: int,
        student_arch: str,
        settings: FreeSettings,
        ctx: Context,
    ) -> None:
        self.model, self.settings, self.ctx = model, settings, ctx
        self.rng = ctx.generator("free")
        self.student = xavier(nets.build(student_arch, shape, classes)).to(ctx.device)
        self.generator = ctx.prepared(make_generator(settings.images, dataset, shape, settings.latent, settings.width))
        self.step_student = torch.optim.Adam(self.student.parameters(), lr=settings.rate_student)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.step_student, settings.rounds * settings.student_steps
        )
        self.step_generator = torch.optim.Adam(self.generator.parameters(), lr=settings.rate_generator)
        self.kept = torch.empty(0, *shape, device=ctx.device)

    def train_generator(self) -> None:
        """Line 1: `generator_steps` steps on L_G, judged by the teacher."""
        s = self.settings
        self.generator.train()
        for _ in range(s.generator_steps):
            with self.ctx.precision():
                images = self.generator(self.vectors(s.batch))
                logits = self.model(images).float()
                loss = s.confidence * confidence_loss(logits) + s.balance * balance_loss(logits, per_sample=False)
                if s.activation:
                    loss = loss + s.activation * activation_loss(self.model.features(images).float(), up=True)
            self.step_generator.zero_grad(set_to_none=True)
            loss.backward()
            self.step_generator.step()

    def keep_new_images(self) -> None:
        """Line 2; the oldest images go."""
        new, s = self.balanced_images(), self.settings
        self.kept = torch.cat([self.kept, new])[-s.keep * s.batch :]

    @torch.no_grad()
    def balanced_images(self) -> Tensor:
        """(batch, c, h, w) new images, as many of each of the teacher's classes as there are."""
        s = self.settings
        made = torch.cat([self.generator(self.vectors(s.batch)) for _ in range(s.choose)])
        return made if s.choose == 1 else balanced(made, self.model, s.batch, self.rng)

    def train_student(self) -> None:
        """Line 3: one step."""
        s = self.settings
        chosen = torch.randint(len(self.kept), (s.student_batch,), generator=self.rng, device=self.rng.device)
        images = self.kept[chosen]
        if s.augment:
            images = random_affine(images, self.rng)
        self.student.train()
        with self.ctx.precision():
            with torch.no_grad():
                theirs = self.model(images).float()
            loss = kd_loss(self.student(images).float(), theirs).mean()
        self.step_student.zero_grad(set_to_none=True)
        loss.backward()
        self.step_student.step()
        self.schedule.step()

    def vectors(self, count: int) -> Tensor:
        """(count, latent) standard normal."""
        return torch.randn(count, self.generator.latent, generator=self.rng, device=self.rng.device)
