"""The privacy side of differentially private annotation (DPSD, DPDFD): what it costs, and what a budget allows.

One teacher: a private record may change it altogether, hence all b rows of all T batches. Many teachers on disjoint
shards: a record changes one of them, hence in every answer one of n normalised gradients, or one of n votes.

b batch, T answered batches, sigma noise over beta, k candidates. Units and theorems: `docs/privacy.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, Unreachable, largest_count, randomised_response_event, smallest
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.claims import dpsd_theorem1, dpsd_theorem2
from bench.privacy.limits import check_response_epsilon, most_response_epsilon

MOST_ITERATIONS = 10_000_000
PAPER_K = {"cifar100": 50, "celeba-g": 2, "imagenet": 300}


def paper_k(dataset: str, classes: int) -> int:
    """k of DPSD's section IV-A for a data set, at most c."""
    return min(PAPER_K.get(dataset, 3), classes)


def paper_beta(dataset: str, epsilon: float | None) -> float:
    """beta of DPSD's section IV-A for a data set and a budget."""
    if dataset == "imagenet":
        return 1e-4
    return 1e-3 if epsilon is not None and epsilon <= 1 else 5e-3


@dataclass(frozen=True)
class Plan:
    """The parameters that enter the mechanism.

    Attributes:
        k: classes kept of the gradient (data mode) or offered as candidates (label mode, after the wide batches).
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


@dataclass(frozen=True)
class Mechanism:
    """What is done with one teacher's answers.

    Attributes:
        mode: "data" (noisy gradients) or "label" (randomised response).
        batch: b, images answered at once.
        classes: c.
        per_row: a noise draw for each answer, or one on the sum over the batch.
        wide: batches at the beginning of label mode in which all c classes are candidates.
        printed: randomised response as DPSD's Eq. 5 prints it.
        teacher_trains_generator: DPSD-T.
        theorem: how the claim names the theorem of Eq. 3's mechanism.
        teachers: n, teachers on disjoint shards whose answers are summed before the noise; 0 = one teacher.
        votes: with many teachers, whether an answer is noisy vote counts (sigma in votes) or a noisy sum of gradients.
        clients: m, teachers of the clients of a federation (FedDPSD), answering with gradients or each with its own
            randomised response; 0 = no federation. All data of a client stand behind one teacher.
        prior_share: with many teachers, the share in [0, 1) of the squared Gaussian parameter mu^2 = sum of
            1 / multiplier^2 that a release of the private images' class moments takes; 0 = there is none.
    """

    mode: str
    batch: int
    classes: int
    per_row: bool
    wide: int
    printed: bool
    teacher_trains_generator: bool
    theorem: str = "DPSD, Theorem 1"
    teachers: int = 0
    votes: bool = False
    clients: int = 0
    prior_share: float = 0.0

    def prior_multiplier(self, plan: Plan) -> float:
        """Noise multiplier of the class moments: what leaves the answers 1 - prior_share of mu^2; 0 = no noise."""
        answer = plan.sigma / (math.sqrt(2) if self.votes else 2)
        odds = self.prior_share / (1 - self.prior_share)
        return answer / math.sqrt(odds * self.batch * plan.iterations)

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that the ledger speaks of."""
        return (Unit.EXAMPLE, Unit.QUERY, Unit.CLIENT) if self.clients else (Unit.EXAMPLE, Unit.QUERY)

    def ledger(self, plan: Plan) -> Ledger:
        """What a release with `plan.iterations` answered batches takes, for one private record and for one answer."""
        ledger = Ledger()
        if self.teacher_trains_generator:
            ledger.spend(NonPrivateDpEvent(), why="the teacher's gradients train the generator (DPSD-T)")
        if self.teachers or (self.clients and self.mode == "data"):
            self._spend_sums(ledger, plan)
        elif self.mode == "label":
            self._spend_responses(ledger, plan)
        else:
            self._spend_gradients(ledger, plan)
        return ledger

    def _spend_gradients(self, ledger: Ledger, plan: Plan) -> None:
        """Sensitivity 2 beta a row: one answer is a row, another teacher moves all b rows; the noise is sigma beta."""
        if plan.sigma == 0:
            for unit in (Unit.EXAMPLE, Unit.QUERY):
                ledger.spend(NonPrivateDpEvent(), unit=unit, why="gradients without noise")
            return
        rows = math.sqrt(self.batch) if self.per_row else self.batch
        why = "normalised gradients of a batch, a noise draw " + ("per row" if self.per_row else "per batch")
        ledger.spend(GaussianDpEvent(plan.sigma / (2 * rows)), count=plan.iterations, unit=Unit.EXAMPLE, why=why)
        ledger.spend(GaussianDpEvent(plan.sigma / 2), unit=Unit.QUERY, why="one row's normalised gradient")

    def answer_ledger(self, plan: Plan) -> Ledger:
        """One image's answer by many teachers, for one private record."""
        ledger, once = Ledger(), replace(self, batch=1, prior_share=0.0)
        once._spend_sums(ledger, replace(plan, iterations=1))
        return ledger

    def _spend_sums(self, ledger: Ledger, plan: Plan) -> None:
        """One teacher moves a row of gradients by at most 2 beta, a row of vote counts by at most sqrt(2). A record
        moves one of them, in every answer; another synthetic image may move all of them, in one answer."""
        summed = self.teachers or self.clients
        what = f"{'vote counts' if self.votes else 'sum of normalised gradients'} of {summed} teachers"
        for unit in self.units:
            moved, count = (summed, 1) if unit == Unit.QUERY else (1, self.batch * plan.iterations)
            if plan.sigma == 0:
                ledger.spend(NonPrivateDpEvent(), unit=unit, why=f"{what} without noise")
            else:
                event = GaussianDpEvent(plan.sigma / (moved * (math.sqrt(2) if self.votes else 2)))
                ledger.spend(event, count=count, unit=unit, why=what)
        if self.prior_share:
            noisy = plan.sigma > 0
            event = GaussianDpEvent(self.prior_multiplier(plan)) if noisy else NonPrivateDpEvent()
            ledger.spend(event, why="class moments of the private images, from which synthetic ones are drawn")

    def _spend_responses(self, ledger: Ledger, plan: Plan) -> None:
        if self.printed or math.isinf(plan.answer_epsilon):
            why = "randomised response as printed in Eq. 5" if self.printed else "labels without noise"
            for unit in self.units:
                ledger.spend(NonPrivateDpEvent(), unit=unit, why=why)
            return
        wide = min(self.wide, plan.iterations)
        for batches, k in ((wide, self.classes), (plan.iterations - wide, plan.k)):
            if batches:
                event, why = randomised_response_event(plan.answer_epsilon, k), f"randomised response over {k} classes"
                for unit in self.units:
                    if unit != Unit.QUERY:
                        ledger.spend(event, count=batches * self.batch, unit=unit, why=why)
        answers = max(self.clients, 1)
        ledger.spend(event, count=answers, unit=Unit.QUERY, why="the randomised responses to one image")

    def claim(self, plan: Plan, delta: float) -> Claim | None:
        """The paper's theorem at these settings; its proof takes neighbours among synthetic answers. The papers state
        none for many teachers."""
        if self.teachers:
            return None
        if self.mode == "label":
            return Claim(dpsd_theorem2(plan.answer_epsilon), 0.0, Unit.QUERY, "DPSD, Theorem 2")
        value = math.inf
        if plan.sigma > 0:
            value = dpsd_theorem1(
                beta=plan.beta,
                classes=self.classes,
                batch=self.batch,
                steps=plan.iterations,
                sigma=plan.sigma,
                delta=delta,
            )
        return Claim(value, delta, Unit.QUERY, self.theorem)

    def cost(self, plan: Plan, budget: Budget) -> float:
        """The epsilon of `plan` that `budget` is held against."""
        claim = self.claim(plan, budget.delta)
        if budget.account == "claimed" and claim is not None:
            return claim.epsilon
        return accounted_epsilon(self.ledger(plan), budget.unit, budget.delta).epsilon


def solve(mechanism: Mechanism, fields: Plan, budget: Budget) -> Plan:
    """`fields` with sigma (or the answers' epsilon), or T, replaced by what the budget allows.

    Raises:
        BenchError: the budget cannot be met, with the reason.
    """
    if budget.unit not in mechanism.units:
        raise BenchError(
            f"--unit {budget.unit}: answers are accounted per {', '.join(mechanism.units)}; name one of them"
        )
    if budget.epsilon is None:
        return fields
    if math.isinf(budget.epsilon):
        return replace(fields, sigma=0.0, answer_epsilon=math.inf)
    _refuse_the_impossible(mechanism, budget)
    try:
        plan = _solved(mechanism, fields, budget, budget.epsilon)
        if mechanism.mode == "label" and not mechanism.teachers:
            check_response_epsilon(plan.answer_epsilon, 2)
        return plan
    except Unreachable as error:
        raise BenchError(
            f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}: {error}"
        ) from None


def _refuse_the_impossible(mechanism: Mechanism, budget: Budget) -> None:
    if mechanism.teachers and budget.account == "claimed":
        raise BenchError(
            f"--account claimed --teachers {mechanism.teachers}: the paper states no theorem for many teachers; "
            "add --account accounted"
        )
    if budget.account == "accounted":
        if mechanism.printed and mechanism.mode == "label":
            raise BenchError(
                "--account accounted: Eq. 5 as printed has no finite epsilon; use --method.response candidates"
            )
        if mechanism.teacher_trains_generator and budget.unit == Unit.EXAMPLE:
            raise BenchError(
                "--account accounted: DPSD-T trains its generator on the unprotected teacher; "
                "use --method.discriminator student"
            )
    one_answer = budget.account == "accounted" and budget.unit == Unit.QUERY
    responses = mechanism.mode == "label" and not mechanism.teachers and budget.account == "claimed"
    if budget.solve == "steps" and (one_answer or responses):
        raise BenchError("--solve steps: the epsilon of one answer does not depend on T; use --solve sigma")


def _solved(mechanism: Mechanism, fields: Plan, budget: Budget, epsilon: float) -> Plan:
    def affordable(make: Callable[[float], Plan]) -> Plan:
        return make(smallest(lambda x: mechanism.cost(make(x), budget), epsilon, 0.1, 100.0, rtol=1e-4))

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


def posterior_of_response(answers: Tensor, candidates: Tensor, classes: int, epsilon: float) -> Tensor:
    """Each true class's probability given its randomised response, all classes being equally likely before.

    A candidate r answers o with probability e^epsilon / (e^epsilon + k - 1) if o = r, else 1 / (e^epsilon + k - 1);
    a class that is no candidate answers o with probability 1 / k.

    Args:
        answers: (n,) int64, among the row's candidates.
        candidates: (n, k) int64.
        classes: c.
        epsilon: of one response; may be infinite.

    Returns:
        (n, c), rows sum to 1.
    """
    k = candidates.shape[1]
    odds = math.exp(-epsilon)
    stay = 1 / (1 + (k - 1) * odds)
    likelihood = torch.full((len(answers), classes), 1 / k, device=answers.device)
    likelihood.scatter_(1, candidates, stay * odds).scatter_(1, answers[:, None], stay)
    return likelihood / likelihood.sum(1, keepdim=True)
