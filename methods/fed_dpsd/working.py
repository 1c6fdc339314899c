"""FedDPSD, variant `working`: a student trained on the likelihoods of the clients' noisy responses to a prior's images.

Gradient bound, noise and theorems are those of `fed_dpsd.py`; see there for the paper and its privacy. A "reading" is
the log-likelihood of a response under every class; "children" are transformed copies of queried images.
`bench/distillation/transcription/loop.py` chooses the queries and trains the student: post-processing of the responses.

Differs from the paper: as `fed_dpsd.py`, and by the `departures` below. Clients are small networks (`shard-cnn`) of 600
training steps, those of the printed variant have 3000; the paper gives neither.
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
from methods.fed_dpsd.fed_dpsd import N_SYNTHETIC, H, NoiseBy, client_shards, federated_game, noisy_mean, sigma_of_mean

GAMMA = 0.1
"""gamma_s, the step of the paper's target; as in the printed variant."""
WRONG = 0.2
"""Label mode: assumed probability that a client's class is independent of the clients' common class."""
SPREAD = 0.3
"""Data mode: assumed standard deviation of the clients' mean gradient around a common gradient, in each entry, divided
by beta."""


@dataclass(frozen=True)
class WorkingFedDpsd(TranscriptionOptions):
    """Options of FedDPSD's variant `working`: one query per image or copy, sent in rounds."""

    version: ClassVar[int] = 4
    reference: ClassVar[str] = "Liu et al., FedDPSD, arXiv 2601.19090, Algorithm 2"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"queries": 48, "rounds": 3, "student_steps": 6, "clients": 2, "client_steps": 4},
        "quick": {"queries": 25_600},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "the student learns from the likelihood of each response under every class (`--method.reading printed`: "
            "the paper's target)",
            "clients that have few images of a class are often wrong; the joint likelihood of their responses models "
            "that",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        Departure(
            "label mode: all classes are candidates (`--method.k 3`: the student's three most probable classes)",
            "a class outside the student's three gets a random response, so the student never learns it",
            worth=CANDIDATES_WORTH,
        ),
        FEW_CLEAR_ANSWERS,
        Departure(
            "plain distillation loss, not DPSD's decoupled loss",
            "the decoupled loss gives the classes other than the target eight times the weight in the bounded gradient",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
    )
    recorded_as: ClassVar[dict[str, str]] = {"queries": "questions", "max_noise": "most_noise"}
    only_with: ClassVar[dict[str, str]] = {
        "noise_by": "mode=data",
        "k": "mode=label",
        "beta": "mode=data",
        "max_noise": "mode=data",
    }

    mode: Literal["data", "label"] = "data"
    """Responses of the clients, the switch s: noisy gradients (data) or randomised classes (label)."""
    clients: Size[int] = 5
    """m, number of clients."""
    alpha: float = 0.5
    """Concentration of the Dirichlet distribution of each class over the clients; 1e6 = equal shares (IID)."""
    client_nets: Size[str] = "shard-cnn"
    """Networks of the clients' teachers, separated by commas; with several, they alternate."""
    client_steps: Size[int] = 600
    """Training steps of a client's teacher."""
    noise_by: NoiseBy = "server"
    """Data mode: add noise once at the server (as printed), or at every client."""
    queries: Size[int] = 51_200
    """Number of queries (the paper's b T), one per image or copy; in data mode fewer if the budget allows fewer at
    noise `max_noise`."""
    k: int = 0
    """k, candidates of a randomised response, the student's most probable classes; 0 = all classes."""
    beta: float = 0.0
    """beta, bound on the norm of a gradient; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: Solved[float] = 100.0
    """sigma, the noise's standard deviation divided by beta; solved from the budget unless --solve steps or --epsilon
    none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response; solved from the budget unless --solve steps or --epsilon none."""
    max_noise: float = 0.5
    """Data mode: largest noise (standard deviation) on the mean of the clients' gradients, divided by beta. If the
    budget requires more, fewer queries are sent, at least 256; 0 = no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "clients", "client_steps", "queries")
        at_least(self, 0, "k", "beta", "sigma", "max_noise")
        positive(self, "alpha", "answer_epsilon")

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the clients' teachers."""
        return client_shards(self.clients, self.client_nets, self.alpha, self.client_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise can meet, or an unknown prior, before anything is trained."""
        Transcription.of(self, self.parameters(budget, dataset, classes).iterations)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Return the peak memory of the loop's images, in bytes."""
        return Transcription.of(self, self.parameters(budget, dataset, classes).iterations).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Send rounds of queries and train the student. Only `_query_clients` queries the clients."""
        clients, parameters = teacher.members(), self.parameters(budget, teacher.dataset, teacher.classes)
        mechanism, noise = self._mechanism(teacher.classes), ctx.privacy_noise("fed-dpsd")

        def query(images: Tensor, ours: Tensor) -> Tensor:
            return self._query_clients(images, ours, clients, parameters, noise)

        doubtful = self.mode == "label" and is_mostly_wrong(parameters.answer_epsilon, parameters.k)
        training = Transcription.of(self, parameters.iterations, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, queried = training.train(teacher, student, source, query, ctx, f"FedDPSD {self.mode} mode", self._loss)
        return Release(
            student=phi_s,
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            synthetic=queried[:N_SYNTHETIC],
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _query_clients(
        self, images: Tensor, ours: Tensor, clients: Ensemble, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Return (n, c) readings of the noisy responses to n images; nothing else of the clients is used.

        A reading is a response's log-likelihood under every class, or with `reading printed` the paper's target.

        Args:
            ours: (n, c) logits of the student.
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
        """Label mode: return the joint (n, c) reading of the clients' randomised responses."""
        epsilon, classes = parameters.answer_epsilon, ours.shape[1]
        answers = [_response(ours, each, parameters.k, epsilon, noise) for each in theirs]
        if self.reading == "printed":
            return torch.stack([F.one_hot(o, classes).float() for o in answers]).mean(0)
        allowed = candidates(ours, parameters.k)
        likelihood = torch.stack([response_log_likelihood(o, allowed, epsilon).exp() for o in answers])
        return (WRONG / parameters.k + (1 - WRONG) * likelihood).log().sum(0)

    @property
    def _loss(self) -> Loss:
        """Loss on stored readings: likelihood, or cross-entropy to the paper's target."""
        return F.cross_entropy if self.reading == "printed" else likelihood_loss

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """Return k, beta, the number of queries, and sigma (or a response's epsilon) calibrated to the budget."""
        default_k = paper_k(dataset, classes) if self.mode == "data" else classes
        fields = AnnotationParameters(
            k=check_candidates(self.k or default_k, dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.queries,
        )
        mechanism = self._mechanism(classes)
        if self.mode == "data":
            max_noise = self.max_noise / sigma_of_mean(1.0, self.clients, self.noise_by)
            fields = limit_queries(mechanism, fields, budget, max_noise)
        return calibrate(mechanism, fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        # Each query is a batch of one image, so any number of queries is possible
        return AnnotationMechanism(self.mode, 1, classes, clients=self.clients)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one client's response to one image, of the two teachers that differ most."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, clients: Any, noise: Source) -> Tensor:
            return self._query_clients(images, phi_s(images), clients, parameters, noise)

        return federated_game(step, mechanism, parameters, budget.delta, self.noise_by)


def _bounded_gradient(ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
    """Lines 23 to 27 for the plain distillation loss: return (b, c) gradients of norm at most beta."""
    return normalise_rows(gradient_at_output(kd_loss, ours, theirs), bound, H)


def _response(ours: Tensor, theirs: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
    """Lines 29 to 33: return (b,) randomised responses of one client, over the student's k most probable classes."""
    return randomised_response(theirs.argmax(1), ours.topk(k, 1).indices, epsilon, noise)
