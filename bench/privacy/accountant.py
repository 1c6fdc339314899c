"""From a ledger to epsilon. Only `bench.privacy` asks dp_accounting for an epsilon, and only here is it put together.

Every number returned is an upper bound that holds, to about 8 digits; where several hold the smallest is returned and
named. No call takes more than about 10 seconds: what would is left to bounds that are looser, and `note` says so.
scipy and dp_accounting are imported by the first call.

- A ledger without an entry for the unit is refused: an accountant that saw nothing would say epsilon 0.
- `NonPrivateDpEvent`, `UnsupportedDpEvent`, zero noise and any event that is not understood make epsilon infinite.
- Gaussians alone are composed exactly in closed form; everything else as privacy loss distributions (`_losses`), or by
  Renyi divergence (`_renyi`), zero-concentrated privacy and addition where their number, kinds or delta forbid that.
- Labels and answers (units `label` and `query`) are replaced between neighbours, records and clients added or removed;
  beside randomised responses, which speak of nothing else, they are replaced too.
- Pure mechanisms also have their epsilons added up; where the sum is the smaller number (to 1e-4), delta is 0.

What is given          taken                     beyond it
delta                  0 < delta < 1             refused
noise multiplier       0 < z <= 1.8e308          0: infinite; negative or no number: infinite
                       any mu of Gaussians       from mu = 1.9e154 on epsilon is no float: infinite
sampling probability   0 <= q <= 1               infinite. Counted as 1e-12 at least in loss distributions
response's flips       chance >= 2^-32           infinite: too rare to be drawn faithfully (`limits`)
uses, nested products  up to 10^300              infinite: no float
loss distributions     delta >= 1e-10 + 1e-14 a use, 100 kinds of noise, 10^6 responses, losses up to 2e8, of one
                       Laplace draw up to 300; else:
Renyi divergence       400 kinds of sampled Gaussians, 10^4 of all; else zCDP, with records taken as always sampled
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy.budget import Budget, Claim, epsilon_to_json
from bench.privacy.ledger import Ledger
from bench.privacy.units import Relation, Unit

if TYPE_CHECKING:
    from bench.privacy.composition import Composition

VERSION = f"2 (dp-accounting {version('dp-accounting')})"

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
        note: why epsilon is infinite, or why a looser bound than the exact composition was taken; "" otherwise.
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    accountant: str
    version: str = VERSION
    note: str = ""

    @property
    def finite(self) -> bool:
        """Whether anything is proved at all."""
        return math.isfinite(self.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Plain data; a note is there if there is one."""
        plain = {
            "epsilon": epsilon_to_json(self.epsilon),
            "delta": self.delta,
            "unit": self.unit.value,
            "relation": self.relation.value,
            "accountant": self.accountant,
            "version": self.version,
        }
        return plain | ({"note": self.note} if self.note else {})


def account(ledger: Ledger, unit: Unit, delta: float) -> Accounted:
    """The smallest epsilon that can be proved at `delta` for `unit` from its entries in `ledger`.

    Args:
        delta: in (0, 1).

    Raises:
        EmptyLedger: no entry for `unit`.
        BenchError: `delta` no number in (0, 1).

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = Ledger()
    >>> ledger.spend(GaussianDpEvent(240 / 2), count=1000)
    >>> round(account(ledger, Unit.EXAMPLE, 1e-5).epsilon, 3)
    0.981
    """
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise BenchError(f"delta is {delta}; expected 0 < delta < 1, such as 1e-5")
    from bench.privacy._losses import why_not

    parts = _composition(ledger, unit)
    relation = Relation.REPLACE_ONE if parts.replaced else Relation.ADD_OR_REMOVE_ONE
    if parts.unprovable:
        return Accounted(math.inf, delta, unit, relation, "none", note=parts.unprovable)
    objection = "" if parts.gaussian_only else why_not(parts, delta)
    bounds = _bounds(parts, delta, exact=not objection)
    best, held_delta, name = min(bounds, key=lambda bound: bound[0] * (PURE_WORTH if bound[1] else 1))
    if math.isinf(best):
        return Accounted(best, delta, unit, relation, "none", note="the noise is too small")
    note = f"{objection}: too much for the exact composition; bounded from above by {name}" if objection else ""
    return Accounted(float(best), held_delta, unit, relation, name, note=note)


def accounted_curve(ledger: Ledger, unit: Unit) -> Callable[[float], float]:
    """The privacy curve of a ledger: delta in (0, 1) to the smallest epsilon that `account` proves there."""

    @cache
    def epsilon(delta: float) -> float:
        return account(ledger, unit, delta).epsilon

    return epsilon


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
    spent = account(ledger, budget.unit, budget.delta)
    if spent.epsilon > limit:
        reason = f"{spent.epsilon:.6g}" if spent.finite else f"infinite because of {spent.note}"
        raise Overspent(f"epsilon accounted for unit '{budget.unit}' is {reason}, over {allowed}")


def _composition(ledger: Ledger, unit: Unit) -> Composition:
    from bench.privacy.composition import decompose

    entries = ledger.entries(unit)
    if not entries:
        raise EmptyLedger(f"the ledger has no entry for unit '{unit}'; write down what was used, or a NoOpDpEvent")
    return decompose(entries, unit_replaced=unit.relation is Relation.REPLACE_ONE)


def _bounds(parts: Composition, delta: float, exact: bool) -> Iterator[tuple[float, float, str]]:
    """Every (epsilon, delta, name) that holds, cheapest first; with `exact` the losses may be composed."""
    from bench.privacy._bounds import gaussian_epsilon, zcdp_epsilon
    from bench.privacy._losses import composed_epsilon
    from bench.privacy._renyi import renyi_epsilon

    pure = parts.pure_sum
    if parts.pure:
        yield pure, 0.0, "pure-sum"
        if pure == 0:
            return
    if parts.gaussian_only:
        yield gaussian_epsilon(parts.mu(), delta), delta, "gaussian-closed-form"
        return
    unsampled = parts.mu(sampling=False)
    yield gaussian_epsilon(unsampled, delta) + pure, delta, "basic-composition"
    yield zcdp_epsilon(math.hypot(unsampled, parts.pure_root), delta), delta, "zcdp"
    yield renyi_epsilon(parts, delta), delta, "renyi"
    if exact:
        yield composed_epsilon(parts, delta), delta, "pld"
