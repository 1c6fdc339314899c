"""DP-DFD, variant `working`: a student trained on the likelihoods of selective responses to a data-free prior's images.

The mechanism is Liu et al.'s selective response (`methods/dp_dfd/dp_dfd.py` has Algorithm 1 as printed). The loop of
`bench/distillation/transcription/loop.py` chooses the queries and trains the student: post-processing of the responses.

Privacy. As for the printed algorithm, epsilon of one response is claimed (unit `query`). Here no generator learns from
the unprotected teacher, so the epsilon of one private record (unit `example`) is finite: the sum over all responses.
`--account accounted` limits it.

A "reading" is the log-likelihood of a response under every class; "children" are transformed copies of queried images.

Differs from the paper: by the `departures` below. Where the paper does not specify a setting, this variant has the
printed variant's, except that the student's weights have Xavier initialisation and the total number of its steps is
fixed (`student_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bench.api import Context, Release, Teacher
from bench.config import Departure, Size, Solved
from bench.distillation.image_source import check_source, image_source
from bench.distillation.transcription.likelihoods import is_mostly_wrong, response_log_likelihood
from bench.distillation.transcription.loop import Transcription
from bench.distillation.transcription.options import (
    CHILDREN,
    CHILDREN_LABELS,
    CHOICE,
    CHOICE_LABELS,
    COMMITTEE,
    COMMITTEE_LABELS,
    JITTER,
    READING_LABELS,
    ROUNDS,
    TranscriptionOptions,
)
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.dp_dfd.accounting import (
    ResponsePlan,
    calibrate_responses,
    response_claim,
    response_game,
    response_ledger,
    uncalibrated_plan,
)
from methods.dp_dfd.dp_dfd import N_SYNTHETIC, candidates, respond


@dataclass(frozen=True)
class DpDfdWorking(TranscriptionOptions):
    """Options of DP-DFD's variant `working`: selective responses to images of a prior, sent in rounds.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "after Liu et al., DP-DFD, arXiv 2409.12384, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            "images come from a data-free prior instead of a generator that line 1 trains on the unprotected teacher",
            "that generator makes the accounted epsilon infinite; `--method.prior generator`, which learns only from "
            "the student, draws images of few classes",
            without={"prior": "generator"},
        ),
        Departure(CHILDREN.what, CHILDREN.why, worth=f"DPSD, {CHILDREN_LABELS}"),
        Departure(CHOICE.what, CHOICE.why, worth=f"DPSD, {CHOICE_LABELS}"),
        Departure(
            "the student learns from the likelihood of each response under every class (`--method.reading printed`: "
            "Eq. 3's divergence)",
            "Eq. 3 fits the distribution of the noisy responses; forward correction (Patrini et al., CVPR 2017) fits "
            "that of the teacher's classes. The paper requires an algorithm robust to label noise, but names none",
            worth=f"DPSD, {READING_LABELS}",
        ),
        Departure(
            "the student's learning rate has one cycle up to 2e-3, where the printed variant has a constant 1e-3 "
            "(`--method.gamma_s 1e-3`: one cycle up to 1e-3)",
            "the paper gives no rate; the loop has one schedule for all methods",
            without={"gamma_s": 1e-3},
        ),
        ROUNDS,
        Departure(JITTER.what, JITTER.why, without={"jitter": "off"}),
        Departure(COMMITTEE.what, COMMITTEE.why, worth=f"DPSD, {COMMITTEE_LABELS}"),
    )
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"queries": 48, "rounds": 3, "student_steps": 6},
        "quick": {"queries": 25_600},
    }
    recorded_as: ClassVar[dict[str, str]] = {"queries": "amount"}

    queries: Size[int] = 0
    """Number of responses, one per synthetic image (Fig. 2) or per copy; 0 = the paper's for the data set."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one selective randomised response; solved from the budget unless --solve steps or --epsilon none."""
    threshold: float = 0.0
    """t of Alg. 1, line 5: classes with a larger probability under the student are candidates of a response; 0 = 1/(2c)
    for c classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "queries")
        positive(self, "answer_epsilon")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; expected 0 (for 1/(2c)) or a probability below 1")

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Return the peak memory of the loop's images, in bytes."""
        return Transcription.of(self, self.plan(budget, dataset, classes).answers).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Send rounds of queries and train the student. Only `query_teacher` queries the teacher."""
        plan = self.plan(budget, teacher.dataset, teacher.classes)
        noise = ctx.privacy_noise("dp-dfd")

        def query(images: Tensor, ours: Tensor) -> Tensor:
            return self.query_teacher(images, ours, teacher.model, plan, noise)

        doubtful = is_mostly_wrong(plan.answer_epsilon, teacher.classes)
        training = Transcription.of(self, plan.answers, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, queried = training.train(teacher, student, source, query, ctx, "DP-DFD")
        return Release(
            student=phi_s,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan),
            synthetic=queried[:N_SYNTHETIC],
            solved=plan.solved,
        )

    @torch.no_grad()
    def query_teacher(
        self, images: Tensor, ours: Tensor, phi_t: nn.Module, plan: ResponsePlan, noise: Source
    ) -> Tensor:
        """Lines 2b and 2c: return (n, c) readings of the private responses; nothing else of the teacher is used.

        Args:
            ours: (n, c) logits of the student.
        """
        allowed = candidates(ours.softmax(1), plan.threshold)
        answered = respond(allowed, phi_t(images), plan.answer_epsilon, noise)
        if self.reading == "printed":
            return answered.log()
        return response_log_likelihood(answered.argmax(1), allowed, plan.answer_epsilon)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse an unreachable budget or an unknown prior, before anything is trained."""
        Transcription.of(self, self.plan(budget, dataset, classes).answers)
        check_source(self.prior, dataset)

    def plan(self, budget: Budget, dataset: str, classes: int) -> ResponsePlan:
        """Return t and the number of queries; calibrate the epsilon of one response, or their number, to the budget.

        Raises:
            BenchError: the budget cannot be met; the message has the reason.
        """
        fields = uncalibrated_plan(self.threshold, 0, self.queries, self.answer_epsilon, dataset, classes)
        return calibrate_responses(fields, budget, self.ledger, "")

    def ledger(self, plan: ResponsePlan) -> Ledger:
        """Return the ledger of all responses, for one private record and for one response."""
        return response_ledger(plan, generator_saw_teacher=False)

    def claim(self, plan: ResponsePlan) -> Claim:
        """Return the claim: epsilon-LabelDP of one response."""
        return response_claim(plan)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one response to one synthetic image."""
        plan = self.plan(budget, dataset, classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            # Likelihoods, because log-likelihoods may be minus infinity
            return self.query_teacher(images, phi_s(images), phi_t, plan, noise).exp()

        return response_game(plan, self.ledger(plan), budget.delta, classes, step)
