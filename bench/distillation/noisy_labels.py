"""Privacy of differentially private annotation (DPSD, DPDFD, FedDPSD): ledger, claim and calibration.

Annotation labels batches of synthetic images by a teacher's noisy gradients ("data mode") or randomised classes ("label
mode"). With one teacher, a private record may change it completely, hence all b rows of all T batches. With many
teachers on disjoint shards, a record changes one of them, hence one of the n normalised gradients in every response.

b batch size, T batches, sigma noise (standard deviation) over beta, k candidates. Units and theorems:
`docs/privacy.md`.
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
from bench.privacy.events import check_response_epsilon, gaussian_event, most_response_epsilon, unprotected_event
from bench.privacy.information import gaussian_capacity, response_capacity
from bench.privacy.noise import require_room

MOST_ITERATIONS = 10_000_000
"""Largest T that a budget may determine."""
FEWEST = 256
"""Smallest number of queries that `limit_queries` keeps, for any budget."""


def paper_k(dataset: str, classes: int) -> int:
    """Return k of DPSD's section IV-A for a data set, at most c."""
    return min(data.facts(dataset).candidates, classes)


def check_candidates(k: int, dataset: str, classes: int) -> int:
    """Return `k`. Raises BenchError unless it is in [2, c]."""
    if not 2 <= k <= classes:
        raise BadOption(f"--method.k {k}: expected 2 to {classes}, the number of classes of {dataset}")
    return k


def candidates(logits: Tensor, k: int) -> Tensor:
    """Return an (n, c) bool mask of the student's k most probable classes, from (n, c) logits."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.topk(k, 1).indices, True)


def paper_beta(dataset: str, epsilon: float | None) -> float:
    """Return beta of DPSD's section IV-A for a data set and a budget."""
    if data.base_name(dataset) == "imagenet":
        return 1e-4
    return 1e-3 if epsilon is not None and epsilon <= 1 else 5e-3


@dataclass(frozen=True)
class AnnotationParameters:
    """Parameters that determine the annotation's privacy cost.

    Attributes:
        k: number of gradient entries kept (data mode) or of candidate classes (label mode).
        beta: the bound on a normalised gradient, in gradient units; > 0.
        sigma: standard deviation of the noise over beta, data mode; 0 = no noise.
        answer_epsilon: epsilon of one randomised response, label mode; infinity = no noise.
        iterations: T, number of annotated batches.
    """

    k: int
    beta: float
    sigma: float
    answer_epsilon: float
    iterations: int

    def solved(self, mode: str) -> dict[str, float]:
        """Return, for the record, the parameters that the budget and the data set determined in this mode."""
        found: dict[str, float] = {"k": self.k, "beta": self.beta, "iterations": self.iterations}
        if mode == "data":
            return found | {"sigma": self.sigma}
        return found | ({"answer_epsilon": self.answer_epsilon} if math.isfinite(self.answer_epsilon) else {})


@dataclass(frozen=True)
class AnnotationMechanism:
    """The mechanism applied to the teachers' responses.

    Attributes:
        mode: "data" (noisy gradients) or "label" (randomised response).
        batch: b, number of images per batch.
        classes: c.
        per_row: True = a noise draw per response, False = one draw on the sum over the batch.
        full_candidate_batches: number of initial batches of label mode in which all c classes are candidates.
        response_as_printed: randomised response exactly as in DPSD's published Eq. 5.
        teacher_trains_generator: whether the generator's loss uses the unprotected teacher (DPSD-T).
        theorem: name of the paper's theorem about noisy gradients, for the claim.
        teachers: n, teachers on disjoint shards whose normalised gradients are summed before the noise (DPDFD, section
            4.4); 0 = one teacher.
        clients: m, teachers of the clients of a federation (FedDPSD), which respond with gradients or each with its own
            randomised response; 0 = no federation. All data of a client train one teacher.
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
        """Return the units that the ledger covers."""
        return (Unit.EXAMPLE, Unit.QUERY, Unit.CLIENT) if self.clients else (Unit.EXAMPLE, Unit.QUERY)

    def ledger(self, parameters: AnnotationParameters) -> Ledger:
        """Return the ledger of `parameters.iterations` annotated batches, for one private record and for one query."""
        ledger = Ledger()
        if self.teacher_trains_generator:
            for unit in self.units:  # an annotated image trains the generator too, by a gradient without noise
                ledger.spend(unprotected_event(), unit=unit, why="the teacher's gradients train the generator (DPSD-T)")
        if self.teachers or (self.clients and self.mode == "data"):
            self._spend_sums(ledger, parameters)
        elif self.mode == "label":
            self._spend_responses(ledger, parameters)
        else:
            self._spend_gradients(ledger, parameters)
        return ledger

    def _spend_gradients(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """Add one teacher's gradients: sensitivity 2 beta per row and noise sigma beta.

        A query is one row; another teacher changes all b rows.
        """
        if parameters.sigma == 0:
            for unit in (Unit.EXAMPLE, Unit.QUERY):
                ledger.spend(unprotected_event(), unit=unit, why="gradients without noise")
            return
        rows = math.sqrt(self.batch) if self.per_row else self.batch
        why = "normalised gradients of a batch, a noise draw " + ("per row" if self.per_row else "per batch")
        # Information in nats: a row has norm beta, a batch's sum b beta, the noise on each coordinate is sigma beta
        channels, sigma = (self.batch, parameters.sigma) if self.per_row else (1, parameters.sigma / self.batch)
        carries = parameters.iterations * channels * gaussian_capacity(sigma, self.classes)
        event = gaussian_event(parameters.sigma / (2 * rows))
        ledger.spend(event, count=parameters.iterations, unit=Unit.EXAMPLE, why=why, carries=carries)
        ledger.spend(gaussian_event(parameters.sigma / 2), unit=Unit.QUERY, why="one row's normalised gradient")

    def answer_ledger(self, parameters: AnnotationParameters) -> Ledger:
        """Return the ledger of one query to many teachers, for one private record."""
        ledger, once = Ledger(), replace(self, batch=1)
        once._spend_sums(ledger, replace(parameters, iterations=1))
        return ledger

    def _spend_sums(self, ledger: Ledger, parameters: AnnotationParameters) -> None:
        """Add sums of several teachers' gradients. One teacher changes a row by at most 2 beta.

        A record changes one teacher, in every query; another synthetic image may change all teachers, in one query.
        """
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
        """Add randomised responses. Each client responds to every image; a removed record changes those of one client.

        Responses without a finite epsilon still carry at most log k nats each, or log c for Eq. 5 as published.
        """
        responses = max(self.clients, 1)
        if self.response_as_printed or math.isinf(parameters.answer_epsilon):
            why = "randomised response as printed in Eq. 5" if self.response_as_printed else "labels without noise"
            carries = responses * math.fsum(
                images * math.log(self.classes if self.response_as_printed else k)
                for images, k in self._candidates_of_images(parameters)
            )
            for unit in self.units:
                nats = carries if unit == Unit.EXAMPLE else None
                ledger.spend(unprotected_event(), unit=unit, why=why, carries=nats)
            return
        for images, k in self._candidates_of_images(parameters):
            event = randomised_response_event(parameters.answer_epsilon, k)
            carries = images * responses * response_capacity(parameters.answer_epsilon, k)
            for unit in self.units:
                if unit != Unit.QUERY:
                    why = f"randomised response over {k} classes"
                    # Replacing a record changes the responses of two clients, if the new one belongs to another client
                    one = Relation.ADD_OR_REMOVE_ONE if self.clients and unit == Unit.EXAMPLE else None
                    ledger.spend(event, count=images, unit=unit, why=why, carries=carries, relation=one)
        ledger.spend(event, count=responses, unit=Unit.QUERY, why="the randomised responses to one image")

    def _candidates_of_images(self, parameters: AnnotationParameters) -> list[tuple[int, int]]:
        """Return (number of images, number of candidates) pairs; the first batches have all c classes as candidates."""
        full = min(self.full_candidate_batches, parameters.iterations)
        found = (full, self.classes), (parameters.iterations - full, parameters.k)
        return [(batches * self.batch, k) for batches, k in found if batches]

    def claim(self, parameters: AnnotationParameters, delta: float) -> Claim | None:
        """Return the paper's theorem at these settings, or None: the papers state none for many teachers.

        Its unit is `query`, because its proof is for neighbours that differ in the response to one synthetic image.
        """
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
        """Return the epsilon of `parameters` that is compared with `budget`: claimed, or accounted for its unit."""
        claim = self.claim(parameters, budget.delta)
        if budget.account == "claimed" and claim is not None:
            return claim.epsilon
        return account(self.ledger(parameters), budget.unit, budget.delta).epsilon


def calibrate(mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget) -> AnnotationParameters:
    """Return `fields` calibrated to the budget: sigma (in label mode the responses' epsilon), or T if it solves steps.

    Raises:
        BenchError: the budget cannot be met; the message has the reason.
    """
    _check_unit(mechanism, budget)
    if budget.epsilon is None:
        _check_least_noise(mechanism, fields)
        return fields
    if math.isinf(budget.epsilon):
        return replace(fields, sigma=0.0, answer_epsilon=math.inf)
    _check_is_possible(mechanism, budget)
    try:
        parameters = _calibrated(mechanism, fields, budget, budget.epsilon)
        _check_least_noise(mechanism, parameters)
        if mechanism.mode == "label" and not mechanism.teachers:
            check_response_epsilon(parameters.answer_epsilon, 2)
        return parameters
    except Unreachable as error:
        raise BudgetError(
            f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}: {error}"
        ) from None


def limit_queries(
    mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget, sigma: float
) -> AnnotationParameters:
    """Reduce the number of queries to what the budget allows at noise `sigma`, but to no fewer than FEWEST.

    All queries are kept if the cost does not grow with their number. The information of all responses is proportional
    to their number over sigma^2, which the budget fixes; a student learns more from few responses with little noise
    than from many with much.

    Args:
        sigma: largest noise over beta at which a response is useful, >= 0; 0 = any, which returns `fields` unchanged.
    """
    if not sigma or budget.epsilon is None or math.isinf(budget.epsilon) or budget.solve != "sigma":
        return fields
    _check_unit(mechanism, budget)
    _check_is_possible(mechanism, budget)

    def cost(queries: int) -> float:
        return mechanism.cost(replace(fields, sigma=sigma, iterations=queries), budget)

    if cost(1) == cost(fields.iterations) < math.inf:
        return fields  # each response is paid for separately: fewer queries save nothing
    try:
        affordable = largest_count(cost, budget.epsilon, fields.iterations)
    except Unreachable:
        affordable = 1
    return replace(fields, iterations=min(fields.iterations, max(affordable, FEWEST)))


def _check_unit(mechanism: AnnotationMechanism, budget: Budget) -> None:
    """Raise BenchError for a unit that the mechanism's ledger does not cover."""
    if budget.unit not in mechanism.units:
        raise BudgetError(
            f"--unit {budget.unit}: answers are accounted per {', '.join(mechanism.units)}; name one of them"
        )


def _check_is_possible(mechanism: AnnotationMechanism, budget: Budget) -> None:
    """Raise BenchError for a budget that no parameters of this mechanism meet."""
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
    per_query = budget.account == "accounted" and budget.unit == Unit.QUERY
    responses = mechanism.mode == "label" and not mechanism.teachers and budget.account == "claimed"
    if budget.solve == "steps" and (per_query or responses):
        raise BenchError("--solve steps: the epsilon of one response does not depend on T; use --solve sigma")


def _check_least_noise(mechanism: AnnotationMechanism, parameters: AnnotationParameters) -> None:
    """Raise BenchError if float32 rows cannot hold noise of this size.

    Sums over teachers or clients are in float64, and their size is not known in advance.
    """
    if mechanism.mode == "data" and not mechanism.teachers and not mechanism.clients:
        require_room("the noise sigma", parameters.sigma, torch.float32)


def _calibrated(
    mechanism: AnnotationMechanism, fields: AnnotationParameters, budget: Budget, epsilon: float
) -> AnnotationParameters:
    """Return `fields` with the solved parameter, at which the mechanism costs at most `epsilon`.

    Raises:
        Unreachable: no value of the parameter meets the budget.
    """

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
