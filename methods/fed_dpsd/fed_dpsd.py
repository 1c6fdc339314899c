"""FedDPSD: DPSD with the teachers of m clients, none of whom sends model or data.

Liu et al., "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation", section III-D.1
and Algorithm 2 (appendix D). Every iteration:

3-6.   The server generates b images x_i and sends them to the clients with the student's predictions.
7-12.  Client j answers by O_j = Fed-FlexPer (lines 21 to 35): normalised gradients g-_ij = beta g_ij / (||g_ij|| + e)
       (data mode, s = 1), or randomised responses on its teacher's class over the student's top k (label mode, s = 0).
14.    The server averages: (sum_j O_j + N(0, sigma^2 beta^2)) / m, or sum_j O_j / m, and makes the labels Phi'_s.
15-18. Student and generator are updated as in DPSD.

The clients' data come from a Dirichlet partition of the private split (section IV-E: five clients, alpha 0.5), which
simulates who owns what and is no part of the mechanism; their networks may differ.

Privacy. A private record lies with one client, and all data of a client stand behind one teacher, so that units
`example` and `client` cost the same: in data mode every answered image is a Gaussian mechanism of multiplier sigma / 2,
in label mode a randomised response. Where every client adds the noise itself (`noise client`), this holds against the
server too; the released student then carries sqrt(m) times the noise, which the ledger does not count. Noise at the
server (as printed) protects the student's readers only; the paper claims privacy with an untrusted server. In label
mode each client randomises its own answer. The claims are DPSD's theorems, stated for one teacher, of unit `query`.

Differs from the paper:
- Line 9 writes the student's weights for the client's teacher, line 26 a norm without index and e for the stability
  constant h; the gradient has no top-k here, unlike DPSD's Eq. 3.
- Line 14 makes the averaged gradients labels without saying how; as in DPSD, y = Phi_s(x) - gamma_s g~.
- The updates follow Algorithm 2 as DPSD's do: fresh vectors z, cross-entropy, L_S + L_G for the generator.
- Algorithm 2's settings are those of two other papers (DENSE and FastDFKD) that it does not print; the defaults are
  DPSD's. Clients start from their own random weights and train for a fixed number of steps.
- The claim is Theorem 1's number for one teacher; another synthetic image moves the answers of all m clients, which the
  ledger's unit `query` counts. Line 14's noise is one draw for each image.
- Several batches may be answered before anybody learns (`label_batches`), all classes may be candidates at first
  (`wide`), and answers replayed (`student_steps`), as in DPSD's file. Read by Bayes' rule, a label is the mean of the
  clients' posteriors, as line 14 takes the mean of their answers.
- Table V does not say which mode it used; both are here.
- Tier `quick` is another recipe, chosen with sight of test accuracy on digits as DPSD's is: few batches, answers read
  by Bayes' rule and replayed with augmentation, plain distillation, pen strokes on digits and MNIST, small clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Shards, Teacher
from bench.distillation.distinguishing_games import gradient_game, response_game
from bench.distillation.loop import Players, Transcription, updates
from bench.distillation.noisy_labels import Mechanism, Plan, paper_beta, paper_k, posterior_of_response, solve
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.privacy.audit import Game
from bench.privacy.mechanisms import gaussian_rows, randomised_response
from bench.privacy.noise import Source


@dataclass(frozen=True)
class FedDpsd(Transcription):
    """DPSD under federated learning; the defaults are those of section IV-A and IV-E."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., FedDPSD, arXiv 2601.19090, Algorithm 2"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "batch": 16, "latent": 8, "width": 4, "gamma_s": 1e-3, "clients": 2,
                  "client_nets": "shard-cnn", "client_steps": 4},
        "quick": {"iterations": 2, "loss": "kd", "images": "auto", "loss_s": False, "choose": 4,
                  "reading": "posterior", "student_steps": 200, "augment": True, "decay": True, "gamma_s": 2e-3,
                  "gamma_g": 1e-3, "generator_steps": 30, "ie_weight": 5.0, "norm_weight": 0.02,
                  "label_batches": 8, "wide": 8, "client_nets": "shard-cnn", "client_steps": 600},
    }  # fmt: skip

    mode: Literal["data", "label"] = "data"
    """The switch s: noisy gradients (data), or randomised responses (label)."""
    clients: int = 5
    """m."""
    alpha: float = 0.5
    """Concentration of the Dirichlet shares in which the clients hold each class."""
    balanced: bool = True
    """Whether a client that has its equal share of all records gets no more (DENSE), or plain Dirichlet."""
    client_nets: str = "resnet18"
    """Networks of the clients' teachers, separated by commas and taken in turn."""
    client_steps: int = 3000
    """Training steps of a client's teacher."""
    client_batch: int = 128
    """Images per training step of a client's teacher."""
    client_lr: float = 2e-3
    """First learning rate of the clients' teachers; falls linearly to 0."""
    noise: Literal["server", "client"] = "server"
    """Data mode: noise added once by the server (as printed), or by every client."""
    beta: float = 0.0
    """Normalisation bound; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    label_batches: int = 1
    """Label mode: batches answered before student and generator learn."""
    wide: int = 0
    """Label mode: batches at the beginning with all c classes as candidates."""
    answer_epsilon: float = 1.0
    """epsilon of one randomised response; solved from the budget unless --solve steps or --epsilon none."""
    k: int = 0
    """Candidates of a randomised response; 0 = the paper's for the data set (3 for MNIST, FMNIST, CIFAR10)."""
    loss_s: bool = True
    """Whether the generator's loss has L_S (line 18) beside L_G."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("clients", 1), ("client_steps", 1), ("client_batch", 1), ("label_batches", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        for name in ("client_lr", "answer_epsilon", "alpha"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("wide", "beta", "k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        if self.label_batches > 1 and self.student_steps == 1:
            raise ValueError(
                "label_batches above 1 needs stored answers to be replayed: expected student_steps above 1"
            )
        if self.loss_s and (self.choose > 1 or self.label_batches > 1):
            raise ValueError("loss_s is of one batch's images; expected it false with choose or label_batches above 1")

    @property
    def targets_move_output(self) -> bool:
        """In data mode they do; in label mode they are classes."""
        return self.mode == "data" and super().targets_move_output

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The clients' teachers."""
        partition = "dirichlet-balanced" if self.balanced else "dirichlet"
        archs = tuple(name.strip() for name in self.client_nets.split(","))
        return Shards(self.clients, archs, partition, self.alpha, self.client_steps, self.client_batch, self.client_lr)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        self.plan(budget, dataset, classes)

    def plan(self, budget: Budget, dataset: str, classes: int) -> Plan:
        """k, beta and, from the budget, sigma (or the randomised response's epsilon, or T)."""
        k, beta = self.k or paper_k(dataset, classes), self.beta or paper_beta(dataset, budget.epsilon)
        if not 2 <= k <= classes:
            raise BenchError(f"--method.k {k}: expected 2 to {classes}, the number of classes of {dataset}")
        iterations = self.iterations * self._batches_per_round
        fields = Plan(k, beta, self.sigma, self.answer_epsilon, iterations)
        return solve(self._mechanism(classes), fields, budget)

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """One client's raw answer to one image, by the two teachers that are furthest apart: what an audit plays."""
        plan, mechanism = self.plan(budget, dataset, classes), replace(self._mechanism(classes), clients=1)
        if self.mode == "label":
            return response_game(
                lambda s, t, rng: randomised_response(t.argmax(1), s.topk(plan.k, 1).indices, plan.answer_epsilon, rng),
                mechanism,
                plan,
                budget.delta,
            )
        bound = partial(self._bounded_gradient, plan=plan)
        noisy = partial(gaussian_rows, std=plan.sigma * plan.beta)
        return gradient_game(bound, lambda rows, rng: noisy(rows, source=rng), mechanism, plan, budget.delta)

    @property
    def _batches_per_round(self) -> int:
        return self.label_batches if self.mode == "label" else 1

    def _mechanism(self, classes: int) -> Mechanism:
        return Mechanism(
            mode=self.mode,
            batch=self.batch,
            classes=classes,
            per_row=True,
            wide=self.wide,
            printed=False,
            teacher_trains_generator=False,
            clients=self.clients,
        )

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 2. Only `_annotate` asks the clients."""
        clients = teacher.members()
        plan, mechanism = self.plan(budget, teacher.dataset, teacher.classes), self._mechanism(teacher.classes)
        noise, rounds = ctx.privacy_noise("fed-dpsd"), updates(plan.iterations, self._batches_per_round)
        players = self.players(teacher, student, rounds, ctx)
        with ctx.track(f"FedDPSD {self.mode} mode: converting", rounds * self.student_steps) as advance:
            for asked in range(1, plan.iterations + 1):
                images = self._generate(players, ctx)
                k = teacher.classes if self.mode == "label" and asked <= self.wide else plan.k
                targets = self._annotate(images, players.student, clients, plan, noise, k)
                players.answers.add(images, targets)
                if asked % self._batches_per_round == 0 or asked == plan.iterations:
                    self.update_student(players, images, targets, ctx, advance)
                    self.update_generator(players, ctx, players.student, targets if self.loss_s else None)
        plan = replace(plan, iterations=players.answers.batches)
        return Release(
            student=players.student.eval(),
            arch=student,
            ledger=mechanism.ledger(plan),
            claim=mechanism.claim(plan, budget.delta),
            generator=players.generator,
            synthetic=self.fresh(players, ctx)[:60],
            solved={"beta": plan.beta, "iterations": plan.iterations}
            | ({"sigma": plan.sigma} if self.mode == "data" else {"k": plan.k}),
        )

    def _generate(self, players: Players, ctx: Context) -> Tensor:
        """Lines 3 and 4. The vectors are kept for line 18."""
        if not self.loss_s:
            return self.fresh(players, ctx)
        with torch.no_grad():
            players.z.normal_(generator=players.rng)
            return players.generator(players.z)

    def _annotate(
        self, images: Tensor, phi_s: nn.Module, clients: Ensemble, plan: Plan, noise: Source, k: int
    ) -> Tensor:
        """Lines 5 to 14: (b, c) labels. All that is ever learnt from the clients."""
        phi_s.eval()
        with torch.no_grad():
            ours, theirs = phi_s(images), clients(images)
        if self.mode == "label":
            return self._mean_response(ours, theirs, plan, noise, k)
        rows = torch.stack([self._bounded_gradient(ours, of_client, plan) for of_client in theirs])
        if self.noise == "client":
            total = gaussian_rows(rows.flatten(0, 1), plan.sigma * plan.beta, noise).view_as(rows).double().sum(0)
            sigma = plan.sigma * len(clients) ** 0.5
        else:
            total, sigma = gaussian_rows(rows.double().sum(0), plan.sigma * plan.beta, noise), plan.sigma
        mean = (total / len(clients)).float()
        if self.reading == "posterior":
            expected = partial(self._bounded_gradient, plan=plan)
            return self.posterior_of_gradients(mean, ours, expected, plan.beta, sigma / len(clients))
        return ours.softmax(1) - self.gamma_s * mean

    def _mean_response(self, ours: Tensor, theirs: Tensor, plan: Plan, noise: Source, k: int) -> Tensor:
        """Lines 28 to 33 and 14, label mode: (b, c) mean over clients of what each one's response is read as."""
        candidates, targets = ours.topk(k, 1).indices, []
        for of_client in theirs:
            answers = randomised_response(of_client.argmax(1), candidates, plan.answer_epsilon, noise)
            if self.reading == "posterior":
                targets.append(posterior_of_response(answers, candidates, ours.shape[1], plan.answer_epsilon))
            else:
                targets.append(F.one_hot(answers, ours.shape[1]).float())
        return torch.stack(targets).mean(0)

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, plan: Plan) -> Tensor:
        """Lines 23 to 27: (b, c) rows of norm at most beta."""
        return self.bounded(self.gradient(ours, theirs), plan.beta)
