"""Privacy of DP-DFD's selective responses, for both variants: claim, ledger, calibration and the audit's game.

One private record may change the teacher, hence all N responses, which compose. The ledger counts each as randomised
response over two classes. Its actual number of candidates k depends on the student and differs per row, but every
epsilon-DP mechanism is a post-processing of binary randomised response (Kairouz, Oh, Viswanath, ICML 2015), so this is
an upper bound. The candidates depend on earlier responses only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench import data
from bench.distillation.distinguishing_games import TableNetwork, numbered_images
from bench.errors import BenchError
from bench.privacy import (
    Budget,
    Claim,
    Ledger,
    Unit,
    Unreachable,
    calibrate_noise,
    largest_count,
    randomised_response_event,
)
from bench.privacy.accountant import account, accounted_curve
from bench.privacy.audit import DistinguishingGame, Play, strongest_game
from bench.privacy.claims import NO_EPSILON, dpsd_theorem2
from bench.privacy.events import check_response_epsilon, most_response_epsilon, unprotected_event
from bench.privacy.information import selective_capacity
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_rows

MAX_STAGES = 1_000_000
"""Largest number of stages that a budget may determine."""
PLAYS, TRIAL_PLAYS = 100_000, 10_000
"""Plays of the audit's game, and of the trial that selects the strongest of several games."""
Step = Callable[[Tensor, nn.Module, nn.Module, Source], Tensor]
"""A method's step: (m, c, h, w) images, student, teacher, noise -> (m, d) private responses."""


@dataclass(frozen=True)
class ResponsePlan:
    """Parameters of the mechanism that determine its privacy.

    Attributes:
        threshold: t, on the student's probabilities.
        stages: T.
        share: number of queried images per stage.
        answer_epsilon: epsilon of one selective randomised response; infinity = no noise.
        classes: c; 0 = unknown, so the information of the responses is unknown too.
    """

    threshold: float
    stages: int
    share: int
    answer_epsilon: float
    classes: int = 0

    @property
    def answers(self) -> int:
        """N, the number of responses."""
        return self.stages * self.share

    @property
    def carries(self) -> float | None:
        """Upper bound on the information of all one-hot responses, in nats; each has 2 to c candidates."""
        return self.answers * selective_capacity(self.answer_epsilon, self.classes) if self.classes else None

    @property
    def solved(self) -> dict[str, float]:
        """The parameters that the budget and the data set determined, for the record."""
        known: dict[str, float] = {"threshold": self.threshold, "stages": self.stages, "answers": self.answers}
        return known | ({"answer_epsilon": self.answer_epsilon} if math.isfinite(self.answer_epsilon) else {})


def uncalibrated_plan(
    threshold: float, stages: int, queries: int, answer_epsilon: float, dataset: str, classes: int
) -> ResponsePlan:
    """Return the plan of a method's options before calibration.

    Args:
        threshold: t; 0 = the paper's, 1 / (2c).
        stages: T; 0 = one per image.
        queries: number of images; 0 = the paper's for the data set.

    Raises:
        BenchError: there are fewer images than stages.
    """
    queries = queries or data.facts(dataset).dp_dfd_images
    stages = stages or queries
    if queries < stages:
        raise BenchError(f"--method.queries {queries}: expected at least one image for each of the {stages} stages")
    return ResponsePlan(threshold or 1 / (2 * classes), stages, queries // stages, answer_epsilon, classes)


def response_ledger(plan: ResponsePlan, generator_saw_teacher: bool, soft: bool = False) -> Ledger:
    """Return the ledger of all access to the private data, for one private record and for one response.

    Args:
        generator_saw_teacher: whether line 1 trained the generator on the unprotected teacher.
        soft: whether the teacher's own output vectors are among the responses.
    """
    ledger = Ledger()
    if generator_saw_teacher:
        ledger.spend(unprotected_event(), why="the teacher's gradients and statistics train the generator (line 1)")
    if soft or math.isinf(plan.answer_epsilon):
        why = "the teacher's own vectors as answers" if soft else "labels without noise"
        carries = None if soft else plan.carries
        ledger.spend(unprotected_event(), unit=Unit.EXAMPLE, why=why, carries=carries)
        ledger.spend(unprotected_event(), unit=Unit.QUERY, why=why)
        return ledger
    event, why = randomised_response_event(plan.answer_epsilon, 2), "selective response, charged as over 2 classes"
    ledger.spend(event, count=plan.answers, unit=Unit.EXAMPLE, why=why, carries=plan.carries)
    ledger.spend(event, unit=Unit.QUERY, why="one " + why)
    return ledger


def response_claim(plan: ResponsePlan, soft: bool = False) -> Claim:
    """Return the paper's claim, epsilon-LabelDP of one response; for soft responses it is disputed."""
    disputed = NO_EPSILON if soft else ""
    return Claim(dpsd_theorem2(plan.answer_epsilon), 0.0, Unit.QUERY, "DP-DFD, section II-C", disputed=disputed)


def calibrate_responses(
    fields: ResponsePlan, budget: Budget, ledger_of: Callable[[ResponsePlan], Ledger], refusal: str
) -> ResponsePlan:
    """Return `fields` with the epsilon of one response, or the number of stages T, that just meets the budget.

    Args:
        ledger_of: returns the method's ledger of a plan.
        refusal: error message, if no epsilon of a response gives a finite accounted epsilon for the budget's unit;
            "" otherwise.

    Raises:
        BenchError: the budget cannot be met; the message has the reason.
    """
    if budget.unit not in (Unit.EXAMPLE, Unit.QUERY):
        raise BenchError(f"--unit {budget.unit}: answers are accounted per example or per query; name one of the two")
    if budget.epsilon is None:
        return fields
    if math.isinf(budget.epsilon):
        return replace(fields, answer_epsilon=math.inf)
    if budget.account == "accounted" and refusal:
        raise BenchError(f"--account accounted: {refusal}")
    if budget.solve == "steps" and (budget.account, budget.unit) != ("accounted", Unit.EXAMPLE):
        raise BenchError(
            "--solve steps: the epsilon of one response does not depend on the number of stages; use --solve sigma"
        )
    try:
        plan = _solve(fields, budget, budget.epsilon, ledger_of)
        check_response_epsilon(plan.answer_epsilon, 2)
        return plan
    except Unreachable as error:
        options = f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}"
        raise BenchError(f"{options}: {error}") from None


def _solve(
    fields: ResponsePlan, budget: Budget, epsilon: float, ledger_of: Callable[[ResponsePlan], Ledger]
) -> ResponsePlan:
    """Return `fields` with the solved parameter. Raises Unreachable if none exists."""

    def cost(plan: ResponsePlan) -> float:
        return account(ledger_of(plan), budget.unit, budget.delta).epsilon

    if budget.solve == "none":
        return fields
    if budget.solve == "steps":
        stages = largest_count(lambda n: cost(replace(fields, stages=n)), epsilon, MAX_STAGES)
        return replace(fields, stages=stages)
    if budget.account == "claimed" or budget.unit == Unit.QUERY:
        return replace(fields, answer_epsilon=epsilon)
    largest = most_response_epsilon(2)
    noise = calibrate_noise(
        lambda x: cost(replace(fields, answer_epsilon=min(1 / x, largest))), epsilon, 0.1, 100.0, rtol=1e-4
    )
    return replace(fields, answer_epsilon=min(1 / noise, largest))


def response_game(plan: ResponsePlan, ledger: Ledger, delta: float, classes: int, step: Step) -> DistinguishingGame:
    """Build the audit's game: one response to one synthetic image; the adversary chooses the student's output.

    The two worlds are two teachers with different classes. Several games are tried, and the one whose worlds are
    easiest to distinguish is returned: two candidates (a confident student), all classes, or a number in between; both
    teachers' classes are candidates, or only one is. The teachers are unsure enough for a soft response to differ from
    a one-hot one.

    Args:
        step: the method's own function, which returns one private response per image.
    """
    accounted, curve = account(ledger, Unit.QUERY, delta), accounted_curve(ledger, Unit.QUERY)
    games = []
    for steepness in (30.0, 1.0, 0.0):
        logits = -steepness * torch.arange(classes, dtype=torch.float32)
        k = max(2, int((logits.softmax(0) > plan.threshold).sum()))
        for other in (1, classes - 1) if k < classes else (1,):
            play = _play(logits, other, step)
            where = "one class is no candidate" if other >= k else "both classes are candidates"
            what = f"one selective response over {k} of {classes} classes; two teachers, {where}"
            game_delta = accounted.delta if accounted.finite else 0.0
            claimed = response_claim(plan).epsilon
            games.append(DistinguishingGame(play, claimed, accounted.epsilon, game_delta, what, curve, PLAYS))
    return strongest_game(games, TRIAL_PLAYS)


def _play(logits: Tensor, other: int, step: Step) -> Play:
    """Play responses of a teacher whose class is 0, or `other`, to a student with these logits."""
    teacher_logits = torch.zeros(2, len(logits))
    teacher_logits[0, 0] = teacher_logits[1, other] = 2.0
    student, teacher = TableNetwork(logits.expand(2, -1)), TableNetwork(teacher_logits)
    return play_of_rows(lambda numbers, rng: step(numbered_images(numbers), student, teacher, rng).double())
