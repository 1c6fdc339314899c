"""FedDPSD as it learns: the clients asked about images of a data-free prior that evolve, answers read by likelihood.

What is asked of the clients, the bound, the noise and the theorems are those of `fed_dpsd.py`; see there for the paper
and for what is proved. What is asked and how the student learns is `bench/distillation/transcription/loop.py`:
post-processing of the answers.

Differs from the paper: as `fed_dpsd.py` says, and by the `departures` below. Clients are small networks (`shard-cnn`)
of 600 steps, where the printed variant's are of 3000; the paper gives neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Shards, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.image_source import check_source, image_source
from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.noisy_labels import (
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    candidates,
    check_candidates,
    limit_queries,
    paper_beta,
    paper_k,
)
from bench.distillation.transcription.learner import Loss
from bench.distillation.transcription.likelihoods import (
    expected_gradients,
    gradient_log_likelihood,
    is_mostly_wrong,
    likelihood_loss,
    response_log_likelihood,
)
from bench.distillation.transcription.loop import Transcription
from bench.distillation.transcription.options import (
    CANDIDATES_WORTH,
    CHILDREN,
    CHOICE,
    COMMITTEE,
    FEW_CLEAR_ANSWERS,
    FROM_A_PRIOR,
    JITTER,
    MANY_STEPS,
    ONE_CYCLE,
    PLAIN_LOSS_WORTH,
    READING_WORTH,
    REPLAY,
    ROUNDS,
    TranscriptionOptions,
)
from bench.nets import Ensemble
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import normalise_rows, randomised_response
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.fed_dpsd.clients import NoiseBy, federated_game, noisy_mean, shards, sigma_of_mean

H = 1e-4
"""Stability constant of line 26."""
GAMMA = 0.1
"""gamma_s, the step of the paper's target."""
WRONG = 0.2
"""Label mode: how often a client's own class is taken to say nothing of the clients' common one."""
SPREAD = 0.3
"""Data mode: standard deviation over beta, in each entry, by which the clients' mean gradient is taken to differ from
one that all agree on."""


@dataclass(frozen=True)
class WorkingFedDpsd(TranscriptionOptions):
    """Many images asked about once each, in rounds."""

    version: ClassVar[int] = 4
    reference: ClassVar[str] = "Liu et al., FedDPSD, arXiv 2601.19090, Algorithm 2"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"questions": 48, "rounds": 3, "student_steps": 6, "clients": 2, "client_steps": 4},
        "quick": {"questions": 25_600},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "an answer is read by its likelihood under every class (`--method.reading printed`: the paper's target)",
            "clients that hold few images of a class are often wrong; all their answers together are read by a law "
            "that allows for that",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        Departure(
            "label mode: all classes are candidates (`--method.k 3`: the student's three)",
            "a class that is none of the student's three is answered by noise, so that it stays unknown",
            worth=CANDIDATES_WORTH,
        ),
        FEW_CLEAR_ANSWERS,
        Departure(
            "plain distillation instead of DPSD's decoupled loss",
            "eight times as much of the bounded gradient speaks of the other classes",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
    )
    only_with: ClassVar[dict[str, str]] = {
        "noise_by": "mode=data",
        "k": "mode=label",
        "beta": "mode=data",
        "most_noise": "mode=data",
    }

    mode: Literal["data", "label"] = "data"
    """The switch s: noisy gradients (data), or randomised responses (label)."""
    clients: Size[int] = 5
    """m."""
    alpha: float = 0.5
    """Concentration of the Dirichlet shares in which the clients hold each class; 1e6 = equal ones (IID)."""
    client_nets: Size[str] = "shard-cnn"
    """Networks of the clients' teachers, separated by commas and taken in turn."""
    client_steps: Size[int] = 600
    """Training steps of a client's teacher."""
    noise_by: NoiseBy = "server"
    """Data mode: noise added once by the server (as printed), or by every client."""
    questions: Size[int] = 51_200
    """b T, answers, one an image or one a copy; in data mode at most so many as the budget allows at `most_noise`
    on the clients' mean."""
    k: int = 0
    """Candidates of a randomised response, the student's most probable classes; 0 = all classes."""
    beta: float = 0.0
    """Normalisation bound; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: Solved[float] = 100.0
    """Noise scale sigma, over beta; solved from the budget unless --solve steps or --epsilon none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response; solved from the budget unless --solve steps or --epsilon none."""
    most_noise: float = 0.5
    """Data mode: largest noise over the bound at which questions beyond the 256th are asked, which leaves few of them;
    0 = any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "clients", "client_steps", "questions")
        at_least(self, 0, "k", "beta", "sigma", "most_noise")
        positive(self, "alpha", "answer_epsilon")

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The clients' teachers."""
        return shards(self.clients, self.client_nets, self.alpha, self.client_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise meets, and an unknown prior, before anything is trained."""
        Transcription.of(self, self.parameters(budget, dataset, classes).iterations)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Bytes of the images that the loop holds at its peak."""
        return Transcription.of(self, self.parameters(budget, dataset, classes).iterations).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Rounds of questions and answers. Only `_answers` asks the clients."""
        clients, parameters = teacher.members(), self.parameters(budget, teacher.dataset, teacher.classes)
        mechanism, noise = self._mechanism(teacher.classes), ctx.privacy_noise("fed-dpsd")

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            return self._answers(images, ours, clients, parameters, noise)

        doubtful = self.mode == "label" and is_mostly_wrong(parameters.answer_epsilon, parameters.k)
        training = Transcription.of(self, parameters.iterations, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, asked = training.train(teacher, student, source, ask, ctx, f"FedDPSD {self.mode} mode", self._loss)
        return Release(
            student=phi_s,
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            synthetic=asked[:60],
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _answers(
        self, images: Tensor, ours: Tensor, clients: Ensemble, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """(n, c) readings of the noisy answers to n questions. All that is ever learnt from the clients.

        Args:
            ours: (n, c) the student's logits.
        """
        if self.mode == "label":
            return self._responses(ours, clients(images), parameters, noise)
        bounded = partial(_bounded_gradient, bound=parameters.beta)
        g = noisy_mean(torch.stack([bounded(ours, each) for each in clients(images)]), parameters, self.noise_by, noise)
        if self.reading == "printed":
            return ours.softmax(1) - GAMMA * g
        sigma = sigma_of_mean(parameters.sigma, self.clients, self.noise_by)
        return gradient_log_likelihood(
            g, expected_gradients(bounded, ours), parameters.beta, (sigma**2 + SPREAD**2) ** 0.5
        )

    def _responses(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Label mode's readings: of each client's own response, all of them together."""
        epsilon, classes = parameters.answer_epsilon, ours.shape[1]
        answers = [_response(ours, each, parameters.k, epsilon, noise) for each in theirs]
        if self.reading == "printed":
            return torch.stack([F.one_hot(o, classes).float() for o in answers]).mean(0)
        allowed = candidates(ours, parameters.k)
        likelihood = torch.stack([response_log_likelihood(o, allowed, epsilon).exp() for o in answers])
        return (WRONG / parameters.k + (1 - WRONG) * likelihood).log().sum(0)

    @property
    def _loss(self) -> Loss:
        return F.cross_entropy if self.reading == "printed" else likelihood_loss

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """k, beta, the number of questions and, from the budget, sigma (or the randomised response's epsilon)."""
        usual = paper_k(dataset, classes) if self.mode == "data" else classes
        fields = AnnotationParameters(
            k=check_candidates(self.k or usual, dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.questions,
        )
        mechanism = self._mechanism(classes)
        if self.mode == "data":
            readable = self.most_noise / sigma_of_mean(1.0, self.clients, self.noise_by)
            fields = limit_queries(mechanism, fields, budget, readable)
        return calibrate(mechanism, fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        # Every question is a batch of its own, so that their number may be any
        return AnnotationMechanism(self.mode, 1, classes, clients=self.clients)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One client's raw answer to one image, by the two teachers that are furthest apart: what an audit plays."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, clients: Any, noise: Source) -> Tensor:
            return self._answers(images, phi_s(images), clients, parameters, noise)

        return federated_game(step, mechanism, parameters, budget.delta, self.noise_by)


def _bounded_gradient(ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
    """Lines 23 to 27, of plain distillation: (b, c) rows of norm at most beta."""
    return normalise_rows(gradient_at_output(kd_loss, ours, theirs), bound, H)


def _response(ours: Tensor, theirs: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
    """Lines 29 to 33: (b,) randomised responses on a client's classes, over the student's k most probable ones."""
    return randomised_response(theirs.argmax(1), ours.topk(k, 1).indices, epsilon, noise)
