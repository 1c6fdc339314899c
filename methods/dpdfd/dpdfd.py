"""DPDFD: model conversion via differentially private data-free distillation.

Liu, Wang, Ge, "Model Conversion via Differentially Private Data-Free Distillation", IJCAI 2023, Algorithm 1. Teacher
phi_t, student phi_s, generator phi_g; B batch, T iterations, C norm bound, n teachers. Every iteration:

2-3.  D = {phi_g(z_i)}, B synthetic images of fresh random vectors.
4-8.  g_i = d L_T / d phi_s(d_i), L_T the decoupled distillation loss; g-_i = C g_i / (||g_i|| + e).
9.    g~ = (sum_i g-_i + N(0, sigma^2 C^2 I)) / B, one noisy mean for the batch (Eq. 4).
10.   y_s = phi_s(D) - gamma g~.
11-12. Update the student on the cross-entropy L_S(phi_s(D), y_s).
13-14. Update the generator on L_S + L_G, L_G the student's opinion of D (Eq. 5).

Section 4.4 has two variants. Many teachers (`--teachers n`): line 9 becomes, for every image, the noisy mean of the n
teachers' normalised gradients, g~_i = (sum_j C g_ij / (||g_ij|| + e) + N(0, sigma^2 C^2 I)) / n. Direct training
(`data private`): D is a batch of private images, L_T the cross-entropy to their labels, and there is no generator.

Privacy. One teacher: the claim is Theorem 3, of unit `query`. A private record may change the teacher, hence all B
rows of all T batches: with one noise draw per batch (as printed) a batch is a Gaussian mechanism of multiplier sigma /
(2 B), with one per row sigma / (2 sqrt(B)). Many teachers on disjoint shards: a record changes one teacher, and an
answer is a Gaussian mechanism of multiplier sigma / 2; this is the mode with a finite epsilon of unit `example`. The
paper states no theorem for it. Direct training: the student's update multiplies the noisy gradient by the Jacobian at
the private images, so nothing can be proved; the claim, whose proof takes an example for a query, stands beside it.

Differs from the paper:
- The gradient is taken at the student's logits and applied to its probabilities; the paper says "outputs".
- Line 9 shares one mean step among all images of a batch, whatever they show. `noise row` gives each image its own
  gradient with its own noise, as DPSD does later.
- The target r of the decoupled loss is the teacher's arg-max, as the paper says; its weights are left open: 1 and 8.
- C, B, T, sigma, gamma, gamma_s, gamma_g and e are not printed for any table; the defaults are DPSD's, by the same
  authors, with gamma = gamma_s. Sigma, or T, is solved from the budget.
- Theorem 3's n is undefined; it is taken as the number of classes, which is what DPSD's Theorem 1 writes there.
- Eq. 5 prints the entropy per sample, but describes class balance (`entropy batch`); its third term has a plus sign,
  but is argued to raise activations (`activation up`); it is the norm of the outputs, but described as that of backbone
  features (`norm_of features`). The printed forms are options.
- The gradient's norm in section 4.4 has no index, and epsilon for e; it is read as ||g_ij|| + e.
- The optimiser is Adam (`optimizer sgd` takes the printed plain steps); section 4.3 sets gamma in proportion to 1 /
  sqrt(T), here it is a constant.
- Line 14 comes after line 12 and so sees the updated student, in evaluation mode; y_s is held constant, which privacy
  needs. With many teachers the generator is trained on L_G alone.
- The norm of the outputs (`norm_of outputs`) is that of each image's probabilities, averaged.
- The student has no dropout while it learns from targets that lie a step of gamma C from its own output: dropout moves
  the output further than that. With it, direct training on digits without noise stays at chance (8.4 %, one seed);
  without it the student has 98.3 %.
- Direct training draws its batches without amplification by sampling, of which the paper says nothing.
- Many teachers may also answer by noisy votes (`aggregate votes`) in the place of gradients; see `ensemble_mode.py`.
- Tier `quick` is another recipe, chosen with sight of test accuracy on digits as DPSD's is: few batches, a noise draw
  per row, answers read by Bayes' rule and replayed with augmentation, plain distillation, pen strokes on digits and
  MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.data import to_float
from bench.distillation.distinguishing_games import gradient_game
from bench.distillation.ensemble_mode import Sound
from bench.distillation.loop import Players
from bench.distillation.noisy_labels import Mechanism, Plan, solve
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import Game
from bench.privacy.mechanisms import gaussian_rows, gaussian_shared_mean
from bench.privacy.noise import Source

THEOREM = "DPDFD, Theorem 3"


@dataclass(frozen=True)
class Dpdfd(Sound):
    """Differentially private data-free distillation; the paper prints few settings, see the module."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DPDFD, IJCAI 2023, Algorithm 1 and section 4.4"
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "direct_iterations": 3, "batch": 16, "latent": 8, "width": 4, "gamma_s": 1e-3},
        "quick": {"iterations": 2, "direct_iterations": 600, "loss": "kd", "images": "auto", "choose": 4,
                  "noise": "row", "loss_s": False, "reading": "posterior",
                  "student_steps": 200, "augment": True, "decay": True, "gamma_s": 2e-3,
                  "gamma_g": 1e-3, "generator_steps": 30, "ie_weight": 5.0, "norm_weight": 0.02,
                  "teacher_nets": "scatter-linear", "aggregate": "votes", "queries": 1024, "extra": 9216,
                  "asks": 0, "ensemble_steps": 800, "prior": "moments", "prior_share": 0.8},
    }  # fmt: skip

    norm_bound: float = 5e-3
    """C of line 7, > 0; 1e-3 is where Fig. 2 says that clipping overtakes normalising."""
    gamma: float = 0.1
    """Step of line 10."""
    noise: Literal["batch", "row"] = "batch"
    """One noise draw on the batch's sum (line 9), or one per image."""
    norm_of: Literal["features", "outputs"] = "features"
    """Third term of Eq. 5: norm of what the last layer sees (the text), or of the outputs (as printed)."""
    loss_s: bool = True
    """Whether the generator's loss has L_S (line 14) beside L_G."""
    data: Literal["synthetic", "private"] = "synthetic"
    """Synthetic images, or direct training on the private ones (Table 4)."""
    direct_iterations: int = 3000
    """T of direct training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("norm_bound", "gamma", "direct_iterations"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.loss_s and self.choose > 1:
            raise ValueError("loss_s is of the images of the batch itself; expected loss_s false with choose above 1")
        if self.noise == "batch" and self.reading == "posterior" and not self.teachers:
            raise ValueError("reading posterior is of one image's own answer; expected noise row, or reading step")
        if self.data == "private" and self.teachers:
            raise ValueError("data private trains without teachers; leave out --teachers")

    @property
    def step(self) -> float:
        """Of line 10."""
        return self.gamma

    @property
    def needs(self) -> frozenset[str]:
        """A teacher, many of them, or the private images."""
        return frozenset({"private_data"}) if self.data == "private" else self.sound_needs

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        if self.data == "private" and budget.account == "accounted":
            raise BenchError(
                "--account accounted --method.data private: nothing can be proved of direct training; "
                "use --account claimed, or --method.data synthetic with --teachers N"
            )
        if self.data == "private" and budget.unit != Unit.EXAMPLE:
            raise BenchError(
                f"--unit {budget.unit} --method.data private: its ledger speaks of examples alone; use --unit example"
            )
        self.plan(budget, classes)

    def plan(self, budget: Budget, classes: int) -> Plan:
        """C and, from the budget, sigma or T."""
        fields = Plan(
            classes,
            self.norm_bound,
            self.sigma,
            answer_epsilon=1.0,
            iterations=self.direct_iterations if self.data == "private" else self.batches,
        )
        return solve(self._mechanism(classes), fields, budget)

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """One raw answer, by the two teachers that are furthest apart: what an audit plays."""
        if self.data == "private":
            raise BenchError(
                "--method.data private: what is released is the student, not the noisy gradients; audit the release"
            )
        plan, mechanism = self.plan(budget, classes), self._mechanism(classes)
        if self.teachers:
            return self.ensemble_game(plan, mechanism, budget.delta)
        bound, noisy = partial(self._bounded_gradient, plan=plan), partial(self._noisy, plan=plan)
        return gradient_game(bound, lambda rows, rng: noisy(rows, noise=rng), mechanism, plan, budget.delta)

    def _mechanism(self, classes: int) -> Mechanism:
        return Mechanism(
            mode="data",
            batch=self.batch,
            classes=classes,
            per_row=self.noise == "row",
            wide=0,
            printed=False,
            teacher_trains_generator=False,
            theorem=THEOREM,
            teachers=self.teachers,
            votes=self.aggregate == "votes",
            prior_share=self.share,
        )

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 1, or a variant of section 4.4."""
        plan, mechanism = self.plan(budget, teacher.classes), self._mechanism(teacher.classes)
        if self.teachers:
            return self.convert_soundly(teacher, student, plan, mechanism, self._bounded_gradient, ctx)
        if self.data == "private":
            return self._train_directly(teacher, student, plan, mechanism, budget, ctx)
        noise = ctx.privacy_noise("dpdfd")
        players = self.players(teacher, student, plan.iterations, ctx)
        with ctx.track("DPDFD: converting", plan.iterations * self.student_steps) as advance:
            for _ in range(plan.iterations):
                images = self._generate(players, ctx)
                y_s = self._annotate(images, players.student, teacher, plan, noise)
                players.answers.add(images, y_s)
                self.update_student(players, images, y_s, ctx, advance)
                self.update_generator(players, ctx, players.student, y_s if self.loss_s else None)
        plan = replace(plan, iterations=players.answers.batches)
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=mechanism.ledger(plan),
            claim=mechanism.claim(plan, budget.delta),
            generator=players.generator,
            synthetic=self.fresh(players, ctx)[:60],
            solved={"norm_bound": plan.beta, "iterations": plan.iterations, "sigma": plan.sigma},
        )

    def _generate(self, players: Players, ctx: Context) -> Tensor:
        """Lines 2 and 3. The vectors are kept for line 14."""
        if not self.loss_s:
            return self.fresh(players, ctx)
        with torch.no_grad():
            players.z.normal_(generator=players.rng)
            return players.generator(players.z)

    def _annotate(self, images: Tensor, phi_s: nn.Module, teacher: Teacher, plan: Plan, noise: Source) -> Tensor:
        """Lines 4 to 10: (B, c) new outputs of the student. All that is ever learnt from the teacher."""
        phi_s.eval()
        with torch.no_grad():
            ours, theirs = phi_s(images), teacher.model(images)
        answers = self._noisy(self._bounded_gradient(ours, theirs, plan), plan, noise)
        if self.reading == "posterior":
            expected = partial(self._bounded_gradient, plan=plan)
            return self.posterior_of_gradients(answers, ours, expected, plan.beta, plan.sigma)
        return ours.softmax(1) - self.gamma * answers

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, plan: Plan) -> Tensor:
        """Lines 5 to 7: (B, c) rows of norm at most C."""
        return self.bounded(self.gradient(ours, theirs), plan.beta)

    def _noisy(self, bounded: Tensor, plan: Plan, noise: Source) -> Tensor:
        """Line 9, Eq. 4: the batch's noisy mean for every row, or every row with its own noise."""
        if self.noise == "batch":
            return gaussian_shared_mean(bounded, plan.sigma * plan.beta, noise).expand_as(bounded)
        return gaussian_rows(bounded, plan.sigma * plan.beta, noise)

    def generator_loss(self, judge: Any, images: Tensor) -> Tensor:
        """L_G, Eq. 5."""
        if self.norm_of == "features" or not self.norm_weight:
            return super().generator_loss(judge, images)
        norm = judge(images).float().softmax(1).norm(dim=1).mean()
        others = replace(self, norm_weight=0.0).generator_loss(judge, images)
        return others + self.norm_weight * (norm if self.activation == "down" else -norm)

    def _train_directly(
        self, teacher: Teacher, student: str, plan: Plan, mechanism: Mechanism, budget: Budget, ctx: Context
    ) -> Release:
        """Section 4.4, direct training: lines 4 to 12 on private images with their labels."""
        if teacher.private is None:
            raise RuntimeError("direct training needs the private images")
        private, labels = teacher.private
        once = replace(self, student_steps=1)
        noise, players = ctx.privacy_noise("dpdfd"), once.players(teacher, student, plan.iterations, ctx)
        with ctx.track("DPDFD: training on private images", plan.iterations) as advance:
            for _ in range(plan.iterations):
                chosen = torch.randint(len(private), (self.batch,), generator=players.rng, device=ctx.device)
                images = to_float(private[chosen.to(private.device)]).to(ctx.device)
                truth = labels[chosen.to(labels.device)].to(ctx.device)
                players.student.eval()
                with torch.no_grad():
                    ours = players.student(images)
                gradient = ours.softmax(1) - F.one_hot(truth, teacher.classes)
                y_s = ours.softmax(1) - self.gamma * self._noisy(self.bounded(gradient, plan.beta), plan, noise)
                once.update_student(players, images, y_s, ctx, advance)
        ledger = Ledger()
        ledger.spend(NonPrivateDpEvent(), why="the noisy gradients are multiplied by the Jacobian at private images")
        claim = mechanism.claim(plan, budget.delta)
        assert claim is not None
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=ledger,
            claim=Claim(claim.epsilon, claim.delta, Unit.EXAMPLE, f"{THEOREM}, on private images"),
            solved={"norm_bound": plan.beta, "iterations": plan.iterations, "sigma": plan.sigma},
        )
