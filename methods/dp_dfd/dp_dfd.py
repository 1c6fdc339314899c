"""DP-DFD: differentially private data-free distillation with selective randomised response.

Liu, Lu, Wang, Zhang, Zeng, Qian, Ge, "Privacy-Preserving Student Learning with Differentially Private Data-Free
Distillation", Algorithm 1. Symbols: phi_t teacher, phi_s student, phi_g generator; T stages, c classes, threshold t.

1. Train phi_g with phi_t as a fixed discriminator on Eq. 2: cross-entropy of phi_t to its own argmax, alpha times the
   information-entropy term, beta times the distance N of the BatchNorm statistics. Then, in every stage i:
2a. Generate the stage's share of synthetic images x.
 b. y_t = phi_t(x), y_s = phi_s(x), with the student of the previous stage.
 c. Selective randomised response R (lines 5-11): the candidates I are the classes with y_s > t, or the top two of y_s
    if fewer than two classes are above t; k = |I|. If the teacher's class is in I, the response is this class with
    probability e^epsilon / (e^epsilon + k - 1) and each other candidate with 1 / (e^epsilon + k - 1). Otherwise it is
    each candidate with probability 1 / k.
 d. Train phi_s on the divergence to the responses (Eq. 3), which are drawn once and reused; fine-tune phi_g.

Privacy. The paper claims epsilon for one response (unit `query`), with delta 0; this needs one-hot responses. One
private record (unit `example`) may change the teacher, hence all N responses, which compose
(`methods.dp_dfd.accounting`). The generator of line 1 learns from gradients and statistics of the unprotected teacher,
so the accounted epsilon of unit `example` is infinite. The variant `working` omits line 1; its epsilon is the sum over
the responses. The paper counts neither.

Differs from the paper:
- Line 5 sets k = |I| before line 7 replaces I by the top two; here k is counted afterwards, as section II-C has it.
- Line 9 returns the vector y_t for the teacher's class and one-hot vectors for the others. A soft vector reveals that
  it is the teacher's, so the default is `responses onehot`; `responses soft` is as printed and has no finite epsilon.
- `follow` decides where equations and text contradict each other. Eq. 2 prints the entropy term per sample; the text
  describes class balance, which needs the batch mean. Eq. 3 sums over the responses of the current stage; the text
  reuses responses "in training process", which means those of all stages so far.
- N is the sum over BatchNorm layers of the L2 distances of mean and of variance; the paper names no layers or weights.
  A teacher without BatchNorm is refused while beta > 0, because omitting the term would be another method.
- The fine-tuning loss is not given. Here it is Eq. 2 with phi_s instead of phi_t, without N: post-processing.
- y_s is a probability, as a threshold of 1 / (2c) requires. The divergence of Eq. 3 is KL(response || phi_s) at
  temperature 1.
- T and the number of images behind the tables are not given. T = 320 is the best of Fig. 3. The numbers of images are
  those at which section III-C reports convergence (50,000 MNIST, 120,000 FMNIST, 220,000 CIFAR10, 500,000 CIFAR100),
  and 120,000 for other data. They are split equally over the stages, rounded down (156 each on MNIST).
- Teacher (ResNet34) and student are the run's `--teacher` and `--student`. The generator's network, optimisers, rates,
  batches and steps are not given; here all use Adam, and z has length 100. The paper does not name its "general
  learning algorithm that is robust to random label noise"; here the loss is Eq. 3.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Sampler, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.generator_training import BatchStatistics, make_generator, pretrain
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.training import ReplayBuffer, descend
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import selective_response
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dp_dfd.accounting import (
    ResponsePlan,
    calibrate_responses,
    response_claim,
    response_game,
    response_ledger,
    uncalibrated_plan,
)

LATENT = 100
"""Length of a random vector z; the paper does not print it."""
N_SYNTHETIC = 60
"""Number of synthetic images that a release contains."""


@dataclass(frozen=True)
class DpDfd:
    """Options of DP-DFD, Algorithm 1; the defaults are those of section III-A.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DP-DFD, arXiv 2409.12384, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"stages": 2, "queries": 32, "batch": 16, "pretrain_steps": 2, "finetune_steps": 1, "student_steps": 2,
                  "width": 4},
        "quick": {"stages": 4, "queries": 16384, "batch": 128, "pretrain_steps": 30, "student_steps": 150},
    }  # fmt: skip
    recorded_as: ClassVar[dict[str, str]] = {"queries": "amount", "responses": "answers"}

    stages: Size[int] = 320
    """T, number of stages (Fig. 3)."""
    queries: Size[int] = 0
    """Number of queried synthetic images in all stages together (Fig. 2); 0 = the paper's for the data set."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one selective randomised response; solved from the budget unless --epsilon none."""
    threshold: float = 0.0
    """t of Alg. 1, line 5: classes with a larger probability under the student are candidates of a response; 0 = 1/(2c)
    for c classes."""
    responses: Literal["onehot", "soft"] = "onehot"
    """Response for the teacher's class: a one-hot vector, or y_t as in line 9, which has no finite epsilon."""
    ce_weight: float = 1.0
    """Weight of the cross-entropy (confident outputs) in the generator's loss, Eq. 2 (Tab. III, CE); 0 = off."""
    alpha: float = 5.0
    """alpha, weight of the information entropy (class balance) in the generator's loss, Eq. 2 (Tab. III, IE); 0 = off.
    """
    beta: float = 10.0
    """beta, weight of the distance to the teacher's BatchNorm statistics in the generator's loss, Eq. 2 (Tab. III,
    Norm); 0 = off."""
    follow: Literal["text", "equations"] = "text"
    """Reading of Eq. 2 and 3, where the paper contradicts itself: entropy of the batch mean and responses of all stages
    (text), or the printed entropy per sample and responses of the current stage (equations)."""
    pretrain_steps: Size[int] = 2000
    """Training steps of the generator against the teacher (Alg. 1, line 1)."""
    finetune_steps: Size[int] = 10
    """Training steps of the generator against the student in each stage (Alg. 1, line d)."""
    student_steps: Size[int] = 200
    """Training steps of the student in each stage."""
    batch: Size[int] = 256
    """Images per step of generator and student."""
    lr: float = 1e-3
    """Learning rate of student and generator (Adam)."""
    width: Size[int] = 32
    """Channels of the generator's last hidden map."""

    def __post_init__(self) -> None:
        at_least(self, 1, "stages", "student_steps", "width")
        at_least(self, 2, "batch")
        at_least(self, 0, "queries", "pretrain_steps", "finetune_steps", "ce_weight", "alpha", "beta")
        positive(self, "answer_epsilon", "lr")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; expected 0 (for 1/(2c)) or a probability below 1")

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build phi_g, for Gaussian z."""
        return Sampler(make_generator("upsample", dataset, shape, LATENT, self.width), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run Algorithm 1. Only line 1 and `label` query the teacher."""
        plan = self.plan(budget, teacher.dataset, teacher.classes)
        noise, rng = ctx.privacy_noise("dp-dfd"), ctx.generator("dp-dfd")
        phi_t = teacher.model
        phi_s = ctx.prepared(nets.build(student, teacher.shape, teacher.classes))
        phi_g = ctx.prepared(self.sampler(teacher.shape, teacher.classes, teacher.dataset).generator)
        step_s, trained = torch.optim.Adam(phi_s.parameters(), lr=self.lr), ctx.compiled(phi_s)

        # 1: the generator, with the teacher as its fixed discriminator (Eq. 2)
        self.pretrain_generator(phi_g, phi_t, rng, ctx)
        stored = ReplayBuffer()
        with ctx.track("DP-DFD: converting", plan.stages * self.student_steps) as advance:
            # 2: for i = 1 to T
            for _ in range(plan.stages):
                # 2a: the stage's synthetic images
                x = draw_images(phi_g, plan.share, self.batch, rng)
                # 2b, 2c: private labels
                y = self.label(x, phi_s.eval(), phi_t, plan, noise)
                stored = stored if self.follow == "text" else ReplayBuffer()
                stored.add(x, y)
                # 2d: the student learns from the responses (Eq. 3), then the generator from the student
                phi_s.train()
                for _ in range(self.student_steps):
                    images, targets = stored.sample(self.batch, rng)
                    with ctx.precision():
                        loss = kl_loss(trained(images).float(), targets)
                    descend(step_s, loss)
                    advance(1)
                self.finetune_generator(phi_g, phi_s, rng, ctx)
        # 3: the student of the last stage
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan),
            generator=phi_g,
            synthetic=draw_images(phi_g, N_SYNTHETIC, self.batch, rng),
            solved=plan.solved,
        )

    # Eq. 2

    def pretrain_generator(self, phi_g: nn.Module, phi_t: nn.Module, rng: torch.Generator, ctx: Context) -> None:
        """Line 1: train phi_g on all three terms of Eq. 2, with the teacher as the fixed discriminator."""
        watched = BatchStatistics(phi_t) if self.beta else nullcontext()
        with ctx.track("DP-DFD: generator against the teacher", self.pretrain_steps) as advance, watched as statistics:
            loss = partial(self.generator_loss, phi_t, statistics)
            pretrain(
                phi_g, phi_t, self.pretrain_steps, self.batch, self.lr, loss, rng, advance, precision=ctx.precision
            )

    def finetune_generator(self, phi_g: nn.Module, phi_s: nn.Module, rng: torch.Generator, ctx: Context) -> None:
        """Line 2d: train phi_g on Eq. 2 without N, with the student as the discriminator."""
        # No N: the student's running statistics come from synthetic images, not from private ones
        loss, silent = partial(self.generator_loss, phi_s, None), lambda _: None
        pretrain(phi_g, phi_s, self.finetune_steps, self.batch, self.lr, loss, rng, silent, precision=ctx.precision)

    def generator_loss(self, discriminator: nn.Module, statistics: BatchStatistics | None, x: Tensor) -> Tensor:
        """Return L_g of Eq. 2; `statistics` records the discriminator's BatchNorm inputs for N, None omits N."""
        logits = discriminator(x).float()
        entropy = balance_loss(logits, per_sample=self.follow == "equations")
        loss = self.ce_weight * confidence_loss(logits) + self.alpha * entropy
        return loss if statistics is None else loss + self.beta * statistics.distance()

    # 4: selective randomised response R

    @torch.no_grad()
    def label(self, x: Tensor, phi_s: nn.Module, phi_t: nn.Module, plan: ResponsePlan, noise: Source) -> Tensor:
        """Lines 2b and 2c: return (n, c) private labels, the only output of the teacher that the student uses."""
        y_s, y_t = outputs(x, phi_s, phi_t, self.batch)
        allowed = candidates(y_s, plan.threshold)
        return respond(allowed, y_t, plan.answer_epsilon, noise, soft=self.responses == "soft")

    # Privacy

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no response epsilon can meet, before anything is trained."""
        self.plan(budget, dataset, classes)

    def plan(self, budget: Budget, dataset: str, classes: int) -> ResponsePlan:
        """Return t, T and the images per stage; calibrate the epsilon of one response to the budget.

        Raises:
            BenchError: the budget cannot be met; the message has the reason.
        """
        fields = uncalibrated_plan(self.threshold, self.stages, self.queries, self.answer_epsilon, dataset, classes)
        refusal = ""
        if self.responses == "soft":
            refusal = "a soft response (the teacher's own vector) has no finite epsilon; use --method.responses onehot"
        elif budget.unit == Unit.EXAMPLE:
            refusal = (
                "line 1 trains the generator on the unprotected teacher, which has no finite epsilon for one example; "
                "use --variant working"
            )
        return calibrate_responses(fields, budget, self.ledger, refusal)

    def ledger(self, plan: ResponsePlan) -> Ledger:
        """Return the ledger of all access to the private data, for one private record and for one response."""
        return response_ledger(plan, generator_saw_teacher=True, soft=self.responses == "soft")

    def claim(self, plan: ResponsePlan) -> Claim:
        """Return the claim: epsilon-LabelDP of one response."""
        return response_claim(plan, soft=self.responses == "soft")

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response to one synthetic image."""
        plan = self.plan(budget, dataset, classes)
        step = partial(self.label, plan=plan)
        return response_game(
            plan, self.ledger(plan), budget.delta, classes, lambda x, s, t, noise: step(x, s, t, noise=noise)
        )


@torch.no_grad()
def draw_images(phi_g: nn.Module, count: int, batch: int, rng: torch.Generator) -> Tensor:
    """Line 2a: generate (count, c, h, w) images from new z, `batch` at a time."""
    z = torch.randn(count, LATENT, generator=rng, device=rng.device)
    return torch.cat([phi_g(part) for part in z.split(batch)])


def outputs(x: Tensor, phi_s: nn.Module, phi_t: nn.Module, batch: int) -> tuple[Tensor, Tensor]:
    """Line 2b: return y_s, probabilities, and y_t, logits; both (n, c)."""
    parts = [(phi_s(part).softmax(1), phi_t(part)) for part in x.split(batch)]
    y_s, y_t = (torch.cat(each) for each in zip(*parts, strict=True))
    return y_s, y_t


def candidates(y_s: Tensor, threshold: float) -> Tensor:
    """Lines 5-7: return I, (n, c) bool: the classes above the threshold, or the top two if fewer than two are above.

    Args:
        y_s: (n, c) the student's probabilities, c >= 2.
        threshold: t.
    """
    above = y_s > threshold
    top_two = torch.zeros_like(above).scatter(1, y_s.topk(2, 1).indices, True)
    # Line 7 before k is counted: k = 0 would give a probability above 1, k = 1 a response without noise
    return torch.where(above.sum(1, keepdim=True) < 2, top_two, above)


def respond(allowed: Tensor, y_t: Tensor, epsilon: float, noise: Source, soft: bool = False) -> Tensor:
    """Lines 8-11: return (n, c) responses, one-hot unless `soft`.

    Args:
        allowed: (n, c) bool, the candidates I.
        y_t: (n, c), the teacher's logits.
        epsilon: epsilon of one response; may be infinite.
        soft: whether the response for the teacher's class is y_t, as in line 9; this has no finite epsilon.
    """
    r = y_t.argmax(1)
    # 9: a class in I is kept with probability e^epsilon / (e^epsilon + k - 1); 11: otherwise uniform over I
    answered = selective_response(r, allowed, epsilon, noise)
    onehot = F.one_hot(answered, y_t.shape[1]).to(y_t.dtype)
    return torch.where((answered == r)[:, None], y_t.softmax(1), onehot) if soft else onehot


def kl_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return Eq. 3, batch mean: KL(y || p_s) for (n, c) targets y and the student's (n, c) logits; 0 log 0 = 0."""
    # The other direction is infinite for one-hot responses
    return F.kl_div(logits.log_softmax(1), targets, reduction="batchmean")
