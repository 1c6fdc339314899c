"""From a ledger to epsilon: the only file that imports dp_accounting's accountants.

Every number returned is an upper bound that holds; where several bounds hold the smallest is returned and named.

- A ledger without an entry for the unit is refused: an accountant that saw nothing would say epsilon 0.
- `NonPrivateDpEvent`, `UnsupportedDpEvent`, zero noise and any event that is not understood make epsilon infinite.
- Gaussians alone are composed exactly in closed form; everything else as privacy loss distributions (PLD).
- A Gaussian's noise multiplier is already relative to the L2 sensitivity between the neighbours that are meant (see
  `ledger`), so Gaussian losses are always built with dp_accounting's ADD_OR_REMOVE_ONE, whose sensitivity is 1;
  its REPLACE_ONE would double it. Only Poisson-sampled Gaussians beside a randomised response use REPLACE_ONE,
  because their multiplier is relative to one record's contribution.
- Randomised responses are built here from their three privacy losses, under replacement: dp_accounting 0.6.0 ignores
  the count of a self-composed `RandomizedResponseDpEvent`, and under REPLACE_SPECIAL reports too little.
- Pure mechanisms also have their epsilons added up; where the sum is the smaller number (to 1e-4), delta is 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize

from bench.errors import BenchError
from bench.privacy._bounds import DROPPED_MASS, gaussian_epsilon, response_losses, zcdp_epsilon
from bench.privacy._parts import Parts, take_apart
from bench.privacy.budget import Budget, Claim, finite_or_null
from bench.privacy.ledger import Ledger
from bench.privacy.units import Relation, Unit

VERSION = f"1 (dp-accounting {version('dp-accounting')})"

FINEST_GRID = 1e-4
GRID_POINTS = 400_000
WIDEST_LOSS = 1e9
MOST_RESPONSES = 1_000_000
PURE_WORTH = 1 + 1e-4
"""A pure epsilon is reported unless another bound is smaller by more than this: its delta of 0 is worth more."""


class EmptyLedger(Exception):
    """A ledger holds no entry for the unit asked for, so nothing may be said about it."""


class Overspent(Exception):
    """A release spent more than its budget."""


@dataclass(frozen=True)
class Accounted:
    """What can be proved from a ledger: (epsilon, delta)-differential privacy for one unit.

    Attributes:
        epsilon: >= 0; infinity where nothing finite can be proved.
        delta: the delta asked for, or 0 where pure differential privacy gives the smaller epsilon.
        unit, relation: whose change is covered, and how it changes.
        accountant: the bound that was the smallest.
        version: of this accountant and of dp_accounting.
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    accountant: str
    version: str = VERSION

    @property
    def finite(self) -> bool:
        """Whether anything is proved at all."""
        return math.isfinite(self.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Plain data; an infinite epsilon is null with "finite": false."""
        return {
            **finite_or_null(self.epsilon),
            "delta": self.delta,
            "unit": self.unit.value,
            "relation": self.relation.value,
            "accountant": self.accountant,
            "version": self.version,
        }


def epsilon(ledger: Ledger, unit: Unit, delta: float) -> Accounted:
    """The smallest epsilon that can be proved at `delta` for `unit` from its entries in `ledger`.

    Args:
        delta: in (0, 1).

    Raises:
        EmptyLedger: no entry for `unit`.
        BenchError: `delta` outside (0, 1).

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = Ledger()
    >>> ledger.spend(GaussianDpEvent(240 / 2), count=1000)
    >>> round(epsilon(ledger, Unit.EXAMPLE, 1e-5).epsilon, 3)
    0.981
    """
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}; expected 0 < delta < 1, such as 1e-5")
    parts = _parts(ledger, unit)
    relation = Relation.REPLACE_ONE if parts.response else Relation.ADD_OR_REMOVE_ONE
    if parts.unprovable:
        return Accounted(math.inf, delta, unit, relation, "none")
    best, held_delta, name = min(_bounds(parts, delta), key=lambda bound: bound[0] * (PURE_WORTH if bound[1] else 1))
    return Accounted(float(best), held_delta, unit, relation, name if math.isfinite(best) else "none")


def check_budget(ledger: Ledger, claim: Claim | None, budget: Budget) -> None:
    """Refuse a release that spent more than its budget.

    A budget without epsilon refuses nothing, and neither does account "claimed" where nothing is claimed.

    Raises:
        Overspent: the claim (account "claimed"), or what the ledger proves for the budget's unit ("accounted"), exceeds
            the budget's epsilon; or the claim holds only at a larger delta than the budget's.
        EmptyLedger: account "accounted" and no entry for the budget's unit.
    """
    if budget.epsilon is None:
        return
    limit = budget.epsilon * (1 + 1e-9)
    allowed = f"the budget of {budget.epsilon:.6g} at delta {budget.delta:g}"
    if budget.account == "claimed":
        if claim is not None and (claim.epsilon > limit or claim.delta > budget.delta * (1 + 1e-9)):
            claimed = f"epsilon {claim.epsilon:.6g} at delta {claim.delta:g}"
            raise Overspent(f"{claim.source} claims {claimed}, over {allowed}")
        return
    spent = epsilon(ledger, budget.unit, budget.delta)
    if spent.epsilon > limit:
        cause = _parts(ledger, budget.unit).unprovable or "the noise is too small"
        reason = f"{spent.epsilon:.6g}" if spent.finite else f"infinite because of {cause}"
        raise Overspent(f"epsilon accounted for unit '{budget.unit}' is {reason}, over {allowed}")


def _parts(ledger: Ledger, unit: Unit) -> Parts:
    entries = ledger.entries(unit)
    if not entries:
        raise EmptyLedger(f"the ledger has no entry for unit '{unit}'; write down what was used, or a NoOpDpEvent")
    return take_apart(entries)


def _bounds(parts: Parts, delta: float) -> Iterator[tuple[float, float, str]]:
    """Every (epsilon, delta, name) that holds, cheapest first."""
    pure = parts.pure_sum
    if parts.pure:
        yield pure, 0.0, "pure-sum"
        if pure == 0:
            return
    mu = math.sqrt(parts.mu_squared())
    if not (pure or parts.sampled):
        yield gaussian_epsilon(mu, delta), delta, "gaussian-closed-form"
        return
    unsampled = parts.mu_squared(sampling=False)
    yield gaussian_epsilon(math.sqrt(unsampled), delta) + pure, delta, "basic-composition"
    yield zcdp_epsilon((unsampled + _squares(parts)) / 2, delta), delta, "zcdp"
    reach = _reach(parts)
    if reach < WIDEST_LOSS and sum(parts.response.values()) <= MOST_RESPONSES:
        yield _read_epsilon(_composed_losses(parts, mu, reach), delta), delta, "pld"


def _read_epsilon(losses: pld.PrivacyLossDistribution, delta: float) -> float:
    """Smallest epsilon at `delta`; dp_accounting's own inversion overflows to infinity for epsilons above 700."""

    def excess(at: float) -> float:
        return math.log(max(losses.get_delta_for_epsilon(at), 1e-300) / delta)

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return low
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 4 * WIDEST_LOSS:
            return math.inf
    return optimize.brentq(excess, low, high, xtol=1e-10)


def _squares(parts: Parts) -> float:
    """Sum of squared pure epsilons: an epsilon-DP mechanism is (epsilon^2 / 2)-zCDP."""
    laplace = [count * each * each for each, count in parts.laplace.items()]
    return math.fsum(laplace + [count * each * each for (each, _), count in parts.response.items()])


def _reach(parts: Parts) -> float:
    """About the largest privacy loss that can matter. Only the grid's width depends on it, not what is proved."""
    mu_squared = parts.mu_squared()
    reach = mu_squared / 2 + 10 * math.sqrt(mu_squared)
    for (probability, multiplier), count in parts.sampled.items():
        single = min(1 / multiplier / multiplier, 1e9)
        excess = single + 2 * math.log(probability) if single > 500 else math.log1p(probability**2 * math.expm1(single))
        reach += count * max(excess, 0.0) + 10 * math.sqrt(2 * count * max(excess, 0.0)) + math.sqrt(single)
    pure = parts.pure_sum
    return reach + min(pure, _squares(parts) / 2 + 9 * math.sqrt(_squares(parts)))


def _composed_losses(parts: Parts, mu: float, reach: float) -> pld.PrivacyLossDistribution:
    """The privacy loss distribution of everything in `parts`, in an order that depends on the parts alone."""
    groups = _response_groups(parts)
    exact = len(groups) == 1 and parts.pure and not parts.laplace
    step = next(iter(groups)) if exact else max(FINEST_GRID, reach / GRID_POINTS)
    relation = NeighboringRelation.REPLACE_ONE if groups else NeighboringRelation.ADD_OR_REMOVE_ONE
    total = pld.identity(value_discretization_interval=step)
    if mu > 0:
        total = total.compose(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step))
    for (probability, multiplier), count in sorted(parts.sampled.items()):
        sampled = pld.from_gaussian_mechanism(
            multiplier, value_discretization_interval=step, sampling_prob=probability, neighboring_relation=relation
        )
        total = total.compose(sampled.self_compose(count))
    for each, count in sorted(parts.laplace.items()):
        laplace = pld.from_laplace_mechanism(1 / each, value_discretization_interval=step)
        total = total.compose(laplace.self_compose(count))
    for each, counts in sorted(groups.items()):
        total = total.compose(_response_pld(each, counts, step))
    return total


def _response_groups(parts: Parts) -> dict[float, dict[int, int]]:
    """{epsilon: {choices: count}}, with epsilons equal to nine digits taken as the largest of them.

    A response of smaller epsilon is a post-processing of one of larger epsilon over the same choices, so this is sound.
    """
    alike: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each, choices in parts.response:
        alike[f"{each:.9g}"].append((each, choices))
    groups: dict[float, dict[int, int]] = {}
    for members in alike.values():
        counts: dict[int, int] = defaultdict(int)
        for member in members:
            counts[member[1]] += parts.response[member]
        groups[max(each for each, _ in members)] = dict(sorted(counts.items()))
    return groups


def _response_pld(each: float, counts: dict[int, int], step: float) -> pld.PrivacyLossDistribution:
    """Composed randomised responses on the grid; losses between grid points are rounded up."""
    first, probabilities = response_losses(each, counts)
    rounded: dict[int, float] = defaultdict(float)
    ratio = each / step
    for offset, probability in enumerate(probabilities):
        rounded[math.ceil((first + offset) * ratio)] += float(probability)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(rounded, DROPPED_MASS, step)
