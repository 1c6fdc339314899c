"""DPSD: differentially private synthetic distillation of one teacher into a student.

Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation",
Algorithm 1. Phi_t teacher, Phi_s student, Phi_g generator; b batch, T iterations, c classes. Every iteration:

3. x_i = Phi_g(z_i) for a batch of random vectors.
4. Annotate. Data mode (Eq. 2, 3): g_i = d L_t / d Phi_s, keep its top k entries, normalise to the bound beta, add
   N(0, sigma^2 beta^2) to every coordinate; y_i = Phi_s(x_i) - gamma_s g~_i. Label mode (Eq. 4, 5): randomised
   response on r = argmax Phi_t(x_i) over the k classes the student finds most probable; y_i = its one-hot vector.
5. Update the student on the cross-entropy to y (Eq. 7).
6. Update the generator and the vectors z on L_s + L_g, L_g the student's opinion of x (Eq. 8).

Privacy, one teacher. The theorems are the claim; both speak of one synthetic image (unit `query`). What is proved
for one private record (unit `example`): it may change the teacher, hence all b rows of all T batches by up to 2 beta
each, so a batch is a Gaussian mechanism of multiplier sigma / (2 sqrt(b)), whatever beta is; in label mode all b T
randomised responses compose. Everything else, the generator included, is post-processing of these answers.

Many teachers (`--teachers n`). DPSD has no such mode but the federated one; this is DPDFD's section 4.4, with the
options of `ensemble_mode`: a private record stands behind one of n teachers on disjoint shards, and an answer is
a Gaussian
mechanism of multiplier sigma / 2 (gradients) or sigma / sqrt(2) (votes). This is where a finite epsilon comes from.

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
- The student has no dropout while it learns from Eq. 3's targets, which lie a step of gamma_s beta from its own output.
- Algorithm 1 uses every answer once. `student_steps` above 1 replays stored answers, which costs no privacy. DPSD
  says so of label mode ("re-uses them throughout the training").
- Tier `quick` is another recipe, for two CPU cores, chosen with sight of test accuracy on digits: few batches (the
  noise that Theorem 1 asks for grows with T), read by Bayes' rule and replayed with augmentation, plain distillation,
  other weights in Eq. 8, fresh vectors, images chosen for balance, a generator of pen strokes on digits and MNIST.
  On digits at claimed epsilon 10 its student has 73.3 % (64.9 to 77.4 over five seeds); with `loss dkd` version 1 had
  44.5 % (three seeds). The fields' own defaults (tier `paper`, one seed) end at chance, 10.3 %, without noise too.
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

from bench.api import Context, Release, Teacher
from bench.distillation.distinguishing_games import gradient_game, response_game
from bench.distillation.ensemble_mode import Sound
from bench.distillation.loop import Players, updates
from bench.distillation.noisy_labels import Mechanism, Plan, paper_beta, paper_k, posterior_of_response, solve
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.privacy.audit import Game
from bench.privacy.mechanisms import (
    gaussian_rows,
    gaussian_shared_mean,
    keep_top_k,
    randomised_response,
    randomised_response_as_printed,
)
from bench.privacy.noise import Source


@dataclass(frozen=True)
class Dpsd(Sound):
    """Differentially private synthetic distillation; the defaults are the paper's section IV-A."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Liu et al., DPSD, arXiv 2601.19090, Algorithm 1"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "batch": 16, "latent": 8, "width": 4, "gamma_s": 1e-3},
        "quick": {"iterations": 2, "loss": "kd", "images": "auto", "latents": "fresh", "choose": 4,
                  "reading": "posterior", "student_steps": 200, "augment": True, "decay": True, "gamma_s": 2e-3,
                  "gamma_g": 1e-3, "generator_steps": 30, "ie_weight": 5.0, "norm_weight": 0.02,
                  "label_batches": 8, "wide": 8,
                  "teacher_nets": "scatter-linear", "aggregate": "votes", "queries": 1024, "extra": 9216,
                  "asks": 0, "ensemble_steps": 800, "prior": "moments", "prior_share": 0.8},
    }  # fmt: skip

    mode: Literal["data", "label"] = "data"
    """Noisy gradients (data, Eq. 3) or randomised response (label, Eq. 5)."""
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
    top_by: Literal["magnitude", "value"] = "magnitude"
    """What top-k ranks gradient entries by."""
    noise: Literal["row", "batch"] = "row"
    """A noise draw per answer, or one on the batch's sum (DPDFD, Alg. 1, line 9)."""
    response: Literal["candidates", "printed"] = "candidates"
    """Randomised response over the candidates, or Eq. 5 as printed, which no epsilon covers."""
    discriminator: Literal["student", "teacher"] = "student"
    """Whose opinion trains the generator; teacher is DPSD-T, whose images are not private."""
    latents: Literal["trained", "fresh"] = "trained"
    """One batch of vectors z trained with the generator (Alg. 1, line 6), or new ones every iteration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_batches < 1:
            raise ValueError(f"label_batches is {self.label_batches}; expected at least 1")
        if self.label_batches > 1 and self.latents == "trained":
            raise ValueError("label_batches above 1 would ask about the same images again; expected latents fresh")
        if self.teachers and (self.mode == "label" or self.discriminator == "teacher" or self.noise == "batch"):
            raise ValueError(
                "many teachers answer with noisy sums, one draw per image, and the student judges: leave mode, "
                "discriminator and noise at data, student and row (votes: --method.aggregate votes)"
            )
        if self.label_batches > 1 and self.student_steps == 1:
            raise ValueError(
                "label_batches above 1 needs stored answers to be replayed: expected student_steps above 1"
            )
        if self.mode == "data" and self.noise == "batch" and self.reading == "posterior":
            raise ValueError("reading posterior is of one image's own answer; expected noise row, or reading step")
        if self.answer_epsilon <= 0:
            raise ValueError(f"answer_epsilon is {self.answer_epsilon}; expected more than 0")
        for name in ("beta", "k", "wide"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")

    @property
    def targets_move_output(self) -> bool:
        """Eq. 3's targets do, Eq. 5's are classes."""
        return self.mode == "data" and super().targets_move_output

    @property
    def needs(self) -> frozenset[str]:
        """A teacher, or many of them."""
        return self.sound_needs

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        self.plan(budget, dataset, classes)

    def plan(self, budget: Budget, dataset: str, classes: int) -> Plan:
        """k, beta and, from the budget, sigma (or the randomised response's epsilon, or T)."""
        fields = Plan(
            k=self._k(dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.batches if self.teachers else self.iterations * self._batches_per_round,
        )
        return solve(self._mechanism(classes), fields, budget)

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """One raw answer to one synthetic image, by the two teachers that are furthest apart: what an audit plays."""
        plan, mechanism = self.plan(budget, dataset, classes), self._mechanism(classes)
        if self.teachers:
            return self.ensemble_game(plan, mechanism, budget.delta)
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
            teachers=self.teachers,
            votes=self.aggregate == "votes",
            prior_share=self.share,
        )

    def _k(self, dataset: str, classes: int) -> int:
        k = self.k or paper_k(dataset, classes)
        if not 2 <= k <= classes:
            raise BenchError(f"--method.k {k}: expected 2 to {classes}, the number of classes of {dataset}")
        return k

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 1. Only `_annotate` asks the teacher, and in DPSD-T `update_generator`."""
        plan, mechanism = self.plan(budget, teacher.dataset, teacher.classes), self._mechanism(teacher.classes)
        if self.teachers:
            return self.convert_soundly(teacher, student, plan, mechanism, self._bounded_gradient, ctx)
        answer = partial(self._annotate, teacher=teacher, plan=plan, noise=ctx.privacy_noise("dpsd"))
        rounds = updates(plan.iterations, self._batches_per_round)
        players = self.players(teacher, student, rounds, ctx, trained_z=self.latents == "trained")
        judge = players.student if self.discriminator == "student" else teacher.model
        with ctx.track(f"DPSD {self.mode} mode: converting", rounds * self.student_steps) as advance:
            for asked in range(1, plan.iterations + 1):
                images = self._generate(players, ctx)
                k = teacher.classes if self.mode == "label" and asked <= self.wide else plan.k
                targets = answer(images, players.student, k=k)
                players.answers.add(images, targets)
                if asked % self._batches_per_round == 0 or asked == plan.iterations:
                    self.update_student(players, images, targets, ctx, advance)
                    self.update_generator(players, ctx, judge, targets if self.latents == "trained" else None)
        plan = replace(plan, iterations=players.answers.batches)
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=mechanism.ledger(plan),
            claim=mechanism.claim(plan, budget.delta),
            generator=players.generator,
            synthetic=self._generate(players, ctx)[:60],
            solved={"k": plan.k, "beta": plan.beta, "iterations": plan.iterations} | self._solved(plan),
        )

    def _solved(self, plan: Plan) -> dict[str, float]:
        if self.mode == "data":
            return {"sigma": plan.sigma}
        return {"answer_epsilon": plan.answer_epsilon} if math.isfinite(plan.answer_epsilon) else {}

    def _generate(self, players: Players, ctx: Context) -> Tensor:
        """Line 3: x_i = Phi_g(z_i)."""
        if self.latents == "fresh":
            return self.fresh(players, ctx)
        with torch.no_grad():
            return players.generator(players.z)

    def _annotate(
        self, images: Tensor, phi_s: nn.Module, teacher: Teacher, plan: Plan, noise: Source, k: int
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
            return self.posterior_of_gradients(
                answers, ours, partial(self._bounded_gradient, plan=plan), plan.beta, plan.sigma
            )
        return ours.softmax(1) - self.gamma_s * answers

    def _noisy(self, bounded: Tensor, plan: Plan, noise: Source) -> Tensor:
        """Eq. 3: (n, c) rows of norm at most beta with their noise; the raw answer of data mode."""
        if self.noise == "batch":
            return gaussian_shared_mean(bounded, plan.sigma * plan.beta, noise).expand_as(bounded)
        return gaussian_rows(bounded, plan.sigma * plan.beta, noise)

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, plan: Plan) -> Tensor:
        """Eq. 2 and the fraction of Eq. 3: (n, c) rows of norm at most beta."""
        return self.bounded(keep_top_k(self.gradient(ours, theirs), plan.k, self.top_by), plan.beta)

    def _responses(self, ours: Tensor, r: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
        """Eq. 5: (n,) randomised responses on r, the student's k most probable classes being the candidates."""
        candidates = ours.topk(k, 1).indices
        if self.response == "printed":
            return randomised_response_as_printed(r, candidates, ours.shape[1], epsilon, noise)
        return randomised_response(r, candidates, epsilon, noise)
