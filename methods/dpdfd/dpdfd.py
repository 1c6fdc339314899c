"""DPDFD: model conversion by differentially private data-free distillation, as its paper prints it.

Liu, Wang, Ge, "Model Conversion via Differentially Private Data-Free Distillation", IJCAI 2023, Algorithm 1. Symbols:
teacher phi_t, student phi_s, generator phi_g; batch size B, T iterations, norm bound C, n teachers.

Section 4.4 has two variants. Many teachers (`teachers`): line 9 becomes, for every image, the noisy mean of the n
teachers' normalised gradients (`noisy_mean_of_teachers`). Direct training (`data private`): D is a batch of private
images, L_T the cross-entropy to their labels, and there is no generator (`direct_training.py`).

Privacy. One teacher: the claim is Theorem 3, of unit `query`. A private record may change the teacher, hence all B rows
of all T batches. With one noise draw per batch, a batch is a Gaussian mechanism of multiplier sigma / (2 B). Many
teachers on disjoint shards: a record changes one teacher, and a response is a Gaussian mechanism of multiplier
sigma / 2. This gives a finite epsilon of unit `example`; the paper states no theorem for it. Direct training has no
finite accounted epsilon.

Differs from the paper:
- The gradient is taken at the student's logits and applied to its probabilities; the paper says "outputs".
- The target r of the decoupled loss is the teacher's arg-max, as in the paper. The paper gives no weights: 1 and 8.
- C, B, T, gamma, gamma_s, gamma_g and e are not printed for any table, sigma only for Table 5. The defaults are those
  of DPSD, by the same authors, with gamma = gamma_s; C is DPSD's beta above epsilon 1, at every epsilon. Sigma, or T,
  is solved from the budget.
- Theorem 3's n is undefined. It is taken as the number of classes, as in DPSD's Theorem 1.
- Eq. 5 prints the entropy per sample, but the text describes class balance. Its third term has a plus sign, but the
  text argues for large activations; it is the norm of the outputs, but the text describes that of backbone features.
  `generator_terms argued` (default) follows the text, `generator_terms printed` the equation, with the norm of each
  image's probabilities.
- The gradient's norm in section 4.4 has no index, and epsilon instead of e; it is read as ||g_ij|| + e.
- The optimiser is Adam; section 4.3 sets gamma in proportion to 1 / sqrt(T), here it is a constant.
- Line 14 follows line 12, so it uses the updated student, in evaluation mode; y_s is held constant.
- The student has no dropout while it learns, because its targets are only a step of gamma C from its own output. With
  dropout, direct training on digits without noise stays at chance (8.4 %, one seed); without it the student has 98.3 %.
- Direct training draws its batches without amplification by sampling; the paper does not mention any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Sampler, Shards, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.distinguishing_games import ensemble_game, gradient_game
from bench.distillation.losses import (
    activation_loss,
    balance_loss,
    confidence_loss,
    dkd_loss,
    gradient_at_output,
)
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters, calibrate
from bench.distillation.training import descend, train_without_dropout
from bench.errors import BenchError
from bench.nets.generators import UpsampleGenerator
from bench.nets.small_net import xavier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import clip_rows, gaussian_rows, gaussian_shared_mean, normalise_rows
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dpdfd import direct_training

BoundedGradient = Callable[[Tensor, Tensor], Tensor]
"""(B, c) logits of the student and of a teacher -> (B, c) gradients of norm at most C: lines 5 to 7."""
THEOREM = "DPDFD, Theorem 3"
LAMBDA = 8.0
"""Weight of the non-target part of the decoupled loss L_T."""
E = 1e-4
"""The stability constant e of line 7."""
LATENT, WIDTH = 100, 32
"""Length of z, and channels of the generator's last hidden map; the paper prints neither."""
N_SYNTHETIC = 60
"""Number of synthetic images that a release contains."""


@dataclass(frozen=True)
class Dpdfd:
    """Options of DPDFD, Algorithm 1 and section 4.4; the paper prints few settings (see "Differs from the paper")."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DPDFD, IJCAI 2023, Algorithm 1 and section 4.4"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"iterations": 3, "batch": 16, "direct_iterations": 3, "teacher_steps": 3},
        "quick": {"direct_iterations": 600, "teacher_steps": 600},
    }
    only_with: ClassVar[dict[str, str]] = {
        "iterations": "data=synthetic",
        "gamma_g": "data=synthetic",
        "generator_terms": "data=synthetic",
        "ce_weight": "data=synthetic",
        "ie_weight": "data=synthetic",
        "norm_weight": "data=synthetic",
        "direct_iterations": "data=private",
        "teacher_steps": "teachers>0",
    }

    iterations: Size[int] = 200
    """T, number of iterations."""
    batch: Size[int] = 256
    """B, synthetic images per iteration."""
    norm_bound: float = 5e-3
    """C, bound on the norm of a gradient in line 7, > 0. In Fig. 2 clipping overtakes normalising at 1e-3."""
    sigma: Solved[float] = 100.0
    """sigma of line 9, the noise's standard deviation divided by C; solved from the budget unless --solve steps or
    --epsilon none."""
    gamma: float = 0.1
    """gamma, step from the student's output to its target along the noisy gradient (line 10)."""
    gamma_s: float = 0.1
    """Learning rate of the student."""
    gamma_g: float = 0.01
    """Learning rate of the generator."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (line 7) or clipping (Fig. 2)."""
    generator_terms: Literal["argued", "printed"] = "argued"
    """Second and third term of the generator's loss (Eq. 5): class balance and large features as the text argues
    (argued), or the formula as printed (printed)."""
    ce_weight: float = 1.0
    """Weight of the first term (CE, confident outputs) of the generator's loss, Eq. 5; 0 = off (Table 6)."""
    ie_weight: float = 1.0
    """alpha, weight of the second term (IE, class balance) of the generator's loss, Eq. 5; 0 = off (Table 6)."""
    norm_weight: float = 1.0
    """beta, weight of the third term (Norm, large features) of the generator's loss, Eq. 5; 0 = off (Table 6)."""
    data: Literal["synthetic", "private"] = "synthetic"
    """Training images: synthetic, or private (direct training, Table 4)."""
    direct_iterations: Size[int] = 3000
    """T, number of iterations of direct training."""
    teachers: Size[int] = 0
    """n, number of teachers on disjoint shards of the private data (section 4.4); 0 = the run's single teacher."""
    teacher_steps: Size[int] = 3000
    """Training steps of each of the n teachers."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "batch", "direct_iterations", "teacher_steps")
        at_least(self, 0, "sigma", "teachers")
        positive(self, "norm_bound", "gamma", "gamma_s", "gamma_g")
        if self.data == "private" and self.teachers:
            raise ValueError("data private trains without teachers; expected teachers 0")

    @property
    def needs(self) -> frozenset[str]:
        """Return the input: one teacher, many teachers, or the private images."""
        if self.data == "private":
            return frozenset({"private_data"})
        return frozenset({"teacher_ensemble"} if self.teachers else {"teacher"})

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the teachers of section 4.4; their network is that of --teacher."""
        return Shards(self.teachers, (teacher_arch,), steps=self.teacher_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T can meet, before anything is trained."""
        if self.data == "private":
            direct_training.check(budget)
        self.parameters(budget, classes)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build phi_g, for Gaussian z."""
        return Sampler(UpsampleGenerator(shape, LATENT, WIDTH), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run Algorithm 1. Only `_annotate` queries the teacher, or the teachers."""
        if self.data == "private":
            return self._train_directly(teacher, student, budget, ctx)
        phi_t = teacher.members() if self.teachers else teacher.model
        parameters = self.parameters(budget, teacher.classes)
        # The stream names determine the published students; do not rename them
        noise, rng = ctx.privacy_noise("dpdfd"), ctx.generator("transcription")
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = ctx.prepared(xavier(self.sampler(teacher.shape, teacher.classes, teacher.dataset).generator))
        step_s = torch.optim.Adam(phi_s.parameters(), lr=self.gamma_s)
        step_g = torch.optim.Adam(phi_g.parameters(), lr=self.gamma_g)
        call_s = ctx.compiled(phi_s)

        with ctx.track("DPDFD: converting", parameters.iterations) as advance:
            for _ in range(parameters.iterations):  # 1
                # 2-3: new vectors z and their synthetic images D
                z = torch.randn(self.batch, LATENT, generator=rng, device=ctx.device)
                with torch.no_grad():
                    d = phi_g(z)

                # 4-10: differentially private outputs y_s, Eq. 4
                y_s = self._annotate(d, phi_s.eval(), phi_t, parameters, noise)

                # 11-12: the student descends L_S, the cross-entropy; dropout would hide the step to y_s
                train_without_dropout(phi_s)
                with ctx.precision():
                    l_s = F.cross_entropy(call_s(d).float(), y_s)
                descend(step_s, l_s)

                # 13-14: the generator descends L_S + L_G, Eq. 5; the student is fixed, and y_s is constant, because its
                # gradient with respect to d would be another query to the teacher
                phi_s.eval().requires_grad_(False)
                with ctx.precision():
                    d = phi_g(z)
                    l_g = self._generator_loss(phi_s, d)
                    l_s = F.cross_entropy(call_s(d).float(), y_s)
                descend(step_g, l_g + l_s)
                phi_s.requires_grad_(True)
                advance(1)

        # 16: return both
        mechanism = self._mechanism(teacher.classes)
        with torch.no_grad():
            synthetic = phi_g(torch.randn(self.batch, LATENT, generator=rng, device=ctx.device))[:N_SYNTHETIC]
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            generator=phi_g,
            synthetic=synthetic,
            solved={"norm_bound": parameters.beta, "iterations": parameters.iterations, "sigma": parameters.sigma},
        )

    @torch.no_grad()
    def _annotate(
        self, d: Tensor, phi_s: nn.Module, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Lines 4 to 10: return (B, c) outputs y_s, the only use of the teachers' responses."""
        ours, theirs = phi_s(d), phi_t(d)
        bounded = partial(self._bounded_gradient, bound=parameters.beta)
        if self.teachers:  # section 4.4: one noisy mean over the teachers for every image
            g = noisy_mean_of_teachers(ours, theirs, bounded, parameters, noise)
        else:  # 9: one noisy mean over the batch for all images
            g = self._noisy_mean(bounded(ours, theirs), parameters, noise)
        return ours.softmax(1) - self.gamma * g  # 10

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
        """Lines 5 to 7: return (B, c) gradients of norm at most C."""
        return self._bounded(gradient_at_output(partial(dkd_loss, weight=LAMBDA), ours, theirs), bound)

    def _bounded(self, g: Tensor, bound: float) -> Tensor:
        return clip_rows(g, bound) if self.bound == "clip" else normalise_rows(g, bound, E)

    def _noisy_mean(self, bounded: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Line 9, Eq. 4: return the noisy mean of the batch, repeated in all (B, c) rows."""
        return gaussian_shared_mean(bounded, parameters.sigma * parameters.beta, noise).expand_as(bounded)

    def _generator_loss(self, phi_s: Any, d: Tensor) -> Tensor:
        """Return L_G of Eq. 5, a scalar, for images d (B, c, h, w)."""
        logits, argued = phi_s(d).float(), self.generator_terms == "argued"
        loss = self.ce_weight * confidence_loss(logits) + self.ie_weight * balance_loss(logits, per_sample=not argued)
        if self.norm_weight:
            activations = phi_s.features(d).float() if argued else logits.softmax(1)
            loss = loss + self.norm_weight * activation_loss(activations, up=argued)
        return loss

    def _train_directly(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run section 4.4's direct training: one noisy mean per batch, constant learning rate."""
        parameters, noise = self.parameters(budget, teacher.classes), ctx.privacy_noise("dpdfd")
        return direct_training.train_directly(
            teacher,
            student,
            lambda g: self._noisy_mean(self._bounded(g, parameters.beta), parameters, noise),
            ctx,
            batch=self.batch,
            gamma=self.gamma,
            gamma_s=self.gamma_s,
            falling=False,
            mechanism=self._mechanism(teacher.classes),
            parameters=parameters,
            delta=budget.delta,
        )

    def parameters(self, budget: Budget, classes: int) -> AnnotationParameters:
        """Return C, sigma and T; calibrate sigma or T to the budget."""
        fields = AnnotationParameters(
            k=classes,
            beta=self.norm_bound,
            sigma=self.sigma,
            answer_epsilon=1.0,
            iterations=self.direct_iterations if self.data == "private" else self.iterations,
        )
        return calibrate(self._mechanism(classes), fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        return AnnotationMechanism("data", self.batch, classes, per_row=False, theorem=THEOREM, teachers=self.teachers)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response, of the two teachers that differ most."""
        if self.data == "private":
            raise BenchError(
                "--method.data private: the noisy gradients are not released, the student is; use `bench audit release`"
            )
        parameters, mechanism = self.parameters(budget, classes), self._mechanism(classes)
        step = partial(self._annotate, parameters=parameters)
        game = ensemble_game if self.teachers else gradient_game
        return game(lambda d, s, t, noise: step(d, s, t, noise=noise), mechanism, parameters, budget.delta)


def noisy_mean_of_teachers(
    ours: Tensor, theirs: Tensor, bounded: BoundedGradient, parameters: AnnotationParameters, noise: Source
) -> Tensor:
    """Section 4.4: return (sum_j C g_ij / (||g_ij|| + e) + N(0, sigma^2 C^2 I)) / n for every image i, (B, c).

    A private record is in one shard, chosen by the hash of its pixels, so it changes one teacher. Leaving it out moves
    one of the n summands of an image by at most 2 C. (Replacing it by another record may move two, which the ledger
    does not count.)

    Args:
        ours: (B, c) logits of the student.
        theirs: (n, B, c) logits of the teachers.
        bounded: maps the logits of the student and of one teacher to bounded gradients.
    """
    total = torch.stack([bounded(ours, of_teacher) for of_teacher in theirs]).double().sum(0)
    return (gaussian_rows(total, parameters.sigma * parameters.beta, noise) / len(theirs)).float()
