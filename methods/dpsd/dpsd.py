"""DPSD: differentially private synthetic distillation of one teacher into a student, as its paper prints it.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
arXiv 2601.19090, Algorithm 1. Symbols: Phi_t teacher, Phi_s student, Phi_g generator; b batch size, T iterations,
c classes.

Privacy, one teacher. The claim is Theorem 1 or 2; both protect one synthetic image (unit `query`). One private record
(unit `example`) may change the teacher, hence all b rows of all T batches by up to 2 beta each. A batch is therefore a
Gaussian mechanism of multiplier sigma / (2 sqrt(b)), for any beta. In label mode all b T randomised responses compose.
All other steps, including the generator, are post-processing of these responses.

Differs from the paper:
- Eq. 2 divides the non-target terms by 1 - p_j and writes the teacher's weights for both networks; decoupled
  distillation (Zhao et al., CVPR 2022) divides by 1 - p_r, as here.
- The gradient is taken at the student's logits and applied to its probabilities; the paper says "outputs".
- Eq. 3 puts the noise inside the sum over the batch: here each response has its own draw, and the 1/b is the batch mean
  of the loss.
- Top-k takes the largest magnitudes.
- Eq. 5 draws the response from all c classes if r is a candidate and from the k candidates otherwise
  (`response printed`); `response candidates` always draws from the candidates, as in the paper's Algorithm 2.
- Eq. 8's second term is printed per sample, but the text describes class balance, which needs the batch mean; its third
  term has a plus sign, but the text argues for large activations. `generator_terms argued` (default) follows the text,
  `generator_terms printed` the equation. The third term uses the features before the student's last layer.
- An iteration is one batch, as in Alg. 1, and T is section IV-A's 200; section III-D mentions 20 iterations.
- Label mode queries again in every iteration, as in line 4, b T responses in total; in section III-C labels are drawn
  once and reused.
- y is held constant in the generator's step, which uses the updated student, in evaluation mode.
- The student has no dropout while it learns from Eq. 3's targets, which are one step of gamma_s beta from its output.
- sigma, or T, is solved from the budget: the paper prints one sigma, two betas and one T for all its epsilons.
- The student stays at chance on digits, 10.3 % (tier `paper`, one seed), also without noise: see `working.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Sampler, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.distinguishing_games import gradient_game, response_game
from bench.distillation.losses import (
    activation_loss,
    balance_loss,
    confidence_loss,
    dkd_loss,
    gradient_at_output,
    kd_loss,
)
from bench.distillation.noisy_labels import (
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    check_candidates,
    paper_beta,
    paper_k,
)
from bench.distillation.training import descend, train_without_dropout
from bench.nets.generators import UpsampleGenerator
from bench.nets.small_net import xavier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import (
    clip_rows,
    gaussian_rows,
    keep_top_k,
    normalise_rows,
    randomised_response,
    randomised_response_as_printed,
)
from bench.privacy.noise import Source
from bench.validate import at_least, positive

LAMBDA = 8.0
"""lambda, weight of Eq. 2's non-target part (section III-B)."""
H = 1e-4
"""The stability constant h of Eq. 3."""
LATENT, WIDTH = 100, 32
"""Length of z, and channels of the generator's last hidden map; the paper prints neither."""
N_SYNTHETIC = 60
"""Number of synthetic images that a release contains."""


@dataclass(frozen=True)
class Dpsd:
    """Options of DPSD, Algorithm 1; the defaults are those of section IV-A."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Liu et al., DPSD, arXiv 2601.19090, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {"smoke": {"iterations": 3, "batch": 16}}
    only_with: ClassVar[dict[str, str]] = {
        "beta": "mode=data",
        "loss": "mode=data",
        "bound": "mode=data",
        "response": "mode=label",
    }

    mode: Literal["data", "label"] = "data"
    """Response of the teacher, the switch s of Eq. 6: a noisy gradient (data, Eq. 3) or a randomised class (label,
    Eq. 5)."""
    iterations: Size[int] = 200
    """T, number of iterations."""
    batch: Size[int] = 256
    """b, number of synthetic images per iteration."""
    k: int = 0
    """k, entries of a gradient (Eq. 3) or candidates of a response (Eq. 5), at most c; 0 = the paper's for the data set
    (3 for MNIST, FMNIST, CIFAR10)."""
    beta: float = 0.0
    """beta, bound on the norm of a gradient in Eq. 3; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on
    ImageNet."""
    sigma: Solved[float] = 100.0
    """sigma of Eq. 3, the noise's standard deviation divided by beta; solved from the budget unless --solve steps or
    --epsilon none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response (Eq. 4); solved from the budget unless --solve steps or --epsilon none."""
    gamma_s: float = 0.1
    """Learning rate of the student, and step from its output to its target along the noisy gradient (Eq. 3)."""
    gamma_g: float = 0.01
    """Learning rate of the generator and of the vectors z."""
    loss: Literal["dkd", "kd"] = "dkd"
    """L_t, distillation loss: decoupled (Eq. 2) or plain (Fig. 6)."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (Eq. 3) or clipping (Fig. 5)."""
    response: Literal["candidates", "printed"] = "candidates"
    """Randomised response over the candidates (Algorithm 2), or Eq. 5 as printed, which has no finite epsilon."""
    discriminator: Literal["student", "teacher"] = "student"
    """Network that the generator's loss uses; teacher = DPSD-T, whose images are not private."""
    generator_terms: Literal["argued", "printed"] = "argued"
    """Second and third term of the generator's loss (Eq. 8): class balance and large activations as the text argues
    (argued), or the formula as printed (printed)."""
    ce_weight: float = 1.0
    """Weight of the first term (CE, confident outputs) of the generator's loss, Eq. 8; 0 = off (Table VI)."""
    ie_weight: float = 1.0
    """Weight of the second term (IE, class balance) of the generator's loss, Eq. 8; 0 = off (Table VI)."""
    norm_weight: float = 1.0
    """Weight of the third term (NORM, large activations) of the generator's loss, Eq. 8; 0 = off (Table VI)."""

    def __post_init__(self) -> None:
        at_least(self, 1, "iterations", "batch")
        at_least(self, 0, "k", "beta", "sigma")
        positive(self, "answer_epsilon", "gamma_s", "gamma_g")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T can meet, before anything is trained."""
        self.parameters(budget, dataset, classes)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build Phi_g, for Gaussian z."""
        return Sampler(UpsampleGenerator(shape, LATENT, WIDTH), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run Algorithm 1. Only `_annotate` queries the teacher; in DPSD-T the generator's loss does, too."""
        parameters = self.parameters(budget, teacher.dataset, teacher.classes)
        # The stream names determine the published students; do not rename them
        noise, rng = ctx.privacy_noise("dpsd"), ctx.generator("transcription")

        # 1: Xavier initialisation, and a batch Z of random vectors
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = ctx.prepared(xavier(self.sampler(teacher.shape, teacher.classes, teacher.dataset).generator))
        z = torch.randn(self.batch, LATENT, generator=rng, device=ctx.device).requires_grad_()
        step_s = torch.optim.Adam(phi_s.parameters(), lr=self.gamma_s)
        step_g = torch.optim.Adam([*phi_g.parameters(), z], lr=self.gamma_g)
        call_s = ctx.compiled(phi_s)

        with ctx.track(f"DPSD {self.mode} mode: converting", parameters.iterations) as advance:
            for _ in range(parameters.iterations):  # 2
                # 3: synthetic samples x_i = Phi_g(z_i)
                with torch.no_grad():
                    x = phi_g(z)

                # 4: differentially private annotation, Eq. 6
                y = self._annotate(x, phi_s.eval(), teacher.model, parameters, noise)

                # 5: the student descends L_s, Eq. 7
                phi_s.train()
                if self.mode == "data":  # y is one small step from the output; dropout would hide it
                    train_without_dropout(phi_s)
                with ctx.precision():
                    loss = F.cross_entropy(call_s(x).float(), y)
                descend(step_s, loss)

                # 6: the generator and its vectors descend L_s + L_g, Eq. 8; the student is fixed
                phi_s.eval().requires_grad_(False)
                with ctx.precision():
                    x = phi_g(z)
                    l_g = self._generator_loss(phi_s if self.discriminator == "student" else teacher.model, x)
                    loss = l_g + F.cross_entropy(call_s(x).float(), y)
                descend(step_g, loss)
                phi_s.requires_grad_(True)
                advance(1)

        # 8: return student and generator
        mechanism = self._mechanism(teacher.classes)
        with torch.no_grad():
            synthetic = phi_g(z)[:N_SYNTHETIC]
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            generator=phi_g,
            synthetic=synthetic,
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _annotate(
        self, x: Tensor, phi_s: nn.Module, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Eq. 6: return (b, c) noisy labels, the only use of the teacher's responses."""
        ours, theirs = phi_s(x), phi_t(x)
        if self.mode == "label":
            return F.one_hot(self._responses(ours, theirs, parameters, noise), ours.shape[1]).float()
        g = gaussian_rows(self._bounded_gradient(ours, theirs, parameters), parameters.sigma * parameters.beta, noise)
        return ours.softmax(1) - self.gamma_s * g

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters) -> Tensor:
        """Eq. 2 and the fraction of Eq. 3: return (b, c) gradients of norm at most beta, with k entries each."""
        l_t = kd_loss if self.loss == "kd" else partial(dkd_loss, weight=LAMBDA)
        # By magnitude, because the target class has a negative gradient
        g = keep_top_k(gradient_at_output(l_t, ours, theirs), parameters.k, "magnitude")
        return clip_rows(g, parameters.beta) if self.bound == "clip" else normalise_rows(g, parameters.beta, H)

    def _responses(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Eq. 5: return (b,) randomised responses for the teacher's class r; candidates are the student's top k."""
        r, candidates, epsilon = theirs.argmax(1), ours.topk(parameters.k, 1).indices, parameters.answer_epsilon
        if self.response == "printed":
            # No finite epsilon: a class outside the candidates is a possible response only if r is a candidate
            return randomised_response_as_printed(r, candidates, ours.shape[1], epsilon, noise)
        return randomised_response(r, candidates, epsilon, noise)

    def _generator_loss(self, discriminator: Any, x: Tensor) -> Tensor:
        """Return L_g of Eq. 8, a scalar, for images x (b, c, h, w)."""
        logits, argued = discriminator(x).float(), self.generator_terms == "argued"
        loss = self.ce_weight * confidence_loss(logits) + self.ie_weight * balance_loss(logits, per_sample=not argued)
        if self.norm_weight:
            loss = loss + self.norm_weight * activation_loss(discriminator.features(x).float(), up=argued)
        return loss

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """Return k, beta, and sigma (or the epsilon of one response, or T) calibrated to the budget."""
        fields = AnnotationParameters(
            k=check_candidates(self.k or paper_k(dataset, classes), dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.iterations,
        )
        return calibrate(self._mechanism(classes), fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        return AnnotationMechanism(
            self.mode,
            self.batch,
            classes,
            response_as_printed=self.response == "printed",
            teacher_trains_generator=self.discriminator == "teacher",
        )

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response to one synthetic image, of the two teachers that differ most."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)
        step = partial(self._annotate, parameters=parameters)
        game = response_game if self.mode == "label" else gradient_game
        return game(lambda x, s, t, noise: step(x, s, t, noise=noise), mechanism, parameters, budget.delta)
