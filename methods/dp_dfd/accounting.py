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
from torch import Tensor

from bench import data
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
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame, strongest_game
from bench.privacy.claims import NO_EPSILON, dpsd_theorem2
from bench.privacy.events import unprotected_event
from bench.privacy.information import selective_capacity
from bench.privacy.limits import check_response_epsilon, most_response_epsilon
from bench.privacy.noise import Source

MOST_STAGES = 1_000_000
TRIAL_PLAYS = 40_000
Respond = Callable[[Tensor, Tensor, float, Source], Tensor]
"""(candidates, the teacher's logits, epsilon, noise) -> answers: lines 8-11 of Algorithm 1."""
Candidates = Callable[[Tensor, float], Tensor]
"""(the student's probabilities, threshold) -> candidates: lines 5-7."""


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


def response_game(
    plan: ResponsePlan, ledger: Ledger, delta: float, classes: int, candidates: Candidates, respond: Respond
) -> DistinguishingGame:
    """One raw answer to one synthetic image, the student's output being the adversary's choice: for an audit.

    Candidates are two (a sure student), all classes, or those of a student in between; the teachers' classes are both
    candidates, or one is not. The teachers are unsure enough for a soft answer to differ from a one-hot one.
    """
    proved = account(ledger, Unit.QUERY, delta)
    games = []
    for steepness in (30.0, 1.0, 0.0):
        y_s = (-steepness * torch.arange(classes, dtype=torch.float32)).softmax(0)
        allowed = candidates(y_s[None], plan.threshold)
        k = int(allowed.sum())
        for other in (1, classes - 1) if k < classes else (1,):
            play = _play(allowed, 0, other, plan.answer_epsilon, respond)
            where = "one class is no candidate" if other >= k else "both classes are candidates"
            what = f"one selective response over {k} of {classes} classes; two teachers, {where}"
            within_delta = proved.delta if proved.finite else 0.0
            games.append(DistinguishingGame(play, response_claim(plan).epsilon, proved.epsilon, within_delta, what))
    return strongest_game(games, TRIAL_PLAYS)


def _play(
    allowed: Tensor, one: int, other: int, epsilon: float, respond: Respond
) -> Callable[[bool, int, torch.Generator], Tensor]:
    """Answers where the teacher's most probable class is `one`, or `other`."""
    logits = torch.zeros(2, allowed.shape[1])
    logits[0, one] = logits[1, other] = 2.0

    def play(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
        y_t = logits[int(hypothesis)].expand(n, -1)
        return respond(allowed.expand(n, -1), y_t, epsilon, generator)

    return play
