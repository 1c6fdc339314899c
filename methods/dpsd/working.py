"""DPSD as it learns: its mechanisms asked about images of a data-free prior that evolve, answers read by likelihood.

The mechanisms, the noise and the theorems are those of `dpsd.py`; see there for the paper and for what is proved. What
is asked and how the student learns is `bench/distillation/transcription.py`: post-processing of the answers.

Differs from the paper: as `dpsd.py` says, and by the `departures` below. What they are worth was measured at a claimed
epsilon of 10 and tier `quick`, on digits with three seeds, on MNIST with one or three: docs/ablations.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.config import Departure, Size
from bench.distillation.distinguishing_games import gradient_game, response_game
from bench.distillation.image_source import check_source, image_source
from bench.distillation.likelihoods import (
    expected_gradients,
    gradient_log_likelihood,
    likelihood_loss,
    response_log_likelihood,
)
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import (
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    candidates,
    check_candidates,
    few_enough,
    paper_beta,
)
from bench.distillation.transcription import Loss, Transcription
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
class WorkingDpsd:
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
        Departure(
            "images come from a data-free prior instead of a generator (`--method.prior generator` goes back)",
            "an untrained generator's images are of few classes to the teacher; a student that agrees shows it no "
            "other",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, without 87.9 % and 41.3 %; data "
            "mode (k 3): 72.3 % and 75.8 %, without 48.7 % and 25.6 %",
        ),
        Departure(
            "seven in ten candidate images are children of answered ones (`--method.evolve 0`: none)",
            "a prior seldom draws what the teacher takes for a rare class; children of the few that it did are of that "
            "class more often",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, without 92.7 % and 94.4 %; data "
            "mode (k 3): 72.3 % and 74.6 %, without 71.3 % and 71.7 %",
        ),
        Departure(
            "the student chooses every second candidate, balanced and unsure ones first (`--method.choose 1`: no "
            "choice)",
            "answers are few, and the teacher's classes on drawn images are not even",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, without 94.5 % and 94.3 %; data "
            "mode: 80.1 % and 75.0 %, without 73.9 % and 68.2 %",
        ),
        Departure(
            "an answer is read by its likelihood under every class (`--method.reading printed`: the paper's target)",
            "a step of gamma_s beta from the student's own output is lost in Adam's steps, whose size does not depend "
            "on it",
            worth="data mode (k 3): 72.3 % on digits and 75.8 % on MNIST, without 11.7 % and 11.3 %; label mode at "
            "claimed epsilon 1, 10,240 questions: 50.8 % on digits, without 42.6 %; at 10, where one answer in "
            "2,400 is wrong, nothing: 94.1 % on digits and 95.8 % on MNIST, without 94.9 % and 95.1 %",
        ),
        Departure(
            "all answers are kept and learnt from again (`--method.replay false`: the last round's alone)",
            "steps on stored answers cost no privacy",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, without 95.1 % and 94.7 %; data "
            "mode (k 3): 72.3 % and 75.8 %, without 68.6 % and 67.4 %",
        ),
        Departure(
            "the student's rate is 2e-3 at most, in one cycle (`--method.gamma_s 0.1`: the paper's rate)",
            "at 0.1 most units of the student die at once",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, with 0.1 77.6 % and 80.4 %; "
            "data mode (k 3): 72.3 % and 75.8 %, with 0.1 44.6 % and 11.3 %",
        ),
        Departure(
            "all classes are candidates of a response and entries of a gradient (`--method.k 3`: the student's three, "
            "or the three largest)",
            "a class that is none of the student's three is answered by noise, so that it stays unknown; of a sure "
            "teacher the entries left out tell as much as those kept",
            worth="label mode, 10,240 questions: 94.1 % on digits and 95.8 % on MNIST, with k 3 68.9 % and 51.9 %; "
            "data mode: 80.1 % and 75.0 %, with k 3 72.3 % and 75.8 %",
        ),
        Departure(
            "data mode: few images with little noise each (`--method.most_noise 0`: b T = 51,200 with much)",
            "beyond a noise of the bound itself a student learns the noise by heart",
            worth="72.3 % on digits and 75.8 % on MNIST (k 3), with 10,240 images at sigma 1.7 67.1 % and 44.3 %",
        ),
        Departure(
            "data mode: plain distillation (Hinton et al., 2015) instead of Eq. 2's (`--method.loss dkd`)",
            "eight times as much of the bounded gradient speaks of the other classes",
            worth="72.3 % on digits and 75.8 % on MNIST (k 3), with Eq. 2's 39.6 % and 40.3 %",
        ),
        Departure(
            "data mode: fewer than 4,096 stored images are moved a little when they are seen again (`--method.jitter "
            "off`)",
            "a few hundred images are learnt by heart",
            worth="72.3 % on digits and 75.8 % on MNIST (k 3), without 66.4 % and 54.5 %",
        ),
    )

    mode: Literal["data", "label"] = "data"
    """Noisy gradients (data, Eq. 3) or randomised response (label, Algorithm 2)."""
    questions: Size[int] = 51_200
    """b T, images asked about, once each; in data mode at most so many as the budget allows at `most_noise`."""
    rounds: Size[int] = 0
    """Rounds of questions, the student learning after each; 0 = one for 5,000 questions, at least 4."""
    k: int = 0
    """Top-k of Eq. 3, candidates of Eq. 5; 0 = all classes. The paper's is 3 for MNIST, FMNIST and CIFAR10."""
    beta: float = 0.0
    """Normalisation bound beta of Eq. 3; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: float = 100.0
    """Noise scale sigma of Eq. 3, over beta; solved from the budget unless --solve steps or --epsilon none."""
    answer_epsilon: float = 1.0
    """epsilon of one randomised response (Eq. 4); solved from the budget unless --solve steps or --epsilon none."""
    most_noise: float = 0.5
    """Data mode: largest noise over the bound at which a question is asked, which leaves few of them; 0 = any."""
    loss: Literal["kd", "dkd"] = "kd"
    """L_t: plain distillation, or decoupled (Eq. 2; Fig. 6)."""
    bound: Literal["normalise", "clip"] = "normalise"
    """Bound gradients by normalising (Eq. 3), or by clipping (Fig. 5)."""
    prior: str = "auto"
    """Where fresh images come from: a prior (`bench list priors`); auto = the data set's; generator = the paper's."""
    evolve: float = 0.7
    """Share of the candidate images that are children of answered ones."""
    choose: float = 2.0
    """Candidate images for each question; the student chooses among them."""
    reading: Literal["likelihood", "printed"] = "likelihood"
    """What the student learns of an answer: its likelihood under every class, or the paper's target (Eq. 6)."""
    jitter: Literal["auto", "on", "off"] = "auto"
    """Whether stored images are moved a little when they are seen again; auto = where there are fewer than 4,096."""
    replay: bool = True
    """Learn from all answers so far, or from the last round's alone."""
    gamma_s: float = 2e-3
    """Largest learning rate of the student, of one cycle."""
    student_steps: Size[int] = 0
    """Student steps in all; 0 = 300 and one more for every 40 questions."""

    def __post_init__(self) -> None:
        at_least(self, 1, "questions", "choose")
        at_least(self, 0, "k", "beta", "sigma", "most_noise", "rounds", "student_steps")
        positive(self, "answer_epsilon", "gamma_s")
        if not 0 <= self.evolve < 1:
            raise ValueError(f"evolve is {self.evolve}; expected a share from 0 to below 1")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise meets, and an unknown prior, before anything is trained."""
        self.parameters(budget, dataset, classes)
        check_source(self.prior, dataset)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Rounds of questions and answers. Only `_answers` asks the teacher."""
        parameters = self.parameters(budget, teacher.dataset, teacher.classes)
        mechanism, noise = self._mechanism(teacher.classes), ctx.privacy_noise("dpsd")

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            return self._answers(images, ours, teacher.model, parameters, noise)

        training, source = Transcription.of(self, parameters.iterations), image_source(self.prior, teacher, ctx)
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
        bounded = partial(self._bounded_gradient, parameters=parameters)
        g = gaussian_rows(bounded(ours, theirs), parameters.sigma * parameters.beta, noise)
        if self.reading == "printed":
            return ours.softmax(1) - GAMMA * g
        return gradient_log_likelihood(g, expected_gradients(bounded, ours), parameters.beta, parameters.sigma)

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
            fields = few_enough(mechanism, fields, budget, self.most_noise)
        return calibrate(mechanism, fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        # Every question is a batch of its own, so that their number may be any
        return AnnotationMechanism(self.mode, 1, classes)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One raw answer to one synthetic image, by the two teachers that are furthest apart: what an audit plays."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)
        if self.mode == "label":
            ask = partial(_response, k=parameters.k, epsilon=parameters.answer_epsilon)
            return response_game(lambda s, t, rng: ask(s, t, noise=rng), mechanism, parameters, budget.delta)
        bound = partial(self._bounded_gradient, parameters=parameters)
        noisy = partial(gaussian_rows, std=parameters.sigma * parameters.beta)
        return gradient_game(bound, lambda rows, rng: noisy(rows, source=rng), mechanism, parameters, budget.delta)


def _response(ours: Tensor, theirs: Tensor, k: int, epsilon: float, noise: Source) -> Tensor:
    """(n,) randomised responses on the teacher's classes, over the student's k most probable ones."""
    return randomised_response(theirs.argmax(1), ours.topk(k, 1).indices, epsilon, noise)
