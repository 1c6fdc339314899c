"""DP-DFD as it learns: selective responses to images of a data-free prior that evolve, read by their likelihood.

Liu et al.'s response (`methods/dp_dfd/dp_dfd.py` has Algorithm 1 as printed) in the loop of
`bench/distillation/transcription/loop.py`, which is post-processing of the answers.

Privacy. As of the printed algorithm epsilon of one answer is claimed (unit `query`). No generator learns from the
unprotected teacher here, so that the sum over all answers is all that one private record (unit `example`) may move, and
`--account accounted` asks for it.

Differs from the paper: in all that `departures` lists, and where the paper leaves things open as the printed variant
does. The student's weights start as Xavier's, and it takes a fixed number of steps after each round (`student_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
from methods.dp_dfd.accounting import ResponsePlan, response_claim, response_game, response_ledger, settings, within
from methods.dp_dfd.dp_dfd import candidates, respond


@dataclass(frozen=True)
class DpDfdWorking(TranscriptionOptions):
    """Selective responses that a student learns from.

    Raises:
        ValueError: a value out of its range; the sentence names it.
    """

    version: ClassVar[int] = 3
    reference: ClassVar[str] = "after Liu et al., DP-DFD, arXiv 2409.12384, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    unit: ClassVar[str] = str(Unit.QUERY)
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            "images come from a data-free prior instead of a generator that line 1 trains on the unprotected teacher",
            "nothing can be proved of what the generator learns there; and `--method.prior generator`, which learns "
            "from the student alone, draws images of few classes",
            without={"prior": "generator"},
        ),
        Departure(CHILDREN.what, CHILDREN.why, worth=f"DPSD, {CHILDREN_LABELS}"),
        Departure(CHOICE.what, CHOICE.why, worth=f"DPSD, {CHOICE_LABELS}"),
        Departure(
            "an answer is read by its likelihood under every class (`--method.reading printed`: Eq. 3's divergence)",
            "Eq. 3 fits the law of the noisy answers; forward correction (Patrini et al., CVPR 2017) fits that of the "
            "teacher's classes. The paper asks for an algorithm robust to label noise and names none",
            worth=f"DPSD, {READING_LABELS}",
        ),
        Departure(
            "the student's rate is 2e-3 at most, in one cycle, not 1e-3 throughout (`--method.gamma_s 1e-3`: one cycle "
            "of at most that)",
            "the paper gives no rate; the loop has one schedule for all of its methods",
            without={"gamma_s": 1e-3},
        ),
        ROUNDS,
        Departure(JITTER.what, JITTER.why, without={"jitter": "off"}),
        Departure(COMMITTEE.what, COMMITTEE.why, worth=f"DPSD, {COMMITTEE_LABELS}"),
    )
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"amount": 48, "rounds": 3, "student_steps": 6},
        "quick": {"amount": 25_600},
    }

    amount: Size[int] = 0
    """Answers, one a synthetic image (Fig. 2) or one a copy; 0 = the paper's for the data set."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one selective randomised response; solved from the budget unless --solve steps or --epsilon none."""
    threshold: float = 0.0
    """t of Alg. 1, line 5, a probability; 0 = 1/(2c) for c classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "amount")
        positive(self, "answer_epsilon")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; expected 0 (for 1/(2c)) or a probability below 1")

    def held_bytes(self, shape: tuple[int, int, int], classes: int, dataset: str, budget: Budget) -> int:
        """Bytes of the images that the loop holds at its peak."""
        return Transcription.of(self, self.plan(budget, dataset, classes).answers).image_bytes(shape)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Rounds of questions and answers. Only `answers` asks the teacher."""
        plan = self.plan(budget, teacher.dataset, teacher.classes)
        noise = ctx.privacy_noise("dp-dfd")

        def ask(images: Tensor, ours: Tensor) -> Tensor:
            return self.answers(images, ours, teacher.model, plan, noise)

        doubtful = is_mostly_wrong(plan.answer_epsilon, teacher.classes)
        training = Transcription.of(self, plan.answers, doubtful)
        source = image_source(self.prior, teacher, ctx)
        phi_s, asked = training.train(teacher, student, source, ask, ctx, "DP-DFD")
        return Release(
            student=phi_s,
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan),
            synthetic=asked[:60],
            solved=plan.solved,
        )

    @torch.no_grad()
    def answers(self, images: Tensor, ours: Tensor, phi_t: nn.Module, plan: ResponsePlan, noise: Source) -> Tensor:
        """Lines 2b and 2c: (n, c) readings of the private answers. All that is ever learnt from the teacher.

        Args:
            ours: (n, c) the student's logits.
        """
        allowed = candidates(ours.softmax(1), plan.threshold)
        answered = respond(allowed, phi_t(images), plan.answer_epsilon, noise)
        if self.reading == "printed":
            return answered.log()
        return response_log_likelihood(answered.argmax(1), allowed, plan.answer_epsilon)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse what no response can meet, and an unknown prior, before anything is trained."""
        Transcription.of(self, self.plan(budget, dataset, classes).answers)
        check_source(self.prior, dataset)

    def plan(self, budget: Budget, dataset: str, classes: int) -> ResponsePlan:
        """t, the images asked about, and from the budget one response's epsilon, or their number.

        Raises:
            BenchError: the budget cannot be met, with the reason.
        """
        fields = settings(self.threshold, 0, self.amount, self.answer_epsilon, dataset, classes)
        return within(fields, budget, self.ledger, "")

    def ledger(self, plan: ResponsePlan) -> Ledger:
        """What a release takes, for one private record and for one answer."""
        return response_ledger(plan, generator_saw_teacher=False)

    def claim(self, plan: ResponsePlan) -> Claim:
        """epsilon-LabelDP of one answer."""
        return response_claim(plan)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """One raw answer to one synthetic image: what an audit plays."""
        plan = self.plan(budget, dataset, classes)

        def step(images: Tensor, phi_s: nn.Module, phi_t: nn.Module, noise: Source) -> Tensor:
            # Likelihoods, as the logarithm of one may be minus infinity
            return self.answers(images, phi_s(images), phi_t, plan, noise).exp()

        return response_game(plan, self.ledger(plan), budget.delta, classes, step)
