"""The privacy side of differentially private annotation (DPSD, DPDFD, FedDPSD): ledger, claim and calibration.

One teacher: a private record may change it altogether, hence all b rows of all T batches. Many teachers on disjoint
shards: a record changes one of them, hence in every answer one of n normalised gradients.

b batch, T answered batches, sigma noise over beta, k candidates. Units and theorems: `docs/privacy.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench import data
from bench.errors import BadOption, BenchError, BudgetError
from bench.privacy import (
    Budget,
    Claim,
    Ledger,
    Relation,
    Unit,
    Unreachable,
    calibrate_noise,
    largest_count,
    randomised_response_event,
)
from bench.privacy.accountant import account
from bench.privacy.claims import NO_EPSILON, dpsd_theorem1, dpsd_theorem2
from bench.privacy.events import gaussian_event, unprotected_event
from bench.privacy.information import gaussian_capacity, response_capacity
from bench.privacy.limits import check_response_epsilon, most_response_epsilon
from bench.privacy.noise import require_room

MOST_ITERATIONS = 10_000_000
FEWEST = 256
"""Answers asked for at least, however small the budget."""


def paper_k(dataset: str, classes: int) -> int:
    """k of DPSD's section IV-A for a data set, at most c."""
    return min(data.facts(dataset).candidates, classes)


def check_candidates(k: int, dataset: str, classes: int) -> int:
    """`k`. Raises BenchError unless it lies from 2 to c."""
    if not 2 <= k <= classes:
        raise BadOption(f"--method.k {k}: expected 2 to {classes}, the number of classes of {dataset}")
    return k


def candidates(logits: Tensor, k: int) -> Tensor:
    """(n, c) bool: the student's k most probable classes, of (n, c) logits."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(k, 1).indices, True)


def paper_beta(dataset: str, epsilon: float | None) -> float:
    """beta of DPSD's section IV-A for a data set and a budget."""
    if data.base_name(dataset) == "imagenet":
        return 1e-4
    return 1e-3 if epsilon is not None and epsilon <= 1 else 5e-3


@dataclass(frozen=True)
class AnnotationParameters:
    """The parameters that enter the mechanism.

    Attributes:
        k: classes kept of the gradient (data mode) or offered as candidates (label mode).
        beta: the bound on a normalised gradient, in gradient units; > 0.
        sigma: noise over beta, data mode; 0 = no noise.
        answer_epsilon: epsilon of one randomised response, label mode; infinity = no noise.
        iterations: T, answered batches.
    """

    k: int
    beta: float
    sigma: float
    answer_epsilon: float
    iterations: int

    def solved(self, mode: str) -> dict[str, float]:
        """What the budget and the data set determined, for the record."""
        found: dict[str, float] = {"k": self.k, "beta": self.beta, "iterations": self.iterations}
        if mode == "data":
            return found | {"sigma": self.sigma}
        return found | ({"answer_epsilon": self.answer_epsilon} if math.isfinite(self.answer_epsilon) else {})


@dataclass(frozen=True)
class AnnotationMechanism:
    """What is done with the teachers' answers.

    Attributes:
        mode: "data" (noisy gradients) or "label" (randomised response).
        batch: b, images answered at once.
        classes: c.
        per_row: a noise draw for each answer, or one on the sum over the batch.
        full_candidate_batches: batches at the beginning of label mode in which all c classes are candidates.
        response_as_printed: randomised response as DPSD's Eq. 5 prints it.
        teacher_trains_generator: DPSD-T.
        theorem: how the claim names the theorem of Eq. 3's mechanism.
        teachers: n, teachers on disjoint shards whose normalised gradients are summed before the noise (DPDFD, section
            4.4); 0 = one teacher.
        clients: m, teachers of the clients of a federation (FedDPSD), answering with gradients or each with its own
            randomised response; 0 = no federation. All data of a client stand behind one teacher.
    """

    mode: str
    batch: int
    classes: int
    per_row: bool = True
    full_candidate_batches: int = 0
    response_as_printed: bool = False
    teacher_trains_generator: bool = False
    theorem: str = "DPSD, Theorem 1"
    teachers: int = 0
    clients: int = 0

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that the ledger speaks of."""
        return (Unit.EXAMPLE, Unit.QUERY, Unit.CLIENT) if self.clients else (Unit.EXAMPLE, Unit.QUERY)

    def ledger(self, parameters: AnnotationParameters) -> Ledger:
        """What `parameters.iterations` answered batches take, for one private record and for one answer."""
        ledger = Ledger()
        if self.teacher_trains_generator:
            for unit in self.units:  # an answered image trains the generator too, by a gradient without noise
                ledger.spend(unprotected_event(), unit=unit, why="the teacher's gradients train the generator (DPSD-T)")
        if self.teachers or (self.clients and self.mode == "data"):
            self._spend_sums(ledger, parameters)
        elif self.mode == "label":
            self._spend_responses(ledger, parameters)
        else:
            self._spend_gradients(ledger, parameters)
        return ledger

    def _spend_gradients(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """Sensitivity 2 beta a row: one answer is a row, another teacher moves all b rows; the noise is sigma beta."""
        if parameters.sigma == 0:
            for unit in (Unit.EXAMPLE, Unit.QUERY):
                ledger.spend(unprotected_event(), unit=unit, why="gradients without noise")
            return
        rows = math.sqrt(self.batch) if self.per_row else self.batch
        why = "normalised gradients of a batch, a noise draw " + ("per row" if self.per_row else "per batch")
        event, carries = gaussian_event(parameters.sigma / (2 * rows)), self._carried_by_gradients(parameters)
        ledger.spend(event, count=parameters.iterations, unit=Unit.EXAMPLE, why=why, carries=carries)
        ledger.spend(gaussian_event(parameters.sigma / 2), unit=Unit.QUERY, why="one row's normalised gradient")

    def _carried_by_gradients(self, parameters: AnnotationParameters) -> float:
        """Nats of all T batches: a row has norm beta, the sum of a batch b beta, each coordinate noise sigma beta."""
        if self.per_row:
            return parameters.iterations * self.batch * gaussian_capacity(parameters.sigma, self.classes)
        return parameters.iterations * gaussian_capacity(parameters.sigma / self.batch, self.classes)

    def answer_ledger(self, parameters: AnnotationParameters) -> Ledger:
        """One image's answer by many teachers, for one private record."""
        ledger, once = Ledger(), replace(self, batch=1)
        once._spend_sums(ledger, replace(parameters, iterations=1))
        return ledger

    def _spend_sums(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """One teacher moves a row of gradients by at most 2 beta. A record moves one of them, in every answer; another
        synthetic image may move all of them, in one answer."""
        summed = self.teachers or self.clients
        what = f"sum of normalised gradients of {summed} teachers"
        # A sum of n rows has norm n beta
        nats = gaussian_capacity(parameters.sigma / summed, self.classes) * self.batch * parameters.iterations
        for unit in self.units:
            moved, count = (summed, 1) if unit == Unit.QUERY else (1, self.batch * parameters.iterations)
            if parameters.sigma == 0:
                ledger.spend(unprotected_event(), unit=unit, why=f"{what} without noise")
            else:
                event, carries = gaussian_event(parameters.sigma / (2 * moved)), nats if unit == Unit.EXAMPLE else None
                ledger.spend(event, count=count, unit=unit, why=what, carries=carries)

    def _spend_responses(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """Every client answers every image, if there are clients: a record left out changes the answers of one."""
        if self.response_as_printed or math.isinf(parameters.answer_epsilon):
            self._spend_unprotected_labels(ledger, parameters)
            return
        answers = max(self.clients, 1)
        for images, k in self._candidates_of_images(parameters):
            event = randomised_response_event(parameters.answer_epsilon, k)
            carries = images * answers * response_capacity(parameters.answer_epsilon, k)
            for unit in self.units:
                if unit != Unit.QUERY:
                    why = f"randomised response over {k} classes"
                    # Replacing a record changes the answers of two clients, if the new one is another client's
                    one = Relation.ADD_OR_REMOVE_ONE if self.clients and unit == Unit.EXAMPLE else None
                    ledger.spend(event, count=images, unit=unit, why=why, carries=carries, relation=one)
        ledger.spend(event, count=answers, unit=Unit.QUERY, why="the randomised responses to one image")

    def _spend_unprotected_labels(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """What no epsilon covers; an answer is one of k classes all the same, or as Eq. 5 is printed one of all c."""
        why = "randomised response as printed in Eq. 5" if self.response_as_printed else "labels without noise"
        carries = max(self.clients, 1) * math.fsum(
            images * math.log(self.classes if self.response_as_printed else k)
            for images, k in self._candidates_of_images(parameters)
        )
        for unit in self.units:
            ledger.spend(unprotected_event(), unit=unit, why=why, carries=carries if unit == Unit.EXAMPLE else None)

    def _candidates_of_images(self, parameters: AnnotationParameters) -> list[tuple[int, int]]:
        """How many images are answered with how many candidates: those of the first batches with all c classes."""
        full = min(self.full_candidate_batches, parameters.iterations)
        found = (full, self.classes), (parameters.iterations - full, parameters.k)
        return [(batches * self.batch, k) for batches, k in found if batches]

    def claim(self, parameters: AnnotationParameters, delta: float) -> Claim | None:
        """The paper's theorem at these settings; its proof takes neighbours among synthetic answers. The papers state
        none for many teachers."""
        if self.teachers:
            return None
        if self.mode == "label":
            epsilon, disputed = dpsd_theorem2(parameters.answer_epsilon), NO_EPSILON * self.response_as_printed
            return Claim(epsilon, 0.0, Unit.QUERY, "DPSD, Theorem 2", disputed=disputed)
        value = math.inf
        if parameters.sigma > 0:
            value = dpsd_theorem1(
                beta=parameters.beta,
                classes=self.classes,
                batch=self.batch,
                steps=parameters.iterations,
                sigma=parameters.sigma,
                delta=delta,
            )
        return Claim(value, delta, Unit.QUERY, self.theorem)

    def cost(self, parameters: AnnotationParameters, budget: Budget) -> float:
        """The epsilon of `parameters` that `budget` is held against."""
        claim = self.claim(parameters, budget.delta)
        if budget.account == "claimed" and claim is not None:
            return claim.epsilon
        return account(self.ledger(parameters), budget.unit, budget.delta).epsilon


def calibrate(mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget) -> AnnotationParameters:
    """`fields` with sigma (or the answers' epsilon), or T, calibrated to the budget.

    Raises:
        BenchError: the budget cannot be met, with the reason.
    """
    _refuse_other_units(mechanism, budget)
    if budget.epsilon is None:
        _refuse_too_little_noise(mechanism, fields)
        return fields
    if math.isinf(budget.epsilon):
        return replace(fields, sigma=0.0, answer_epsilon=math.inf)
    _refuse_the_impossible(mechanism, budget)
    try:
        parameters = _calibrated(mechanism, fields, budget, budget.epsilon)
        _refuse_too_little_noise(mechanism, parameters)
        if mechanism.mode == "label" and not mechanism.teachers:
            check_response_epsilon(parameters.answer_epsilon, 2)
        return parameters
    except Unreachable as error:
        raise BudgetError(
            f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}: {error}"
        ) from None


def few_enough(
    mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget, readable: float
) -> AnnotationParameters:
    """`fields` with at most as many answers as the budget allows at a noise of `readable`, but at least FEWEST; with
    all where more of them cost no more.

    What all answers can tell grows with their number over sigma^2, which the budget fixes; a student learns more of
    a few that can be read one by one than of many that cannot.

    Args:
        readable: sigma at which an answer can be read, >= 0; 0 = any: `fields` as they are.
    """
    if not readable or budget.epsilon is None or math.isinf(budget.epsilon) or budget.solve != "sigma":
        return fields
    _refuse_other_units(mechanism, budget)
    _refuse_the_impossible(mechanism, budget)

    def cost(answers: int) -> float:
        return mechanism.cost(replace(fields, sigma=readable, iterations=answers), budget)

    if cost(1) == cost(fields.iterations) < math.inf:
        return fields  # each answer is paid for by itself: none is saved by leaving others out
    try:
        affordable = largest_count(cost, budget.epsilon, fields.iterations)
    except Unreachable:
        affordable = 1
    return replace(fields, iterations=min(fields.iterations, max(affordable, FEWEST)))


def _refuse_other_units(mechanism: AnnotationMechanism, budget: Budget) -> None:
    if budget.unit not in mechanism.units:
        raise BudgetError(
            f"--unit {budget.unit}: answers are accounted per {', '.join(mechanism.units)}; name one of them"
        )


def _refuse_the_impossible(mechanism: AnnotationMechanism, budget: Budget) -> None:
    if mechanism.teachers and budget.account == "claimed":
        raise BudgetError(
            f"--account claimed --method.teachers {mechanism.teachers}: the paper states no theorem for many teachers; "
            "add --account accounted"
        )
    if budget.account == "accounted":
        if mechanism.response_as_printed and mechanism.mode == "label":
            raise BudgetError(
                "--account accounted: Eq. 5 as printed has no finite epsilon; use --method.response candidates"
            )
        if mechanism.teacher_trains_generator:
            raise BenchError(
                "--account accounted: DPSD-T trains its generator on the unprotected teacher; "
                "use --method.discriminator student"
            )
    one_answer = budget.account == "accounted" and budget.unit == Unit.QUERY
    responses = mechanism.mode == "label" and not mechanism.teachers and budget.account == "claimed"
    if budget.solve == "steps" and (one_answer or responses):
        raise BenchError("--solve steps: the epsilon of one answer does not depend on T; use --solve sigma")


def _refuse_too_little_noise(mechanism: AnnotationMechanism, parameters: AnnotationParameters) -> None:
    """Of rows in float32; sums over teachers or clients are float64, and how large they get is known only then."""
    if mechanism.mode == "data" and not mechanism.teachers and not mechanism.clients:
        require_room("the noise sigma", parameters.sigma, torch.float32)


def _calibrated(
    mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget, epsilon: float
) -> AnnotationParameters:
    def affordable(make: Callable[[float], AnnotationParameters]) -> AnnotationParameters:
        return make(calibrate_noise(lambda x: mechanism.cost(make(x), budget), epsilon, 0.1, 100.0, rtol=1e-4))

    if budget.solve == "none":
        return fields
    if budget.solve == "steps":
        count = largest_count(lambda n: mechanism.cost(replace(fields, iterations=n), budget), epsilon, MOST_ITERATIONS)
        return replace(fields, iterations=count)
    if mechanism.mode == "data" or mechanism.teachers:
        return affordable(lambda sigma: replace(fields, sigma=sigma))
    if budget.account == "claimed":
        return replace(fields, answer_epsilon=epsilon)
    if budget.unit == Unit.QUERY:
        return replace(fields, answer_epsilon=epsilon / max(mechanism.clients, 1))
    most = most_response_epsilon(2)
    return affordable(lambda x: replace(fields, answer_epsilon=min(1 / x, most)))
