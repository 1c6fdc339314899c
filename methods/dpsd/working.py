"""DPSD as it learns: its mechanisms asked about images of a data-free prior that evolve, answers read by likelihood.

The mechanisms, the noise and the theorems are those of `dpsd.py`; see there for the paper and for what is proved. What
is asked and how the student learns is `bench/distillation/transcription/loop.py`: post-processing of the answers.

Differs from the paper: as `dpsd.py` says, and by the `departures` below. What they are worth was measured at a claimed
epsilon of 10 and tier `quick`, three seeds: leaderboards/papers/ablations/runs.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

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
    FLAT_QUESTIONS,
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

LAMBDA, H = 8.0, 1e-4
"""Of Eq. 2 and 3, as printed."""
GAMMA = 0.1
"""gamma_s of Eq. 6's target, as printed."""


@dataclass(frozen=True)
class WorkingDpsd(TranscriptionOptions):
    """Many images asked about once each, in rounds."""

    version: ClassVar[int] = 5
    reference: ClassVar[str] = "Liu et al., DPSD, arXiv 2601.19090, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"questions": 48, "rounds": 3, "student_steps": 6},
        "quick": {"questions": 25_600},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        FROM_A_PRIOR,
        CHILDREN,
        CHOICE,
        Departure(
            "an answer is read by its likelihood under every class (`--method.reading printed`: the paper's target)",
            "a step of gamma_s beta from the student's own output is lost in Adam's steps, whose size does not depend "
            "on it",
            worth=READING_WORTH,
        ),
        REPLAY,
        ONE_CYCLE,
        ROUNDS,
        MANY_STEPS,
        Departure(
            "all classes are candidates of a response and entries of a gradient (`--method.k 3`: the student's three, "
            "or the three largest)",
            "a class that is none of the student's three is answered by noise, so that it stays unknown; of a sure "
            "teacher the entries left out tell as much as those kept",
            worth=CANDIDATES_WORTH,
        ),
        FLAT_QUESTIONS,
        FEW_CLEAR_ANSWERS,
        Departure(
            "data mode: plain distillation (Hinton et al., 2015) instead of Eq. 2's (`--method.loss dkd`)",
            "eight times as much of the bounded gradient speaks of the other classes",
            worth=PLAIN_LOSS_WORTH,
        ),
        JITTER,
        COMMITTEE,
    )
    only_with: ClassVar[dict[str, str]] = {
        "beta": "mode=data",
        "most_noise": "mode=data",
        "loss": "mode=data",
        "bound": "mode=data",
        "asked_at": "mode=data",
    }

    mode: Literal["data", "label"] = "data"
    """Noisy gradients (data, Eq. 3) or randomised response (label, Algorithm 2)."""
    questions: Size[int] = 51_200
    """b T, answers, one an image or one a copy; in data mode at most so many as the budget allows at `most_noise`."""
    k: int = 0
    """Top-k of Eq. 3, candidates of Eq. 5; 0 = all classes. The paper's is 3 for MNIST, FMNIST and CIFAR10."""
    beta: float = 0.0
    """Normalisation bound beta of Eq. 3; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: Solved[float] = 100.0
    """Noise scale sigma of Eq. 3, over beta; solved from the budget unless --solve steps or --epsilon none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response (Eq. 4); solved from the budget unless --solve steps or --epsilon none."""
    most_noise: float = 0.5
    """Data mode: largest noise over the bound at which questions beyond the 256th are asked, which leaves few of them;
    0 = any."""
    loss: Literal["kd", "dkd"] = "kd"
    """L_t: plain distillation, or decoupled (Eq. 2; Fig. 6)."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (Eq. 3), or by clipping (Fig. 5)."""
    asked_at: Literal["flat", "student"] = "flat"
    """The output at which Eq. 3's gradient is taken: all classes equally likely, or the student's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "questions")
        at_least(self, 0, "k", "beta", "sigma", "most_noise")
        positive(self, "answer_epsilon")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise meets, and an unknown prior, before anything is trained."""
        Transcription.of(self, self.parameters(budget, dataset, classes).iterations)
        check_source(self.prior, dataset)

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Bytes of the images that the loop holds at its peak."""
        return Transcription.of(self, self.parameters(budget, dataset, classes).iterations).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Rounds of questions and answers. Only `_answers` asks the teacher."""
        parameters = self.parameters(budget, teacher.dataset, teacher.classes)
        mechanism, noise = self._mechanism(teacher.classes), ctx.privacy_noise("dpsd")

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            return self._answers(images, ours, teacher.model, parameters, noise)

        doubtful = self.mode == "label" and is_mostly_wrong(parameters.answer_epsilon, parameters.k)
        training = Transcription.of(self, parameters.iterations, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, asked = training.train(teacher, student, source, ask, ctx, f"DPSD {self.mode} mode", self._loss)
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
        self, images: Tensor, ours: Tensor, phi_t: nn.Module, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """(n, c) readings of the noisy answers to n questions. All that is ever learnt from the teacher.

        Args:
            ours: (n, c) the student's logits.
        """
        theirs = phi_t(images)
        if self.mode == "label":
            allowed = candidates(ours, parameters.k)
            o = _response(ours, theirs, parameters.k, parameters.answer_epsilon, noise)
            if self.reading == "printed":
                return F.one_hot(o, ours.shape[1]).float().log()
            return response_log_likelihood(o, allowed, parameters.answer_epsilon)
        at = torch.zeros_like(ours) if self.asked_at == "flat" else ours
        bounded = partial(self._bounded_gradient, parameters=parameters)
        g = gaussian_rows(bounded(at, theirs), parameters.sigma * parameters.beta, noise)
        if self.reading == "printed":
            return at.softmax(1) - GAMMA * g
        return gradient_log_likelihood(g, expected_gradients(bounded, at), parameters.beta, parameters.sigma)

    @property
    def _loss(self) -> Loss:
        """Of stored readings: their likelihood, or the cross-entropy to Eq. 6's target. To one-hot answers, whose
        logarithms are 0 and minus infinity, the two are the same."""
        return F.cross_entropy if self.reading == "printed" and self.mode == "data" else likelihood_loss

    def _bounded_gradient(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters) -> Tensor:
        """Eq. 2 and the fraction of Eq. 3: (n, c) rows of norm at most beta, with k entries each."""
        l_t = kd_loss if self.loss == "kd" else partial(dkd_loss, weight=LAMBDA)
        g = keep_top_k(gradient_at_output(l_t, ours, theirs), parameters.k, "magnitude")
        return clip_rows(g, parameters.beta) if self.bound == "clip" else normalise_rows(g, parameters.beta, H)

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """k, beta, the number of questions and, from the budget, sigma (or the randomised response's epsilon)."""
        fields = AnnotationParameters(
            k=check_candidates(self.k or classes, dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.questions,
        )
        mechanism = self._mechanism(classes)
        if self.mode == "data":
            fields = limit_queries(mechanism, fields, budget, self.most_noise)
        return calibrate(mechanism, fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        # Every question is a batch of its own, so that their number may be any
        return AnnotationMechanism(self.mode, 1, classes)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One raw answer to one synthetic image, by the two teachers that are furthest apart: what an audit plays."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            return self._answers(images, phi_s(images), phi_t, parameters, noise)

        if self.mode == "label":  # likelihoods, as the logarithm of one may be minus infinity
            return response_game(lambda *given: step(*given).exp(), mechanism, parameters, budget.delta)
        return gradient_game(step, mechanism, parameters, budget.delta, flat=self.asked_at == "flat")


def _response(ours: Tensor, theirs: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
    """(n,) randomised responses on the teacher's classes, over the student's k most probable ones."""
    return randomised_response(theirs.argmax(1), ours.topk(k, 1).indices, epsilon, noise)
