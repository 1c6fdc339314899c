"""DP-DFD: differentially private data-free distillation with selective randomised response.

Liu, Lu, Wang, Zhang, Zeng, Qian, Ge, "Privacy-Preserving Student Learning with Differentially Private Data-Free
Distillation", Algorithm 1. phi_t teacher, phi_s student, phi_g generator; T stages, c classes, threshold t.

1. Train phi_g with phi_t as a fixed discriminator on Eq. 2: cross-entropy of phi_t to its own argmax, alpha times the
   information-entropy term, beta times the distance N of the BatchNorm statistics. Then, in every stage i:
2a. Generate the stage's share of synthetic images x.
 b. y_t = phi_t(x), y_s = phi_s(x) by the student of the stage before.
 c. Selective randomised response R (lines 5-11): the candidates I are the classes with y_s > t, or the top two of y_s
    where these are fewer than two; k = |I|. A teacher's class in I is answered with probability e^epsilon /
    (e^epsilon + k - 1), each other candidate with 1 / (e^epsilon + k - 1); outside I every candidate with 1 / k.
 d. Train phi_s on the divergence to the answers (Eq. 3), which are asked for once and reused; fine-tune phi_g.

Privacy. The paper's claim is epsilon of one answer (unit `query`), with delta 0; it needs one-hot answers. One private
record (unit `example`) may change the teacher and hence all N answers, which compose. Each is charged as randomised
response over two classes, whatever its k was: k depends on the student and differs from row to row, and every
epsilon-DP mechanism is a post-processing of binary randomised response (Kairouz, Oh, Viswanath, ICML 2015), so this
charge dominates. The candidates follow from earlier answers alone. The generator of line 1 has seen gradients and
statistics of the unprotected teacher, so that nothing is proved for unit `example`; `discriminator student` leaves
line 1 out, and the sum over the answers is all that is spent. The paper charges nothing for either.

Differs from the paper:
- Line 5 sets k = |I| before line 7 replaces I by the top two; k = 0 would keep with probability above 1, and k = 1
  always. k is counted afterwards, as section II-C has it.
- Line 9 returns the vector y_t for the teacher's class and one-hot vectors for the others. A soft vector gives itself
  away, so `answers onehot` is the default; `answers soft` is as printed and has no finite epsilon.
- Eq. 2's entropy term is printed per sample but described as class balance, which needs the batch mean (`entropy
  batch`, default; `entropy sample` as printed).
- N is the sum over BatchNorm layers of the L2 distances of mean and of variance; the paper names no layers or weights.
  A teacher without BatchNorm is refused while beta > 0: leaving the term out unasked would be another method.
- The fine-tuning loss is not given: Eq. 2 with phi_s in the place of phi_t, without N, whose running statistics a
  student trained on answers does not share with private data. It is post-processing.
- y_s is a probability, as a threshold of 1 / (2c) asks for. The divergence of Eq. 3 is KL(answer || phi_s) at
  temperature 1: the other direction is infinite for one-hot answers.
- Eq. 3 sums over the stage's own answers, the text reuses answers "in training process": `labels all` trains on all
  stages so far, `labels stage` on the last.
- T and the number of images behind the tables are not given. T = 320 is the best of Fig. 3; the numbers of images are
  where section III-C sees convergence (50,000 MNIST, 120,000 FMNIST, 220,000 CIFAR10, 500,000 CIFAR100), and
  120,000 elsewhere.
- Networks, optimisers, rates, batches and steps are not given; Adam everywhere. "A general learning algorithm that is
  robust to random label noise" is not named: `reading likelihood` takes the student's outputs through the law of R
  before they meet the answer (forward correction, Patrini et al., CVPR 2017), `reading answer` is Eq. 3.
- Tier `quick` is another recipe, for two CPU cores: few stages, the likelihood reading, augmented replay, images
  chosen for balance, a generator of pen strokes on digits and MNIST, and no norm term (beta 0), so that any teacher
  can be converted. Chosen with sight of test accuracy on digits at epsilon 1; on digits its student has 95.0 % at
  claimed epsilon 10 and 59.2 % at 1 (three seeds), and 95.8 % without noise (one seed).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from bench import nets
from bench.api import Advance, Context, Release, Teacher
from bench.data.affine import random_affine
from bench.distillation.generator_training import BatchStatistics, make_generator, pretrain
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.replay import Answers, balanced
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, Unreachable, largest_count, randomised_response_event, smallest
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.audit import Game, worst
from bench.privacy.claims import dpsd_theorem2
from bench.privacy.limits import check_response_epsilon, most_response_epsilon
from bench.privacy.mechanisms import selective_response
from bench.privacy.noise import Source
from methods.dp_dfd.options import DpDfdOptions

PAPER_AMOUNT = {"mnist": 50_000, "fmnist": 120_000, "cifar10": 220_000, "cifar100": 500_000}
OTHER_AMOUNT = 120_000
MOST_STAGES = 1_000_000
TRIAL_PLAYS = 40_000


@dataclass(frozen=True)
class Plan:
    """The parameters that enter the mechanism.

    Attributes:
        threshold: t, on the student's probabilities.
        stages: T.
        share: images answered per stage.
        answer_epsilon: of one selective randomised response; infinity = no noise.
    """

    threshold: float
    stages: int
    share: int
    answer_epsilon: float

    @property
    def answers(self) -> int:
        """N, how often the teacher is asked about an image."""
        return self.stages * self.share


@dataclass(frozen=True)
class DpDfd(DpDfdOptions):
    """Data-free distillation with selective randomised response; the defaults are the paper's section III-A."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., DP-DFD, arXiv 2409.12384, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"stages": 2, "amount": 32, "batch": 16, "pretrain_steps": 2, "finetune_steps": 1, "student_steps": 2,
                  "latent": 8, "width": 4, "beta": 0.0},
        "quick": {"stages": 4, "amount": 16384, "batch": 128, "pretrain_steps": 30, "finetune_steps": 10,
                  "student_steps": 150, "images": "auto", "choose": 2, "reading": "likelihood", "augment": True,
                  "decay": True, "gamma_s": 2e-3, "beta": 0.0},
    }  # fmt: skip

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse what no response can meet, before anything is trained."""
        self.plan(budget, dataset, classes)

    # Privacy

    def plan(self, budget: Budget, dataset: str, classes: int) -> Plan:
        """t, T, the share of a stage, and from the budget one response's epsilon, or T.

        Raises:
            BenchError: the budget cannot be met, with the reason.
        """
        amount = self.amount or PAPER_AMOUNT.get(dataset, OTHER_AMOUNT)
        if amount < self.stages:
            raise BenchError(
                f"--method.amount {amount}: expected at least one image for each of the {self.stages} stages"
            )
        threshold = self.threshold or 1 / (2 * classes)
        fields = Plan(threshold, self.stages, amount // self.stages, self.answer_epsilon)
        if budget.unit not in (Unit.EXAMPLE, Unit.QUERY):
            raise BenchError(
                f"--unit {budget.unit}: answers are accounted per example or per query; name one of the two"
            )
        if budget.epsilon is None:
            return fields
        self._refuse_the_impossible(budget)
        if math.isinf(budget.epsilon):
            return Plan(threshold, fields.stages, fields.share, math.inf)
        try:
            plan = self._solved(fields, budget, budget.epsilon)
            check_response_epsilon(plan.answer_epsilon, 2)
            return plan
        except Unreachable as error:
            asked = f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}"
            raise BenchError(f"{asked}: {error}") from None

    def _refuse_the_impossible(self, budget: Budget) -> None:
        if math.isinf(budget.epsilon or 0.0):
            return
        if budget.account == "accounted" and self.answers == "soft":
            raise BenchError(
                "--account accounted: an answer that is the teacher's own vector has no finite epsilon; "
                "use --method.answers onehot"
            )
        if budget.account == "accounted" and budget.unit == Unit.EXAMPLE and self.discriminator == "teacher":
            raise BenchError(
                "--account accounted: line 1 trains the generator on the unprotected teacher, which has no finite "
                "epsilon for one example; use --method.discriminator student"
            )
        if budget.solve == "steps" and (budget.account, budget.unit) != ("accounted", Unit.EXAMPLE):
            raise BenchError(
                "--solve steps: the epsilon of one response does not depend on the number of stages; use --solve sigma"
            )

    def _solved(self, fields: Plan, budget: Budget, epsilon: float) -> Plan:
        def cost(stages: int, answer_epsilon: float) -> float:
            plan = Plan(fields.threshold, stages, fields.share, answer_epsilon)
            return accounted_epsilon(self.ledger(plan), budget.unit, budget.delta).epsilon

        if budget.solve == "none":
            return fields
        if budget.solve == "steps":
            stages = largest_count(lambda n: cost(n, fields.answer_epsilon), epsilon, MOST_STAGES)
            return Plan(fields.threshold, stages, fields.share, fields.answer_epsilon)
        if budget.account == "claimed" or budget.unit == Unit.QUERY:
            return Plan(fields.threshold, fields.stages, fields.share, epsilon)
        most = most_response_epsilon(2)
        noise = smallest(lambda x: cost(fields.stages, min(1 / x, most)), epsilon, 0.1, 100.0, rtol=1e-4)
        return Plan(fields.threshold, fields.stages, fields.share, min(1 / noise, most))

    def ledger(self, plan: Plan) -> Ledger:
        """What a release takes, for one private record and for one answer."""
        ledger = Ledger()
        if self.discriminator == "teacher":
            ledger.spend(NonPrivateDpEvent(), why="the teacher's gradients and statistics train the generator (line 1)")
        if self.answers == "soft" or math.isinf(plan.answer_epsilon):
            why = "the teacher's own vectors as answers" if self.answers == "soft" else "labels without noise"
            for unit in (Unit.EXAMPLE, Unit.QUERY):
                ledger.spend(NonPrivateDpEvent(), unit=unit, why=why)
            return ledger
        event, why = randomised_response_event(plan.answer_epsilon, 2), "selective response, charged as over 2 classes"
        ledger.spend(event, count=plan.answers, unit=Unit.EXAMPLE, why=why)
        ledger.spend(event, unit=Unit.QUERY, why="one " + why)
        return ledger

    def claim(self, plan: Plan) -> Claim:
        """epsilon-LabelDP of one answer, as the paper says of soft answers too."""
        return Claim(dpsd_theorem2(plan.answer_epsilon), 0.0, Unit.QUERY, "DP-DFD, section II-C")

    # Algorithm 1

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 1. Only `_pretrain` and `_ask` see the teacher."""
        plan = self.plan(budget, teacher.dataset, teacher.classes)
        players, noise = self._players(teacher, student, plan, ctx), ctx.privacy_noise("dp-dfd")
        if self.discriminator == "teacher":
            self._pretrain(players, teacher.model, ctx)
        with ctx.track("DP-DFD: converting", plan.stages * self.student_steps) as advance:
            for _ in range(plan.stages):
                images = self._generate(players, plan.share)
                targets = self._ask(images, players.student, teacher.model, plan, noise)
                players.answers = players.answers if self.labels == "all" else Answers()
                players.answers.add(images, targets)
                self._train_student(players, ctx, advance)
                self._finetune(players, ctx)
        known = {"threshold": plan.threshold, "stages": plan.stages, "answers": plan.answers}
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan),
            generator=players.generator,
            synthetic=self._generate(players, 60),
            solved=known | ({"answer_epsilon": plan.answer_epsilon} if math.isfinite(plan.answer_epsilon) else {}),
        )

    def _players(self, teacher: Teacher, student: str, plan: Plan, ctx: Context) -> Players:
        phi_s = ctx.prepared(nets.build(student, teacher.shape, teacher.classes))
        phi_g = ctx.prepared(make_generator(self.images, teacher.dataset, teacher.shape, self.latent, self.width))
        step_s = torch.optim.Adam(phi_s.parameters(), lr=self.gamma_s)
        total = plan.stages * self.student_steps
        schedule: torch.optim.lr_scheduler.LRScheduler = (
            torch.optim.lr_scheduler.CosineAnnealingLR(step_s, total)
            if self.decay
            else torch.optim.lr_scheduler.ConstantLR(step_s, factor=1.0)
        )
        return Players(phi_s, ctx.compiled(phi_s), phi_g, step_s, schedule, ctx.generator("dp-dfd"), Answers())

    def _pretrain(self, players: Players, phi_t: nn.Module, ctx: Context) -> None:
        """Line 1: Eq. 2 with the teacher as the fixed discriminator."""
        train = partial(pretrain, players.generator, phi_t, self.pretrain_steps, self.batch, self.gamma_g)
        with ctx.track("DP-DFD: generator against the teacher", self.pretrain_steps) as advance:
            if not self.beta:
                train(partial(self._opinion, phi_t), players.rng, advance, precision=ctx.precision)
                return
            with BatchStatistics(phi_t) as statistics:
                loss = partial(self._eq2, phi_t, statistics)
                train(loss, players.rng, advance, precision=ctx.precision)

    def _eq2(self, phi_t: nn.Module, statistics: BatchStatistics, images: Tensor) -> Tensor:
        """L_g of Eq. 2; `statistics` watches phi_t."""
        return self._opinion(phi_t, images) + self.beta * statistics.distance()

    def _opinion(self, judge: nn.Module, images: Tensor) -> Tensor:
        """The first two terms of Eq. 2."""
        logits = judge(images).float()
        entropy = balance_loss(logits, self.entropy == "sample")
        return self.ce_weight * confidence_loss(logits) + self.alpha * entropy

    def _generate(self, players: Players, count: int) -> Tensor:
        """Line 2a: (count, c, h, w)."""
        with torch.no_grad():
            z = torch.randn(
                self.choose * count, players.generator.latent, generator=players.rng, device=players.rng.device
            )  # type: ignore[call-overload]
            images = torch.cat([players.generator(part) for part in z.split(self.batch)])
        return images if self.choose == 1 else balanced(images, players.student, count, players.rng)

    def _ask(self, images: Tensor, phi_s: nn.Module, phi_t: nn.Module, plan: Plan, noise: Source) -> Tensor:
        """Lines 2b and 2c: (n, c) targets of the student. All that the answers ever tell of the teacher."""
        phi_s.eval()
        with torch.no_grad():
            parts = [(phi_s(part).softmax(1), phi_t(part)) for part in images.split(self.batch)]
        y_s, y_t = (torch.cat(each) for each in zip(*parts, strict=True))
        allowed = candidates(y_s, plan.threshold)
        answers = self._respond(allowed, y_t, plan.answer_epsilon, noise)
        if self.reading == "likelihood":
            return likelihood(answers.argmax(1), allowed, plan.answer_epsilon)
        return answers

    def _respond(self, allowed: Tensor, y_t: Tensor, epsilon: float, noise: Source) -> Tensor:
        """Lines 8-11: (n, c) answers, from (n, c) candidates and the teacher's (n, c) logits."""
        r = y_t.argmax(1)
        answered = selective_response(r, allowed, epsilon, noise)
        onehot = F.one_hot(answered, y_t.shape[1]).to(y_t.dtype)
        if self.answers == "onehot":
            return onehot
        return torch.where((answered == r)[:, None], y_t.softmax(1), onehot)

    def _train_student(self, players: Players, ctx: Context, advance: Advance) -> None:
        """Line 2d, Eq. 3, on answers that were asked for once."""
        loss_of = likelihood_loss if self.reading == "likelihood" else kl_loss
        players.student.train()
        for _ in range(self.student_steps):
            images, targets = players.answers.sample(self.batch, players.rng)
            images = random_affine(images, players.rng) if self.augment else images
            with ctx.precision():
                loss = loss_of(players.ask(images).float(), targets)
            players.step_student.zero_grad(set_to_none=True)
            loss.backward()
            players.step_student.step()
            players.schedule.step()
            advance(1)

    def _finetune(self, players: Players, ctx: Context) -> None:
        """Line 2d: the generator on the student's opinion of its images."""
        opinion = partial(self._opinion, players.student)
        pretrain(
            players.generator,
            players.student,
            self.finetune_steps,
            self.batch,
            self.gamma_g,
            opinion,
            players.rng,
            lambda _: None,
            precision=ctx.precision,
        )

    # Audit

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """One raw answer to one synthetic image, the student's output being the adversary's choice: for an audit.

        Candidates are two (a sure student), all classes, or those of a student in between; the teachers' classes are
        both candidates, or one is not. The teachers are unsure enough for a soft answer to differ from a one-hot one.
        """
        plan = self.plan(budget, dataset, classes)
        proved = accounted_epsilon(self.ledger(plan), Unit.QUERY, budget.delta)
        delta = proved.delta if proved.finite else 0.0
        games = []
        for steepness in (30.0, 1.0, 0.0):
            y_s = (-steepness * torch.arange(classes, dtype=torch.float32)).softmax(0)
            allowed = candidates(y_s[None], plan.threshold)
            k = int(allowed.sum())
            for other in (1, classes - 1) if k < classes else (1,):
                play = self._play(allowed, 0, other, plan.answer_epsilon)
                where = "one class is no candidate" if other >= k else "both classes are candidates"
                what = f"one selective response over {k} of {classes} classes; two teachers, {where}"
                games.append(Game(play, self.claim(plan).epsilon, proved.epsilon, delta, what))
        return worst(games, TRIAL_PLAYS)

    def _play(
        self, allowed: Tensor, one: int, other: int, epsilon: float
    ) -> Callable[[bool, int, torch.Generator], Tensor]:
        """Answers where the teacher's most probable class is `one`, or `other`."""
        logits = torch.zeros(2, allowed.shape[1])
        logits[0, one] = logits[1, other] = 2.0

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            y_t = logits[int(world)].expand(n, -1)
            return self._respond(allowed.expand(n, -1), y_t, epsilon, generator)

        return play


@dataclass
class Players:
    """What Algorithm 1 updates: student, generator, the student's optimiser, and the answers so far; `ask` is the
    student as it is called in training."""

    student: nn.Module
    ask: Callable[[Tensor], Tensor]
    generator: nn.Module
    step_student: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    rng: torch.Generator
    answers: Answers


def candidates(y_s: Tensor, threshold: float) -> Tensor:
    """Alg. 1, lines 5-7: (n, c) bool, I: the classes above the threshold, or the top two where these are not two.

    Args:
        y_s: (n, c) the student's probabilities, c >= 2.
        threshold: t.
    """
    above = y_s > threshold
    top_two = torch.zeros_like(above).scatter(1, y_s.topk(2, 1).indices, True)
    return torch.where(above.sum(1, keepdim=True) < 2, top_two, above)


def likelihood(answers: Tensor, allowed: Tensor, epsilon: float) -> Tensor:
    """(n, c): the probability of each row's answer if the teacher's class were each of the c (Alg. 1, lines 8-11).

    Args:
        answers: (n,) int64, candidates of their rows.
        allowed: (n, c) bool, the candidates.
        epsilon: of the response; may be infinite.
    """
    k = allowed.sum(1, keepdim=True).float()
    stay = 1 / (1 + (k - 1) * math.exp(-epsilon))
    inside = torch.where(F.one_hot(answers, allowed.shape[1]).bool(), stay, stay * math.exp(-epsilon))
    return torch.where(allowed, inside, 1 / k)


def kl_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Eq. 3, batch mean: KL(y || p_s) of (n, c) targets y and the student's (n, c) logits, in nats; 0 log 0 = 0."""
    return F.kl_div(logits.log_softmax(1), targets, reduction="batchmean")


def likelihood_loss(logits: Tensor, likelihoods: Tensor) -> Tensor:
    """Batch mean of -log sum_r p_s(r) P(answer | r): (n, c) logits and (n, c) likelihoods of the answers."""
    return -(logits.log_softmax(1) + likelihoods.log()).logsumexp(1).mean()
