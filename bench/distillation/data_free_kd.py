"""Data-free knowledge distillation (DAFL) of a classifier that is already private or needs no protection; no noise.

After Chen et al., "Data-Free Learning of Student Networks" (DAFL), ICCV 2019. N_T teacher, N_S student, G generator.
Every round:

1. the generator descends L_oh + alpha L_a + beta L_ie on images of new latents z; the terms reward confident (one-hot)
   outputs of the teacher, large features, and equally frequent classes;
2. a batch of new images, chosen so that the teacher's classes are balanced, is added to the replay buffer;
3. the student descends KL(N_T(x) || N_S(x)) on augmented images of the buffer; the teacher is queried on every x.

Privacy. The teacher's responses and gradients are used without noise, so the student is as private as the teacher's
weights: this is post-processing of a privately trained teacher, and protects no other teacher.

Differs from the paper: images come from a replay buffer, can be chosen for balance (`oversample`) and augmented; the
feature term is an L2 norm; images of digits can be pen strokes. With rounds of one generator and one student step,
`oversample` 1 and no augmentation, the only remaining difference is the random draw from the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from bench import nets, validate
from bench.api import Context
from bench.data.affine import random_affine
from bench.distillation.generator_training import fixed, make_generator
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss, kd_loss
from bench.distillation.training import draw_balanced
from bench.nets import Classifier
from bench.nets.small_net import xavier

Shape = tuple[int, int, int]

SHOWN = 60
"""Number of generated images that are returned with the student."""


@dataclass(frozen=True)
class DataFreeKDSettings:
    """Public settings of data-free distillation.

    Attributes:
        rounds: number of batches of new images.
        batch: images per generator step and per round.
        oversample: images generated per image kept; the kept ones are balanced over the teacher's classes.
        replay_rounds: number of newest rounds whose images are in the replay buffer.
        generator_steps, student_steps: number of steps per round.
        student_batch: images per student step.
        rate_generator, rate_student: learning rates of Adam; the student's falls to 0 along a cosine.
        confidence, balance, activation: weights of L_oh, L_ie and L_a.
        latent, width: length of z and channels of the last hidden map of the upsampling generator.
        generator: "upsample"; "strokes", which draws pen strokes; or "auto": strokes if the data set's prior is `pen`.
        augment: randomly rotate, scale, shear and shift buffer images whenever the student sees them.
    """

    rounds: int = 40
    batch: int = 256
    oversample: int = 4
    replay_rounds: int = 40
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
    generator: Literal["upsample", "strokes", "auto"] = "auto"
    augment: bool = True

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "rounds", "batch", "oversample", "replay_rounds", "student_steps", "student_batch")
        validate.at_least(self, 1, "latent", "width")
        validate.at_least(self, 0, "generator_steps", "confidence", "balance", "activation")
        validate.positive(self, "rate_generator", "rate_student")


def distil(
    model: Classifier,
    dataset: str,
    shape: Shape,
    classes: int,
    student_arch: str,
    settings: DataFreeKDSettings,
    ctx: Context,
) -> tuple[Classifier, nn.Module, Tensor]:
    """Distil `model` into a new student using only generated images.

    Args:
        model: the teacher, on the context's device; its state is restored at the end.
        dataset: name of the data set, which decides about strokes if `settings.generator` is "auto"; no data are used.
        shape: (c, h, w) of an image.
        student_arch: a network name for `bench.nets.build`.

    Returns:
        The student in eval mode, the generator, and (at most 60, c, h, w) generated images in [0, 1].

    Raises:
        BenchError: the student or the generator does not support images of this shape.
    """
    with fixed(model):
        kd = DataFreeKD(model, dataset, shape, classes, student_arch, settings, ctx)
        with ctx.track(f"distilling into {student_arch}", settings.rounds * settings.student_steps) as advance:
            for _ in range(settings.rounds):
                kd.train_generator()
                kd.extend_buffer()
                for _ in range(settings.student_steps):
                    kd.train_student()
                    advance(1)
        return kd.student.eval(), kd.generator, kd.balanced_images()[:SHOWN]


class DataFreeKD:
    """State of the distillation: the networks, their optimisers and the replay buffer."""

    def __init__(
        self,
        model: Classifier,
        dataset: str,
        shape: Shape,
        classes: int,
        student_arch: str,
        settings: DataFreeKDSettings,
        ctx: Context,
    ) -> None:
        self.model, self.settings, self.ctx = model, settings, ctx
        self.rng = ctx.generator("free")
        self.student = xavier(nets.build(student_arch, shape, classes)).to(ctx.device)
        self.generator = ctx.prepared(
            make_generator(settings.generator, dataset, shape, settings.latent, settings.width)
        )
        self.step_student = torch.optim.Adam(self.student.parameters(), lr=settings.rate_student)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.step_student, settings.rounds * settings.student_steps
        )
        self.step_generator = torch.optim.Adam(self.generator.parameters(), lr=settings.rate_generator)
        self.buffer = torch.empty(0, *shape, device=ctx.device)

    def train_generator(self) -> None:
        """Run step 1: `generator_steps` steps on L_oh + alpha L_a + beta L_ie."""
        s = self.settings
        self.generator.train()
        for _ in range(s.generator_steps):
            with self.ctx.precision():
                images = self.generator(self.latents(s.batch))
                logits = self.model(images).float()
                loss = s.confidence * confidence_loss(logits) + s.balance * balance_loss(logits, per_sample=False)
                if s.activation:
                    loss = loss + s.activation * activation_loss(self.model.features(images).float(), up=True)
            self.step_generator.zero_grad(set_to_none=True)
            loss.backward()
            self.step_generator.step()

    def extend_buffer(self) -> None:
        """Run step 2: add new images and drop the oldest."""
        new, s = self.balanced_images(), self.settings
        self.buffer = torch.cat([self.buffer, new])[-s.replay_rounds * s.batch :]

    @torch.no_grad()
    def balanced_images(self) -> Tensor:
        """Generate (batch, c, h, w) new images, balanced over the teacher's classes as far as possible."""
        s = self.settings
        made = torch.cat([self.generator(self.latents(s.batch)) for _ in range(s.oversample)])
        return made if s.oversample == 1 else draw_balanced(made, self.model, s.batch, self.rng)

    def train_student(self) -> None:
        """Run one student step (step 3)."""
        s = self.settings
        chosen = torch.randint(len(self.buffer), (s.student_batch,), generator=self.rng, device=self.rng.device)
        images = self.buffer[chosen]
        if s.augment:
            images = random_affine(images, self.rng)
        self.student.train()
        with self.ctx.precision():
            with torch.no_grad():
                target = self.model(images).float()
            loss = kd_loss(self.student(images).float(), target).mean()
        self.step_student.zero_grad(set_to_none=True)
        loss.backward()
        self.step_student.step()
        self.schedule.step()

    def latents(self, count: int) -> Tensor:
        """Draw (count, latent) standard normal latents."""
        length = cast(int, self.generator.latent)
        return torch.randn(count, length, generator=self.rng, device=self.rng.device)
