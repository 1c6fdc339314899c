"""Noisy aggregation of teacher votes (PATE's noisy arg-max with Laplace or Gaussian noise) and its ledger entries.

One private record is in one teacher's part, so it can change one vote per query: two counts by 1 each, 2 in L1 and
sqrt(2) in L2. Integer noise is added to every count, so the noisy counts themselves may be released; the label, or any
other function of them, is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets import Ensemble
from bench.privacy import Budget, Ledger, Unit, Unreachable, calibrate_noise, largest_count
from bench.privacy.accountant import account
from bench.privacy.claims import dgd_composition
from bench.privacy.counts import Law, noisy_counts, require_count_scale
from bench.privacy.events import gaussian_event, laplace_event
from bench.privacy.information import gaussian_capacity, laplace_capacity
from bench.privacy.noise import Noise, Source

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MOST_QUERIES = 10_000_000
"""Largest number of queries that a budget may determine."""
CHUNK = 256
"""Number of images per forward pass of the teachers."""
LARGEST = "the noisy largest count, against the threshold"
"""Description of a threshold query in the ledger."""

AGREEMENTS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
"""Possible shares of agreeing teachers, equally likely a priori; public constants of `posterior`."""


@dataclass(frozen=True)
class Aggregation:
    """Noise of the vote aggregation.

    Attributes:
        law: "laplace" (PATE 2017; DGD Eq. 3) or "gaussian" (GNMax, PATE 2018; DGD+).
        scale: the Laplace distribution's scale b = 2 / epsilon_0, or the Gaussian's standard deviation sigma, in votes;
            0 = no noise.
        threshold: in votes; 0 = every query gets a label. Above 0 (confident GNMax), a query gets a label only if the
            largest count plus N(0, threshold_scale^2) is at least this.
        threshold_scale: standard deviation of that noise, in votes; 0 = no noise.
    """

    law: Law
    scale: float
    threshold: float = 0.0
    threshold_scale: float = 0.0

    def counts(self, votes: Tensor, noise: Source) -> Tensor:
        """Return (n, classes) vote counts plus independent integer noise on every count; float64."""
        return noisy_counts(votes, self.law, self.scale, noise)

    def confident(self, votes: Tensor, noise: Source) -> Tensor:
        """Return (n,) booleans, True for queries that pass the threshold.

        Without a threshold all do, and no noise is drawn.
        """
        if self.threshold <= 0:
            return torch.ones(len(votes), dtype=torch.bool, device=votes.device)
        return noisy_counts(votes.amax(1), "gaussian", self.threshold_scale, noise) >= self.threshold

    def spend(self, ledger: Ledger, queries: int, candidates: int, teachers: int, per_image: int = 1) -> None:
        """Add the ledger entries of `queries` labels, chosen from `candidates` images by the threshold.

        Unit `example`: one vote of every query changes. Unit `query`: the responses for one image, to `per_image`
        queries, are replaced by those for another, which may change all votes.

        Args:
            queries: largest number of labels; like all numbers here, fixed before the votes are collected.
            candidates: largest number of images that are compared with the threshold.
            teachers: number of votes per query.
            per_image: number of queries about one image.
        """
        for unit, votes, labels, compared in (
            (Unit.EXAMPLE, 1, queries, candidates),
            (Unit.QUERY, teachers, per_image, per_image),
        ):
            why, whole = f"noisy votes of {teachers} teachers, {votes} of which may move", unit == Unit.EXAMPLE
            carries = labels * self.capacity(teachers) if whole else None
            ledger.spend(self._event(votes), count=labels, unit=unit, why=why, carries=carries)
            if self.threshold > 0:
                event, why = gaussian_event(self.threshold_scale / votes), LARGEST
                carries = compared * self.threshold_capacity(teachers) if whole else None
                ledger.spend(event, count=compared, unit=unit, why=why, carries=carries)

    def capacity(self, teachers: int) -> float:
        """Return an upper bound, in nats, on the information in one image's noisy counts.

        The counts of n votes have L1 norm n, and L2 norm at most n.
        """
        channel = gaussian_capacity if self.law == "gaussian" else laplace_capacity
        return channel(self.scale / teachers)

    def threshold_capacity(self, teachers: int) -> float:
        """Return an upper bound, in nats, on the information in one threshold result: one bit on a count in [0, n]."""
        return min(math.log(2), gaussian_capacity(2 * self.threshold_scale / teachers, 1))

    def _event(self, votes: int) -> DpEvent:
        if self.law == "gaussian":
            return gaussian_event(self.scale / (math.sqrt(2) * votes))
        return laplace_event(self.scale / (2 * votes))


def posterior(counts: Tensor, aggregation: Aggregation, teachers: int) -> Tensor:
    """Return each class's posterior probability of being the teachers' plurality, given the noisy counts.

    Classes are equally likely a priori. If k is the plurality, a share a of the teachers votes for k and the others are
    spread evenly over the other classes; a is one of `AGREEMENTS`. The likelihood of the counts is that of the noise,
    or of noise of half a vote if the noise is smaller.

    Args:
        counts: (n, classes), from `Aggregation.counts`.
        teachers: number of votes, >= 1.

    Returns:
        (n, classes) float32, rows sum to 1.
    """
    return _log_likelihoods(counts, aggregation, teachers).softmax(1).float()


def log_posterior(counts: Tensor, aggregation: Aggregation, teachers: int) -> Tensor:
    """Return the logarithm of `posterior`, (n, classes) float32."""
    return _log_likelihoods(counts, aggregation, teachers).log_softmax(1).float()


def _log_likelihoods(counts: Tensor, aggregation: Aggregation, teachers: int) -> Tensor:
    """Return (n, classes) log-likelihoods of the counts if the class is the plurality, up to a constant per row."""
    classes, width = counts.shape[1], max(aggregation.scale, 0.5)

    def log_density(x: Tensor) -> Tensor:
        return -x.abs() / width if aggregation.law == "laplace" else -x.square() / (2 * width**2)

    found = []
    for share in AGREEMENTS:
        other_votes = (1 - share) * teachers / (classes - 1)
        as_plurality, as_other = log_density(counts - share * teachers), log_density(counts - other_votes)
        found.append(as_other.sum(1, keepdim=True) - as_other + as_plurality)
    return torch.stack(found).logsumexp(0)


@dataclass(frozen=True)
class VotePlan:
    """The queries to an ensemble and their noise.

    Attributes:
        aggregation: noise of the votes.
        queries: largest number of labels, >= 1.
        candidates: largest number of images compared with the threshold, >= queries; without a threshold, equal to
            queries.
        teachers: number of votes per query, >= 1.
        per_image: number of queries about one synthetic image, >= 1.
    """

    aggregation: Aggregation
    queries: int
    candidates: int
    teachers: int
    per_image: int = 1

    def ledger(self) -> Ledger:
        """Return the ledger of the queries, for one private record and for one query."""
        ledger = Ledger()
        self.aggregation.spend(ledger, self.queries, self.candidates, self.teachers, self.per_image)
        return ledger

    def with_scale(self, scale: float) -> VotePlan:
        """Return the plan with another noise scale; the threshold's noise keeps its ratio to that of the counts."""
        noise = self.aggregation
        ratio = noise.threshold_scale / noise.scale if noise.scale > 0 else 0.0
        return replace(self, aggregation=replace(noise, scale=scale, threshold_scale=scale * ratio))

    def with_queries(self, queries: int) -> VotePlan:
        """Return the plan with another number of labels; the number of candidates per label stays."""
        return replace(self, queries=queries, candidates=math.ceil(queries * self.candidates / self.queries))


def calibrate(fields: VotePlan, cost: Callable[[VotePlan], float], budget: Budget) -> VotePlan:
    """Return `fields` with the noise, or the number of queries, calibrated to the budget.

    Args:
        cost: the epsilon of a plan that is compared with `budget`, at its delta and for its unit.

    Raises:
        BenchError: the budget cannot be met, or only by noise that cannot be drawn; the message has the reason.
    """
    found = _calibrated(fields, cost, budget)
    for name, scale in (("votes", found.aggregation.scale), ("threshold", found.aggregation.threshold_scale)):
        require_count_scale(f"the scale of the noise on the {name}, in votes,", scale)
    return found


def _calibrated(fields: VotePlan, cost: Callable[[VotePlan], float], budget: Budget) -> VotePlan:
    if budget.unit not in (Unit.EXAMPLE, Unit.QUERY):
        raise BenchError(f"--unit {budget.unit}: votes are accounted per example or per query; name one of the two")
    if budget.epsilon is None:
        return fields
    if math.isinf(budget.epsilon):
        return fields.with_scale(0.0)
    if budget.solve == "none":
        return fields
    if budget.solve == "steps" and (budget.account, budget.unit) == ("accounted", Unit.QUERY):
        raise BenchError(
            "--solve steps: the epsilon of one response does not depend on their number; use --solve sigma"
        )
    try:
        if budget.solve == "steps":
            return fields.with_queries(
                largest_count(lambda n: cost(fields.with_queries(n)), budget.epsilon, MOST_QUERIES)
            )
        return fields.with_scale(
            calibrate_noise(lambda x: cost(fields.with_scale(x)), budget.epsilon, 0.1, 100.0, rtol=1e-4)
        )
    except Unreachable as error:
        raise BenchError(
            f"--epsilon {budget.epsilon:g} --account {budget.account} --solve {budget.solve}: {error}"
        ) from None


def votes_epsilon(plan: VotePlan, delta: float) -> float:
    """Return DGD's epsilon of all labels of a plan without a threshold, for one private record.

    Laplace votes: its section III-E, n epsilon_0^2 + epsilon_0 sqrt(-2 n log delta), with 2 / epsilon_0 the noise's
    scale. Gaussian votes (DGD+), for which the paper has no formula: this project's accountant.
    """
    noise = plan.aggregation
    if noise.scale == 0:
        return math.inf
    if noise.law == "laplace":
        return dgd_composition(plan.queries, 2 / noise.scale, delta)
    return account(plan.ledger(), Unit.EXAMPLE, delta).epsilon


def noisy_votes(plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> tuple[Tensor, Tensor]:
    """Collect and aggregate the votes on the images; nothing else of the teachers' responses may be used.

    Args:
        images: (n, c, h, w), at most `plan.candidates` of them.

    Returns:
        As for `release_counts`.
    """
    return release_counts(plan, count_votes(images, members), noise)


def count_votes(images: Tensor, members: Ensemble) -> Tensor:
    """Return the ensemble's (n, classes) vote counts without noise; private."""
    return torch.cat([members.votes(part) for part in images.split(CHUNK)])


def release_counts(plan: VotePlan, votes: Tensor, noise: Source) -> tuple[Tensor, Tensor]:
    """Apply the threshold to (candidates, classes) votes; release noisy counts of the first `plan.queries` that pass.

    Returns:
        (m,) int64 indices of released rows, m <= plan.queries, and their (m, classes) noisy counts, float64.
    """
    if len(votes) > plan.candidates:
        raise ValueError(f"{len(votes)} images; the ledger has {plan.candidates} candidates")
    passed = plan.aggregation.confident(votes, noise).nonzero()[:, 0][: plan.queries]
    return passed, plan.aggregation.counts(votes[passed], noise)


class NoisyEnsemble(nn.Module):
    """An ensemble with new noise of a release's scale on its vote counts, to measure its accuracy (DGD, Fig. 8).

    Every image gets a label, without a threshold. The ensemble is measured and never released: the ledger omits it.
    """

    def __init__(self, members: Ensemble, aggregation: Aggregation, noise: Noise) -> None:
        super().__init__()
        self.members, self.aggregation, self.noise = members, aggregation, noise

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (n, classes) noisy vote counts, float32."""
        return self.aggregation.counts(self.members.votes(images), self.noise).float()
