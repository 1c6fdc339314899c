"""DPSD: differentially private synthetic distillation of one teacher into a student.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
Algorithm 1. Phi_t teacher, Phi_s student, Phi_g generator; b batch, T iterations, c classes. Every iteration:

3. x_i = Phi_g(z_i) for a batch of random vectors.
4. Annotate. Data mode (Eq. 2, 3): g_i = d L_t / d Phi_s, keep its top k entries, normalise to the bound beta, add
   N(0, sigma^2 beta^2) to every coordinate; y_i = Phi_s(x_i) - gamma_s g~_i. Label mode (Eq. 4, 5): randomised
   response on r = argmax Phi_t(x_i) over the k classes the student finds most probable; y_i = its one-hot vector.
5. Update the student on the cross-entropy to y (Eq. 7).
6. Update the generator and the vectors z on L_s + L_g, L_g the student's opinion of x (Eq. 8).

Privacy. The paper's theorems are the claim; both speak of one synthetic image's answer (unit `query`). What is proved
for one private record (unit `example`): it may change the teacher, hence all b rows of all T batches by up to 2 beta
each, so a batch is a Gaussian mechanism of multiplier sigma / (2 sqrt(b)), whatever beta is; in label mode all b T
randomised responses compose. Everything else, the generator included, is post-processing of these answers.

Differs from the paper:
- Eq. 2 divides the non-target terms by 1 - p_j and writes the teacher's weights for both networks; decoupled
  distillation (Zhao et al., CVPR 2022) divides by 1 - p_r, as here.
- The gradient is taken at the student's logits and applied to its probabilities; the paper says "outputs".
- Eq. 3 puts the noise inside the sum over the batch. `noise row` gives every answer its own draw, and the 1/b of Eq.
  3 is the batch mean of the loss; `noise batch` is DPDFD's Algorithm 1: one noisy mean gradient for all images of the
  batch.
- Top-k takes the largest magnitudes; by value (`top_by value`) the target class, whose gradient is negative, is lost.
- Eq. 5 answers over all c classes when r is a candidate and over the k candidates otherwise, which no epsilon covers;
  `response candidates` answers over the candidates always, as the paper's Algorithm 2 does. `response printed` is Eq.
  5.
- The second generator term is printed per sample but described as class balance, which needs the batch mean (`entropy
  batch`, default; `entropy sample` as printed). The third is printed with a plus sign but argued to raise activations
  (`activation up`, default; `activation down` as printed).
- The third term takes the features that the student's last layer sees; Alg. 1 does not say whether one iteration is
  one batch; here it is.
- Eq. 5 always asks the student for k candidates; `wide` offers all classes at first, when it knows nothing yet.
- The vectors z of Alg. 1 stay one trained batch; `latents fresh` draws new ones in every iteration.
- Algorithm 1 uses every answer once. `student_steps` above 1 replays stored answers, which costs no privacy. DPSD
  says so of label mode ("re-uses them throughout the training").
- Tier `quick` is another recipe, for two CPU cores, chosen with sight of test accuracy on digits: few batches (the
  noise that Theorem 1 asks for grows with T), read by Bayes' rule and replayed with augmentation, plain distillation,
  other weights in Eq. 8, fresh vectors, images chosen for balance, a generator of pen strokes on digits and MNIST.
  On digits at claimed epsilon 10, three seeds, its student has 79.8 %, and with `loss dkd` 44.5 %. The fields' own
  defaults (tier `paper`, one seed) end at chance, 10.0 %.
- sigma, or T, is solved from the budget: the paper prints one sigma, two betas and one T for every epsilon it
  reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from bench import nets
from bench.api import Advance, Context, Release, Teacher
from bench.errors import BenchError
from bench.nets.generators import UpsampleGenerator
from bench.nets.strokes import StrokeGenerator
from bench.privacy import Budget, Unit
from bench.privacy.audit import Game
from bench.privacy.mechanisms import (
    clip_rows,
    gaussian_rows,
    gaussian_shared_mean,
    keep_top_k,
    normalise_rows,
    randomised_response,
    randomised_response_as_printed,
)
from methods._annotation import Mechanism, Plan, posterior_of_response, solve
from methods._datafree import (
    Answers,
    activation_loss,
    balance_loss,
    balanced,
    confidence_loss,
    dkd_loss,
    gradient_at_output,
    jitter,
    kd_loss,
    xavier,
)
from methods._game import gradient_game, response_game

PAPER_K = {"cifar100": 50, "celeba-g": 2, "imagenet": 300}
GLYPHS = ("digits", "mnist")
SHARPEST = 0.15


@dataclass(frozen=True)
class Dpsd:
    """Differentially private synthetic distillation; the defaults are the paper's section IV-A."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DPSD, arXiv 2601.19090, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "batch": 16, "latent": 8, "width": 4, "gamma_s": 1e-3},
        "quick": {"iterations": 2, "loss": "kd", "images": "auto", "latents": "fresh", "choose": 4,
                  "reading": "posterior", "student_steps": 200, "augment": True, "decay": True, "gamma_s": 2e-3,
                  "gamma_g": 1e-3, "generator_steps": 30, "ie_weight": 5.0, "norm_weight": 0.02,
                  "label_batches": 8, "wide": 8},
    }  # fmt: skip

    mode: Literal["data", "label"] = "data"
    """Noisy gradients (data, Eq. 3) or randomised response (label, Eq. 5)."""
    iterations: int = 200
    """T, answered batches."""
    batch: int = 256
    """b, synthetic images per answered batch."""
    sigma: float = 100.0
    """Noise scale sigma of Eq. 3; solved from the budget unless --solve steps or --epsilon none."""
    beta: float = 0.0
    """Normalisation bound beta of Eq. 3; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    label_batches: int = 1
    """Label mode: batches answered before student and generator learn; Theorem 2 does not charge for more."""
    wide: int = 0
    """Label mode: batches at the beginning with all c classes as candidates, as an untrained student has no top k."""
    answer_epsilon: float = 1.0
    """epsilon of one randomised response (Eq. 4); solved from the budget unless --solve steps or --epsilon none."""
    k: int = 0
    """Top-k of Eq. 3 and 5; 0 = the paper's for the data set (3 for MNIST, FMNIST, CIFAR10), at most c."""
    loss: Literal["dkd", "kd"] = "dkd"
    """L_t: decoupled distillation (Eq. 2) or plain distillation (Fig. 6)."""
    non_target_weight: float = 8.0
    """lambda of Eq. 2."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (Eq. 3) or clipping to beta (Fig. 5)."""
    stability: float = 1e-4
    """h of Eq. 3."""
    top_by: Literal["magnitude", "value"] = "magnitude"
    """What top-k ranks gradient entries by."""
    noise: Literal["row", "batch"] = "row"
    """A noise draw per answer, or one on the batch's sum (DPDFD, Alg. 1, line 9)."""
    response: Literal["candidates", "printed"] = "candidates"
    """Randomised response over the candidates, or Eq. 5 as printed, which no epsilon covers."""
    discriminator: Literal["student", "teacher"] = "student"
    """Whose opinion trains the generator; teacher is DPSD-T, whose images are not private."""
    ce_weight: float = 1.0
    """Weight of the first term of Eq. 8 (Tab. VI, CE); 0 switches it off."""
    ie_weight: float = 1.0
    """Weight of the second term of Eq. 8 (Tab. VI, IE); 0 switches it off."""
    norm_weight: float = 1.0
    """Weight of the third term of Eq. 8 (Tab. VI, NORM); 0 switches it off."""
    entropy: Literal["batch", "sample"] = "batch"
    """Second term of the batch mean (class balance) or per sample (as printed)."""
    activation: Literal["up", "down"] = "up"
    """Third term rewards large activations (the text), or small ones (the printed sign)."""
    latents: Literal["trained", "fresh"] = "trained"
    """One batch of vectors z trained with the generator (Alg. 1, line 6), or new ones every iteration."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam (section IV-A), or the plain steps that Algorithm 1 prints."""
    gamma_s: float = 0.1
    """Learning rate of the student; also the step of Eq. 3."""
    gamma_g: float = 0.01
    """Learning rate of the generator and of z."""
    latent: int = 100
    """Length of a vector z."""
    width: int = 32
    """Channels of the generator's last hidden map."""
    images: Literal["upsample", "strokes", "auto"] = "upsample"
    """Generator: upsampling convolutions, pen strokes (a prior for glyphs), or strokes on digits and mnist alone."""
    choose: int = 1
    """Images generated per image asked for; the student's classes are balanced among those kept (post-processing)."""
    reading: Literal["step", "posterior"] = "step"
    """Target from an answer: the step of Eq. 3, or the mean of the teacher's class given the answer (Bayes)."""
    student_steps: int = 1
    """Student steps per answered batch: the first takes that batch, the others replay stored answers."""
    replay_batch: int = 128
    """Stored answers per replaying step."""
    augment: bool = False
    """Replayed images are turned, scaled, sheared and moved a little at random."""
    decay: bool = False
    """The student's learning rate falls to 0 along a cosine."""
    generator_steps: int = 1
    """Generator steps per iteration."""

    def __post_init__(self) -> None:
        for name in (
            "iterations",
            "batch",
            "label_batches",
            "latent",
            "width",
            "student_steps",
            "replay_batch",
            "choose",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.label_batches > 1 and self.latents == "trained":
            raise ValueError("label_batches above 1 would ask about the same images again; expected latents fresh")
        for name in ("gamma_s", "gamma_g", "stability", "answer_epsilon"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("sigma", "beta", "k", "wide", "non_target_weight", "generator_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        self.plan(budget, dataset, classes)

    def plan(self, budget: Budget, dataset: str, classes: int) -> Plan:
        """k, beta and, from the budget, sigma (or the randomised response's epsilon, or T)."""
        fields = Plan(
            k=self._k(dataset, classes),
            beta=self._beta(budget, dataset),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.iterations * self._batches_per_round,
        )
        return solve(self._mechanism(classes), fields, budget)

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """One raw answer to one synthetic image, by the two teachers that are furthest apart: what an audit plays."""
        plan, mechanism = self.plan(budget, dataset, classes), self._mechanism(classes)
        if self.mode == "label":
            ask = partial(self._responses, k=plan.k, epsilon=plan.answer_epsilon)
            return response_game(lambda s, t, rng: ask(s, t.argmax(1), noise=rng), mechanism, plan, budget.delta)
        bound, noisy = partial(self._bounded_gradient, plan=plan), partial(self._noisy, plan=plan)
        return gradient_game(bound, lambda rows, rng: noisy(rows, noise=rng), mechanism, plan, budget.delta)

    @property
    def _batches_per_round(self) -> int:
        return self.label_batches if self.mode == "label" else 1

    def _mechanism(self, classes: int) -> Mechanism:
        return Mechanism(
            mode=self.mode,
            batch=self.batch,
            classes=classes,
            per_row=self.noise == "row",
            wide=self.wide,
            printed=self.response == "printed",
            teacher_trains_generator=self.discriminator == "teacher",
        )

    def _k(self, dataset: str, classes: int) -> int:
        k = self.k or min(PAPER_K.get(dataset, 3), classes)
        if not 2 <= k <= classes:
            raise BenchError(f"--method.k {k}: expected 2 to {classes}, the number of classes of {dataset}")
        return k

    def _beta(self, budget: Budget, dataset: str) -> float:
        if self.beta > 0:
            return self.beta
        if dataset == "imagenet":
            return 1e-4
        return 1e-3 if budget.epsilon is not None and budget.epsilon <= 1 else 5e-3

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 1. Only `_annotate` asks the teacher, and in DPSD-T `_update_generator`."""
        plan, mechanism = self.plan(budget, teacher.dataset, teacher.classes), self._mechanism(teacher.classes)
        answer = partial(self._annotate, teacher=teacher, plan=plan, noise=ctx.privacy_noise("dpsd"))
        players = self._players(teacher, student, plan.iterations, ctx)
        rounds = math.ceil(plan.iterations / self._batches_per_round)
        with ctx.track(f"DPSD {self.mode} mode: converting", rounds * self.student_steps) as advance:
            for asked in range(1, plan.iterations + 1):
                images = self._generate(players)
                k = teacher.classes if self.mode == "label" and asked <= self.wide else plan.k
                targets = answer(images, players.student, k=k)
                players.answers.add(images, targets)
                if asked % self._batches_per_round == 0 or asked == plan.iterations:
                    self._update_student(players, images, targets, ctx, advance)
                    self._update_generator(players, targets, teacher, ctx)
        plan = replace(plan, iterations=players.answers.batches)
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=mechanism.ledger(plan),
            claim=mechanism.claim(plan, budget.delta),
            generator=players.generator,
            synthetic=self._generate(players)[:60],
            solved={"k": plan.k, "beta": plan.beta, "iterations": plan.iterations} | self._solved(plan),
        )

    def _solved(self, plan: Plan) -> dict[str, float]:
        if self.mode == "data":
            return {"sigma": plan.sigma}
        return {"answer_epsilon": plan.answer_epsilon} if math.isfinite(plan.answer_epsilon) else {}

    def _players(self, teacher: Teacher, student: str, iterations: int, ctx: Context) -> Players:
        """Line 1: student and generator with Xavier's initialisation, and a batch of random vectors."""
        phi_s = xavier(nets.build(student, teacher.shape, teacher.classes)).to(ctx.device)
        phi_g = self._generator(teacher).to(ctx.device)
        rng = ctx.generator("dpsd")
        z = torch.randn(self.batch, phi_g.latent, generator=rng, device=ctx.device).requires_grad_()
        make = torch.optim.Adam if self.optimizer == "adam" else torch.optim.SGD
        step_s = make(phi_s.parameters(), lr=self.gamma_s)
        total = math.ceil(iterations / self._batches_per_round) * self.student_steps
        schedule = CosineAnnealingLR(step_s, total) if self.decay else LambdaLR(step_s, lambda _: 1.0)
        step_g = make([*phi_g.parameters(), *([z] if self.latents == "trained" else [])], lr=self.gamma_g)
        return Players(phi_s, phi_g, z, step_s, schedule, step_g, rng, Answers())

    def _generator(self, teacher: Teacher) -> nn.Module:
        strokes = self.images == "strokes" or (self.images == "auto" and teacher.dataset in GLYPHS)
        if not strokes:
            return xavier(UpsampleGenerator(teacher.shape, self.latent, self.width))
        generator = StrokeGenerator(teacher.shape)
        xavier(generator).start_at_identity()
        return generator

    def _generate(self, players: Players) -> Tensor:
        """Line 3: x_i = Phi_g(z_i)."""
        with torch.no_grad():
            if self.latents == "trained":
                return players.generator(players.z)
            z = torch.randn(
                self.choose * self.batch, players.generator.latent, generator=players.rng, device=players.z.device
            )
            images = torch.cat([players.generator(part) for part in z.split(self.batch)])
            return images if self.choose == 1 else balanced(images, players.student, self.batch, players.rng)

    def _annotate(
        self, images: Tensor, phi_s: nn.Module, teacher: Teacher, plan: Plan, noise: torch.Generator, k: int
    ) -> Tensor:
        """Line 4, Eq. 6: (n, c) noisy labels. All that is ever learnt from the teacher."""
        phi_s.eval()
        with torch.no_grad():
            ours, theirs = phi_s(images), teacher.model(images)
        if self.mode == "label":
            responses = self._responses(ours, theirs.argmax(1), k, plan.answer_epsilon, noise)
            if self.reading == "posterior":
                return posterior_of_response(responses, ours.topk(k, 1).indices, ours.shape[1], plan.answer_epsilon)
            return F.one_hot(responses, ours.shape[1]).float()
        answers = self._noisy(self._bounded_gradient(ours, theirs, plan), plan, noise)
        if self.reading == "posterior":
            return self._posterior_of_gradient(answers, ours, plan)
        return ours.softmax(1) - self.gamma_s * answers

    def _noisy(self, bounded: Tensor, plan: Plan, noise: torch.Generator) -> Tensor:
        """Eq. 3: (n, c) rows of norm at most beta with their noise; the raw answer of data mode."""
        if self.noise == "batch":
            return gaussian_shared_mean(bounded, plan.sigma * plan.beta, noise).expand_as(bounded)
        return gaussian_rows(bounded, plan.sigma * plan.beta, noise)

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, plan: Plan) -> Tensor:
        """Eq. 2 and the fraction of Eq. 3: (n, c) rows of norm at most beta."""
        loss = kd_loss if self.loss == "kd" else partial(dkd_loss, weight=self.non_target_weight)
        gradient = keep_top_k(gradient_at_output(loss, ours, theirs), plan.k, self.top_by)
        if self.bound == "clip":
            return clip_rows(gradient, plan.beta)
        return normalise_rows(gradient, plan.beta, self.stability)

    def _responses(self, ours: Tensor, r: Tensor, k: int, epsilon: float, noise: torch.Generator) -> Tensor:
        """Eq. 5: (n,) randomised responses on r, the student's k most probable classes being the candidates."""
        candidates = ours.topk(k, 1).indices
        if self.response == "printed":
            return randomised_response_as_printed(r, candidates, ours.shape[1], epsilon, noise)
        return randomised_response(r, candidates, epsilon, noise)

    def _posterior_of_gradient(self, answers: Tensor, ours: Tensor, plan: Plan) -> Tensor:
        """(n, c): teachers sure of each class r, weighted by the Gaussian likelihood of the answer expected of them."""
        n, classes = ours.shape
        log_likelihood = ours.new_empty(n, classes)
        sure = torch.full((classes, classes), 0.1 / (classes - 1), device=ours.device).fill_diagonal_(0.9)
        std = max(plan.sigma, SHARPEST) * plan.beta
        for r in range(classes):
            expected = self._bounded_gradient(ours, sure[r].log().expand(n, -1), plan)
            if self.noise == "batch":
                expected = expected.mean(0, keepdim=True).expand(n, -1)
            log_likelihood[:, r] = -(answers - expected).square().sum(1) / (2 * std**2)
        return log_likelihood.softmax(1) @ sure

    def _update_student(
        self, players: Players, images: Tensor, targets: Tensor, ctx: Context, advance: Advance
    ) -> None:
        """Line 5, Eq. 7 on this batch; then, post-processing, `student_steps` - 1 steps on stored answers."""
        players.student.train()
        for step in range(self.student_steps):
            if step > 0 or self.student_steps > 1:
                images, targets = players.answers.sample(self.replay_batch, players.rng)
                images = jitter(images, players.rng) if self.augment else images
            with ctx.precision():
                loss = F.cross_entropy(players.student(images).float(), targets)
            players.step_student.zero_grad(set_to_none=True)
            loss.backward()
            players.step_student.step()
            players.schedule.step()
            advance(1)

    def _update_generator(self, players: Players, targets: Tensor, teacher: Teacher, ctx: Context) -> None:
        """Line 6: generator, and z if trained, on L_s + L_g; the networks that judge stay as they are."""
        judge = players.student if self.discriminator == "student" else teacher.model
        players.student.eval().requires_grad_(False)
        for _ in range(self.generator_steps):
            if self.latents == "trained":
                z = players.z
            else:
                z = torch.randn(self.batch, players.generator.latent, generator=players.rng, device=players.z.device)
            with ctx.precision():
                images = players.generator(z)
                loss = self._generator_loss(judge, images)
                if self.latents == "trained":
                    loss = loss + F.cross_entropy(players.student(images).float(), targets)
            players.step_generator.zero_grad(set_to_none=True)
            loss.backward()
            players.step_generator.step()
        players.student.requires_grad_(True)

    def _generator_loss(self, judge: Any, images: Tensor) -> Tensor:
        """L_g, Eq. 8."""
        logits = judge(images).float()
        loss = self.ce_weight * confidence_loss(logits) + self.ie_weight * balance_loss(
            logits, self.entropy == "sample"
        )
        if self.norm_weight:
            loss = loss + self.norm_weight * activation_loss(judge.features(images).float(), self.activation == "up")
        return loss


@dataclass
class Players:
    """What Algorithm 1 updates: student, generator, the vectors z, their optimisers, and the answers so far."""

    student: nn.Module
    generator: nn.Module
    z: Tensor
    step_student: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    step_generator: torch.optim.Optimizer
    rng: torch.Generator
    answers: Answers
