"""LOMMA: GMI's search with a logit loss, a feature regulariser, and students as additional classifiers.

Nguyen, Chandrasegaran, Abdollahzadeh, Cheung, "Re-thinking Model Inversion Attacks Against Deep Neural Networks",
CVPR 2023 (arXiv 2304.01669). G generator, D critic, T target with logits t and penultimate features phi, M_1 .. M_K
students with logits m_k, y the attacked class.

1. Train G and D on the attacker's images as GMI does (`bench/gan/gan_prior.py`).
2. Model augmentation: distil T into K students on the attacker's images x, by SGD on
   KL(softmax t(x) || softmax m_k(x)).
3. p_reg = mean phi(x) over the attacker's images.
4. Search z as GMI does (Nesterov's momentum, z clamped to [-1, 1]) for the smallest
   L(z) = -D(G(z)) + lambda L_id(G(z), y), with
   L_id(x, y) = -mean over T, M_1 .. M_K of the logit of y + lambda_reg mean over features of (phi(x) - p_reg)^2.

Differs from the paper:
- The base is GMI's search only; the paper wraps KED-MI's as well.
- p_reg is the mean, as in the authors' code, which samples features around it and then overwrites them. The paper
  writes it as a normal distribution.
- phi is the input of the last linear layer, or the spatial mean of the input of the last convolution.
- lambda, lambda_reg, steps and step size are the authors' for CelebA. The losses of step 4 are sums divided by
  `ref_batch`, their batch there, not means over the batch: the result does not depend on `batch`.
- The authors' students are EfficientNet-B0, B1 and B2, which start from ImageNet. Here they are three small networks
  with random weights; `students` selects others. `student_steps` is the authors' 20 passes over 30,000 images in
  batches of 64. Their learning rate is halved after 20 passes, when the training has ended. The temperature of the
  distillation is theirs, 1.
- G, D, T and the students are in evaluation mode in step 4, so images do not affect each other.
- The initial z is clamped too. Several images per class and seed are kept; see `attacks/gmi.py`.
- The students depend on the target and are trained again in every run of the attack.
- Variant `working` trains the GAN and the students with larger learning rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.gan.latent_search import search_latents
from bench.gan.surrogates import architectures, check_architectures, train_surrogates, unbuildable
from bench.nets import recorded_features
from bench.validate import at_least, below, positive

MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
"""Momentum and weight decay of the students' SGD."""
CHUNK = 500
"""Images per forward pass."""


@dataclass(frozen=True)
class Lomma(GanPrior):
    """LOMMA on GMI's search; the defaults are the authors' for CelebA, those of the GAN are GMI's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Nguyen et al., CVPR 2023, arXiv 2304.01669"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE,
            "students": "shard-cnn,shard-cnn",
            "student_steps": 3,
            "student_batch": 16,
            "iterations": 3,
            "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            **QUICK,
            "students": "datalens,shard-cnn,shard-cnn",
            "student_steps": 200,
            "iterations": 50,
            "images_per_class": 4,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        SHORT_TRAINING,
        Departure(
            what="the students' learning rate is 0.05, not 0.01",
            why="tier quick distils each student for 200 steps, the authors for 9,400",
            sets={"student_lr": 0.05},
        ),
    )

    students: Size[str] = "datalens,dgd-cnn,shard-cnn"
    """Networks (see `bench list`) distilled from the target, separated by commas; none = no model augmentation."""
    student_steps: Size[int] = 9400
    """Steps of each student's distillation (SGD, momentum 0.9, weight decay 1e-4)."""
    student_batch: Size[int] = 64
    """Images per step of the distillation."""
    student_lr: float = 0.01
    """Learning rate of the distillation."""
    reg_images: Size[int] = 5000
    """Number of auxiliary images for the mean features p_reg (all if there are fewer)."""
    reg_weight: float = 1.0
    """lambda_reg, the weight of the feature regulariser in L_id."""
    iterations: Size[int] = 2400
    """Steps of the latent search."""
    lr: float = 0.02
    """Learning rate of the latent search."""
    momentum: float = 0.9
    """Nesterov momentum mu of the latent search."""
    identity_weight: float = 100.0
    """lambda, the weight of L_id (identity loss) relative to the critic (prior loss)."""
    latent_clip: float = 1.0
    """Bound on every coordinate of the latent z, at the start and after every step."""
    draws: Size[int] = 5
    """Independent searches per class, from different random seeds."""
    images_per_class: Size[int] = 20
    """Images per class in each draw (the paper: 1)."""
    ref_batch: int = 60
    """Divisor of the summed losses: the batch over which the authors' code averages."""
    batch: Size[int] = 200
    """Images searched in one batch; affects rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(
            self, 1, "student_steps", "reg_images", "iterations", "draws", "images_per_class", "ref_batch", "batch"
        )
        at_least(self, 2, "student_batch")
        positive(self, "student_lr", "lr", "latent_clip")
        at_least(self, 0, "identity_weight", "reg_weight", "momentum")
        below(self, 1, "momentum")
        check_architectures("students", self.students)

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, or too few auxiliary images."""
        reason = super().skip_reason(shape, classes, aux)
        return unbuildable("students", self.students, shape, classes) if reason is None else reason

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class."""
        generator, critic = self.gan(aux, ctx)
        students = self._augment(target, aux, ctx)
        p_reg = self._mean_features(target, aux, ctx)

        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        starts = torch.randn(len(targets), self.latent, generator=ctx.generator("lomma/latents"), device=ctx.device)
        found = []
        chunks = list(zip(starts.split(self.batch), targets.split(self.batch), strict=True))
        with ctx.track("LOMMA: searching", self.iterations * len(chunks)) as advance:
            for z, labels in chunks:
                z = self._search(z, labels, generator, critic, students, p_reg, target, ctx, advance)
                with torch.no_grad():
                    found.append(generator(z))
        return AttackResult(torch.cat(found), targets, draws)

    def _augment(self, target: Target, aux: Tensor, ctx: Context) -> list[nn.Module]:
        """Step 2: return the distilled students, frozen, in eval mode."""
        names = architectures(self.students)
        if not names:
            return []
        with torch.no_grad():
            log_p = torch.cat([target.logits(part).float().log_softmax(1) for part in aux.split(CHUNK)])
        with ctx.track("LOMMA: distilling the students", self.student_steps * len(names)) as advance:

            def fit(student: nn.Module, k: int) -> None:
                self._distil(student, aux, log_p, ctx.generator(f"lomma/order/{k}"), ctx, advance)

            return train_surrogates(self.students, target, ctx, "lomma/student", fit)

    def _distil(
        self, student: nn.Module, aux: Tensor, log_p: Tensor, rng: torch.Generator, ctx: Context, advance: Advance
    ) -> None:
        """Train a student in place; `log_p` has the target's (n, classes) log-probabilities for `aux`."""
        sgd = torch.optim.SGD(student.parameters(), self.student_lr, MOMENTUM, weight_decay=WEIGHT_DECAY)
        size = min(self.student_batch, len(aux))
        batches: list[Tensor] = []
        for _ in range(self.student_steps):
            if not batches:
                order = torch.randperm(len(aux), generator=rng, device=aux.device)
                batches = list(order[: len(aux) - len(aux) % size].split(size))
            chosen = batches.pop()
            with ctx.precision():
                logits = student(aux[chosen])
            loss = kl_div(logits.float().log_softmax(1), log_p[chosen], reduction="batchmean", log_target=True)
            sgd.zero_grad(set_to_none=True)
            loss.backward()
            sgd.step()
            advance(1)

    @torch.no_grad()
    def _mean_features(self, target: Target, aux: Tensor, ctx: Context) -> Tensor:
        """Step 3: return p_reg, (d,) float32."""
        order = torch.randperm(len(aux), generator=ctx.generator("lomma/p_reg"), device=aux.device)
        with recorded_features(target.module()) as features:
            for part in aux[order[: self.reg_images]].split(CHUNK):
                target.logits(part)
        return torch.cat(features).float().mean(0)

    def _search(
        self,
        z: Tensor,
        labels: Tensor,
        generator: nn.Module,
        critic: nn.Module,
        students: Sequence[nn.Module],
        p_reg: Tensor,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensor:
        """Step 4: search from (n, latent) initial `z`, each row independently; return the latents."""
        with recorded_features(target.module()) as features:

            def loss(z: Tensor) -> Tensor:
                with ctx.precision():
                    images = generator(z)
                    logits = [target.logits(images), *(student(images) for student in students)]
                    realism = critic(images)
                identity = identity_loss(logits, features.pop().float(), p_reg, labels, self.reg_weight)
                return (self.identity_weight * identity.sum() - realism.float().sum()) / self.ref_batch

            return search_latents(
                z,
                loss,
                iterations=self.iterations,
                lr=self.lr,
                momentum=self.momentum,
                clip=self.latent_clip,
                advance=advance,
            )


def identity_loss(
    logits: Sequence[Tensor], features: Tensor, p_reg: Tensor, labels: Tensor, reg_weight: float
) -> Tensor:
    """Return L_id of each image, (n,).

    Args:
        logits: (n, classes) of the target and of each student.
        features: (n, d) of the target. p_reg: (d,).
        labels: (n,) attacked classes.
    """
    mean = torch.stack([each.float() for each in logits]).mean(0)
    of_class = mean.gather(1, labels.unsqueeze(1)).squeeze(1)
    return reg_weight * (features - p_reg).square().mean(1) - of_class
