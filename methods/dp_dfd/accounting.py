"""What DP-DFD's selective responses cost, for both variants: claim, ledger, calibration, the game of an audit.

One private record may change the teacher and hence all N answers, which compose. Each is charged as randomised response
over two classes, whatever its k was: k depends on the student and differs from row to row, and every epsilon-DP
mechanism is a post-processing of binary randomised response (Kairouz, Oh, Viswanath, ICML 2015), so this charge
dominates. The candidates follow from earlier answers alone.
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
from bench.privacy.events import unprotected_event
from bench.privacy.information import selective_capacity
from bench.privacy.limits import check_response_epsilon, most_response_epsilon
from bench.privacy.noise import Source
from bench.privacy.plays import play_of_rows

MOST_STAGES = 1_000_000
PLAYS, TRIAL_PLAYS = 100_000, 10_000
Step = Callable[[Tensor, nn.Module, nn.Module, Source], Tensor]
"""(m, c, h, w) images, the student, the teacher, noise to (m, d): all that is learnt of the teacher."""


@dataclass(frozen=True)
class ResponsePlan:
    """The parameters that enter the mechanism.

    Attributes:
        threshold: t, on the student's probabilities.
        stages: T.
        share: images answered per stage.
        answer_epsilon: of one selective randomised response; infinity = no noise.
        classes: c; 0 = not known, and then neither is what the answers carry.
    """

    threshold: float
    stages: int
    share: int
    answer_epsilon: float
    classes: int = 0

    @property
    def answers(self) -> int:
        """N, how often the teacher is asked about an image."""
        return self.stages * self.share

    @property
    def carries(self) -> float | None:
        """Nats of all one-hot answers at most; each has 2 to c candidates, as the student's output has it."""
        return self.answers * selective_capacity(self.answer_epsilon, self.classes) if self.classes else None

    @property
    def solved(self) -> dict[str, float]:
        """What a release reports of it."""
        known: dict[str, float] = {"threshold": self.threshold, "stages": self.stages, "answers": self.answers}
        return known | ({"answer_epsilon": self.answer_epsilon} if math.isfinite(self.answer_epsilon) else {})


def settings(
    threshold: float, stages: int, amount: int, answer_epsilon: float, dataset: str, classes: int
) -> ResponsePlan:
    """A method's fields, with the paper's threshold and amount where they are 0.

    Args:
        stages: T; 0 = every image is a stage of its own.

    Raises:
        BenchError: fewer images than stages.
    """
    amount = amount or data.facts(dataset).dp_dfd_images
    stages = stages or amount
    if amount < stages:
        raise BenchError(f"--method.amount {amount}: expected at least one image for each of the {stages} stages")
    return ResponsePlan(threshold or 1 / (2 * classes), stages, amount // stages, answer_epsilon, classes)


def response_ledger(plan: ResponsePlan, generator_saw_teacher: bool, soft: bool = False) -> Ledger:
    """What a release takes, for one private record and for one answer.

    Args:
        generator_saw_teacher: line 1 trained the generator on the unprotected teacher.
        soft: the teacher's own vectors are among the answers.
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
    """epsilon-LabelDP of one answer, as the paper says of soft answers too."""
    disputed = NO_EPSILON if soft else ""
    return Claim(dpsd_theorem2(plan.answer_epsilon), 0.0, Unit.QUERY, "DP-DFD, section II-C", disputed=disputed)


def within(
    fields: ResponsePlan, budget: Budget, ledger_of: Callable[[ResponsePlan], Ledger], refusal: str
) -> ResponsePlan:
    """Calibration: `fields` with one response's epsilon, or T, that just meets the budget.

    Args:
        ledger_of: the method's ledger of a plan.
        refusal: why no response's epsilon proves anything for the budget's unit, and what to do; "" where one does.

    Raises:
        BenchError: the budget cannot be met, with the reason.
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
        plan = _solved(fields, budget, budget.epsilon, ledger_of)
        check_response_epsilon(plan.answer_epsilon, 2)
        return plan
    except Unreachable as error:
        asked = f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}"
        raise BenchError(f"{asked}: {error}") from None


def _solved(
    fields: ResponsePlan, budget: Budget, epsilon: float, ledger_of: Callable[[ResponsePlan], Ledger]
) -> ResponsePlan:
    def cost(plan: ResponsePlan) -> float:
        return account(ledger_of(plan), budget.unit, budget.delta).epsilon

    if budget.solve == "none":
        return fields
    if budget.solve == "steps":
        stages = largest_count(lambda n: cost(replace(fields, stages=n)), epsilon, MOST_STAGES)
        return replace(fields, stages=stages)
    if budget.account == "claimed" or budget.unit == Unit.QUERY:
        return replace(fields, answer_epsilon=epsilon)
    most = most_response_epsilon(2)
    noise = calibrate_noise(
        lambda x: cost(replace(fields, answer_epsilon=min(1 / x, most))), epsilon, 0.1, 100.0, rtol=1e-4
    )
    return replace(fields, answer_epsilon=min(1 / noise, most))


def response_game(plan: ResponsePlan, ledger: Ledger, delta: float, classes: int, step: Step) -> DistinguishingGame:
    """One raw answer to one synthetic image, the student's output being the adversary's choice: for an audit.

    Candidates are two (a sure student), all classes, or those of a student in between; the teachers' classes are both
    candidates, or one is not. The teachers are unsure enough for a soft answer to differ from a one-hot one.

    Args:
        step: the method's own answers, by row.
    """
    proved, curve = account(ledger, Unit.QUERY, delta), accounted_curve(ledger, Unit.QUERY)
    games = []
    for steepness in (30.0, 1.0, 0.0):
        logits = -steepness * torch.arange(classes, dtype=torch.float32)
        k = max(2, int((logits.softmax(0) > plan.threshold).sum()))
        for other in (1, classes - 1) if k < classes else (1,):
            play = _play(logits, other, step)
            where = "one class is no candidate" if other >= k else "both classes are candidates"
            what = f"one selective response over {k} of {classes} classes; two teachers, {where}"
            within_delta = proved.delta if proved.finite else 0.0
            claimed = response_claim(plan).epsilon
            games.append(DistinguishingGame(play, claimed, proved.epsilon, within_delta, what, curve, PLAYS))
    return strongest_game(games, TRIAL_PLAYS)


def _play(logits: Tensor, other: int, step: Step) -> Play:
    """Answers where the student has these logits and the teacher's most probable class is 0, or `other`."""
    theirs = torch.zeros(2, len(logits))
    theirs[0, 0] = theirs[1, other] = 2.0
    student, teacher = TableNetwork(logits.expand(2, -1)), TableNetwork(theirs)
    return play_of_rows(lambda numbers, rng: step(numbered_images(numbers), student, teacher, rng).double())
