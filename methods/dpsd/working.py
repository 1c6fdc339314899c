"""DPSD, variant `working`: a student trained on the likelihoods of noisy responses to images of a data-free prior.

Mechanisms, noise and theorems are those of `dpsd.py`; see there for the paper and its privacy. A "reading" is the
log-likelihood of a response under every class; "children" are transformed copies of queried images.
`bench/distillation/transcription/loop.py` chooses the queries and trains the student: post-processing of the responses.

Differs from the paper: as `dpsd.py`, and by the `departures` below. Their effects were measured at a claimed epsilon of
10 and tier `quick`, three seeds: leaderboards/papers/ablations/runs.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.distinguishing_games import gradient_game, response_game
from bench.distillation.image_source import check_source, image_source
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import (
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    candidates,
    check_candidates,
    limit_queries,
    paper_beta,
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
    FLAT_OUTPUT,
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
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import clip_rows, gaussian_rows, keep_top_k, normalise_rows, randomised_response
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dpsd.dpsd import LAMBDA, N_SYNTHETIC, H

GAMMA = 0.1
"""gamma_s of Eq. 6's target; as in the printed variant."""


@dataclass(frozen=True)
class WorkingDpsd(TranscriptionOptions):
    """Options of DPSD's variant `working`: one query per image or copy, sent in rounds."""

    version: ClassVar[int] = 5
    reference: ClassVar[str] = "Liu et al., DPSD, arXiv 2601.19090, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"queries": 48, "rounds": 3, "student_steps": 6},
        "quick": {"queries": 25_600},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "the student learns from the likelihood of each response under every class (`--method.reading printed`: "
            "the paper's target)",
            "the paper's target is only gamma_s beta away from the student's own output; a step of Adam is larger, and "
            "its size does not depend on that distance",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        Departure(
            "all classes are candidates of a response, and all entries of a gradient are kept (`--method.k 3`: the "
            "student's three most probable classes, or the three largest entries)",
            "a class outside the student's three gets a random response, so the student never learns it; if the "
            "teacher is confident, the entries that top-k omits carry as much information as those that it keeps",
            worth=CANDIDATES_WORTH,
        ),
        FLAT_OUTPUT,
        FEW_CLEAR_ANSWERS,
        Departure(
            "data mode: plain distillation loss (Hinton et al., 2015), not Eq. 2's (`--method.loss dkd`)",
            "Eq. 2 gives the classes other than the target eight times the weight in the bounded gradient",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
    )
    recorded_as: ClassVar[dict[str, str]] = {
        "queries": "questions",
        "max_noise": "most_noise",
        "gradient_at": "asked_at",
    }
    only_with: ClassVar[dict[str, str]] = {
        "beta": "mode=data",
        "max_noise": "mode=data",
        "loss": "mode=data",
        "bound": "mode=data",
        "gradient_at": "mode=data",
    }

    mode: Literal["data", "label"] = "data"
    """Response of the teacher: a noisy gradient (data, Eq. 3) or a randomised class (label, Algorithm 2)."""
    queries: Size[int] = 51_200
    """Number of queries (the paper's b T), one per image or copy; in data mode fewer if the budget allows fewer at
    noise `max_noise`."""
    k: int = 0
    """k, entries of a gradient (Eq. 3) or candidates of a response (Eq. 5); 0 = all classes. The paper's is 3 for
    MNIST, FMNIST and CIFAR10."""
    beta: float = 0.0
    """beta, bound on the norm of a gradient in Eq. 3; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on
    ImageNet."""
    sigma: Solved[float] = 100.0
    """sigma of Eq. 3, the noise's standard deviation divided by beta; solved from the budget unless --solve steps or
    --epsilon none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response (Eq. 4); solved from the budget unless --solve steps or --epsilon none."""
    max_noise: float = 0.5
    """Data mode: largest sigma. If the budget requires more noise, fewer queries are sent, at least 256; 0 = no
    limit."""
    loss: Literal["kd", "dkd"] = "kd"
    """L_t, distillation loss: plain, or decoupled (Eq. 2; Fig. 6)."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (Eq. 3) or clipping (Fig. 5)."""
    gradient_at: Literal["flat", "student"] = "flat"
    """Student output at which Eq. 3's gradient is evaluated: uniform over the classes (flat), or the student's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "queries")
        at_least(self, 0, "k", "beta", "sigma", "max_noise")
        positive(self, "answer_epsilon")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise can meet, or an unknown prior, before anything is trained."""
        Transcription.of(self, self.parameters(budget, dataset, classes).iterations)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Return the peak memory of the loop's images, in bytes."""
        return Transcription.of(self, self.parameters(budget, dataset, classes).iterations).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Send rounds of queries and train the student. Only `_query_teacher` queries the teacher."""
        parameters = self.parameters(budget, teacher.dataset, teacher.classes)
        mechanism, noise = self._mechanism(teacher.classes), ctx.privacy_noise("dpsd")

        def query(images: Tensor, ours: Tensor) -> Tensor:
            return self._query_teacher(images, ours, teacher.model, parameters, noise)

        doubtful = self.mode == "label" and is_mostly_wrong(parameters.answer_epsilon, parameters.k)
        training = Transcription.of(self, parameters.iterations, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, queried = training.train(teacher, student, source, query, ctx, f"DPSD {self.mode} mode", self._loss)
        return Release(
            student=phi_s,
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            synthetic=queried[:N_SYNTHETIC],
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _query_teacher(
        self, images: Tensor, ours: Tensor, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Return (n, c) readings of the noisy responses to n images; nothing else of the teacher is used.

        A reading is a response's log-likelihood under every class, or with `reading printed` the paper's target.

        Args:
            ours: (n, c) logits of the student.
        """
        theirs = phi_t(images)
        if self.mode == "label":
            allowed = candidates(ours, parameters.k)
            o = _response(ours, theirs, parameters.k, parameters.answer_epsilon, noise)
            if self.reading == "printed":
                return F.one_hot(o, ours.shape[1]).float().log()
            return response_log_likelihood(o, allowed, parameters.answer_epsilon)
        at = torch.zeros_like(ours) if self.gradient_at == "flat" else ours
        bounded = partial(self._bounded_gradient, parameters=parameters)
        g = gaussian_rows(bounded(at, theirs), parameters.sigma * parameters.beta, noise)
        if self.reading == "printed":
            return at.softmax(1) - GAMMA * g
        return gradient_log_likelihood(g, expected_gradients(bounded, at), parameters.beta, parameters.sigma)

    @property
    def _loss(self) -> Loss:
        """Loss on stored readings: likelihood, or cross-entropy to Eq. 6's target.

        In label mode the paper's target is the one-hot response, stored as logarithms 0 and minus infinity. For it the
        likelihood loss is equal to the cross-entropy.
        """
        return F.cross_entropy if self.reading == "printed" and self.mode == "data" else likelihood_loss

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters) -> Tensor:
        """Eq. 2 and the fraction of Eq. 3: return (n, c) gradients of norm at most beta, with k entries each."""
        l_t = kd_loss if self.loss == "kd" else partial(dkd_loss, weight=LAMBDA)
        g = keep_top_k(gradient_at_output(l_t, ours, theirs), parameters.k, "magnitude")
        return clip_rows(g, parameters.beta) if self.bound == "clip" else normalise_rows(g, parameters.beta, H)

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """Return k, beta, the number of queries, and sigma (or a response's epsilon) calibrated to the budget."""
        fields = AnnotationParameters(
            k=check_candidates(self.k or classes, dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.queries,
        )
        mechanism = self._mechanism(classes)
        if self.mode == "data":
            fields = limit_queries(mechanism, fields, budget, self.max_noise)
        return calibrate(mechanism, fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        # Each query is a batch of one image, so any number of queries is possible
        return AnnotationMechanism(self.mode, 1, classes)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response to one synthetic image, of the two teachers that differ most."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            return self._query_teacher(images, phi_s(images), phi_t, parameters, noise)

        if self.mode == "label":  # likelihoods, because log-likelihoods may be minus infinity
            return response_game(lambda *inputs: step(*inputs).exp(), mechanism, parameters, budget.delta)
        return gradient_game(step, mechanism, parameters, budget.delta, flat=self.gradient_at == "flat")


def _response(ours: Tensor, theirs: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
    """Return (n,) randomised responses for the teacher's classes, over the student's k most probable classes."""
    return randomised_response(theirs.argmax(1), ours.topk(k, 1).indices, epsilon, noise)
