"""The accountant: computes epsilon from a ledger. Every accounted epsilon of the bench is computed here.

Every returned number is a valid upper bound, to about 8 digits; if several bounds hold, the smallest is returned with
its name. No call takes more than about 10 seconds: slower compositions are replaced by looser bounds, and `note` says
so. scipy and dp_accounting are imported by the first call.

- A ledger without an entry for the unit is refused, as its epsilon would be 0.
- `NonPrivateDpEvent`, `UnsupportedDpEvent`, zero noise and any unknown event make epsilon infinite.
- Gaussians without other mechanisms are composed exactly in closed form; everything else by privacy loss distributions
  (`_pld`), or by Renyi differential privacy (`_rdp`), zero-concentrated privacy and basic composition if their number,
  kinds or delta forbid that.
- Neighbours differ in one replaced label or query (units `label` and `query`), or in one added or removed record or
  client. In a composition with randomised responses, which are defined only for replacement, records and clients are
  replaced, too.
- The epsilons of pure mechanisms (delta 0) are also added; if their sum is the smallest bound (to 1e-4), delta is 0.

input                  accepted range            beyond it
delta                  0 < delta < 1             refused
noise multiplier       0 < z <= 1.8e308          infinite, as for a parameter that is not a number
                       any mu of Gaussians       from mu = 1.9e154 on epsilon is not a float: infinite
sampling probability   0 <= q <= 1               infinite. Counted as 1e-12 at least in loss distributions
flip probability       >= 2^-32                  infinite: cannot be drawn accurately (`events`)
uses, nested products  up to 10^300              infinite: not a float
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
from typing import TYPE_CHECKING, NamedTuple

from bench.errors import BenchError
from bench.privacy.budget import Budget, Claim, Relation, Unit, epsilon_to_json
from bench.privacy.ledger import Ledger

if TYPE_CHECKING:
    from bench.privacy.composition import Composition

VERSION = f"2 (dp-accounting {version('dp-accounting')})"

PREFER_PURE = 1 + 1e-4
"""Factor within which a pure epsilon is preferred over a smaller approximate one, because its delta is 0."""


class EmptyLedger(Exception):
    """Raised for a ledger without an entry for the requested unit, so that no epsilon can be computed."""


class Overspent(Exception):
    """Raised when a release spent more than its budget."""


@dataclass(frozen=True)
class Accounted:
    """An accounted (epsilon, delta) guarantee for one unit, computed from a ledger.

    Attributes:
        epsilon: >= 0; infinity if no finite epsilon can be derived.
        delta: the requested delta, or 0 if pure differential privacy gives the smaller epsilon.
        unit, relation: the protected unit, and how it changes between neighbours.
        accountant: name of the bound that was smallest.
        version: of this accountant and of dp_accounting.
        note: why epsilon is infinite, or why a bound looser than the exact composition was used; "" otherwise.
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
        """Return whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    def to_json(self) -> dict[str, object]:
        """Return plain data; it includes a note if there is one."""
        plain: dict[str, object] = {
            "epsilon": epsilon_to_json(self.epsilon),
            "delta": self.delta,
            "unit": self.unit.value,
            "relation": self.relation.value,
            "accountant": self.accountant,
            "version": self.version,
        }
        return plain | ({"note": self.note} if self.note else {})


def account(ledger: Ledger, unit: Unit, delta: float) -> Accounted:
    """Return the smallest epsilon at `delta` for `unit` that follows from its entries in `ledger`.

    Args:
        delta: in (0, 1).

    Raises:
        EmptyLedger: no entry for `unit`.
        BenchError: `delta` is not a number in (0, 1).

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = Ledger()
    >>> ledger.spend(GaussianDpEvent(240 / 2), count=1000)
    >>> round(account(ledger, Unit.EXAMPLE, 1e-5).epsilon, 3)
    0.981
    """
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise BenchError(f"delta is {delta}; expected 0 < delta < 1, such as 1e-5")
    entries = ledger.entries(unit)
    if not entries:
        raise EmptyLedger(f"the ledger has no entry for unit '{unit}'; add what was used, or a NoOpDpEvent")
    from bench.privacy._pld import why_not
    from bench.privacy.composition import decompose

    parts = decompose(entries, unit_replaced=unit.relation is Relation.REPLACE_ONE)
    relation = Relation.REPLACE_ONE if parts.is_replaced else Relation.ADD_OR_REMOVE_ONE
    if parts.why_infinite:
        return Accounted(math.inf, delta, unit, relation, "none", note=parts.why_infinite)
    why_inexact = "" if parts.is_gaussian else why_not(parts, delta)
    bounds = upper_bounds(parts, delta, exact=not why_inexact)
    best = min(bounds, key=lambda bound: bound.epsilon * (PREFER_PURE if bound.delta else 1))
    if math.isinf(best.epsilon):
        return Accounted(math.inf, delta, unit, relation, "none", note="the noise is too small")
    note = (
        f"{why_inexact}: too much for the exact composition; bounded from above by {best.name}" if why_inexact else ""
    )
    return Accounted(float(best.epsilon), best.delta, unit, relation, best.name, note=note)


def accounted_curve(ledger: Ledger, unit: Unit) -> Callable[[float], float]:
    """Return the privacy curve of a ledger: a function from delta in (0, 1) to the accounted epsilon."""

    @cache
    def epsilon(delta: float) -> float:
        return account(ledger, unit, delta).epsilon

    return epsilon


def check_budget(ledger: Ledger, claim: Claim | None, budget: Budget) -> None:
    """Raise an error if a release spent more than its budget.

    Any release meets a budget without epsilon, and, if there is no claim, a budget for the claimed epsilon.

    Raises:
        Overspent: the claim (account "claimed"), or the accounted epsilon for the budget's unit ("accounted"), exceeds
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


class UpperBound(NamedTuple):
    """An upper bound on epsilon at a delta, and the name of its accountant."""

    epsilon: float
    delta: float
    name: str


def upper_bounds(parts: Composition, delta: float, exact: bool) -> Iterator[UpperBound]:
    """Yield every valid upper bound, cheapest first; privacy loss distributions are used only if `exact`."""
    from bench.privacy._bounds import gaussian_epsilon, zcdp_epsilon
    from bench.privacy._pld import composed_epsilon
    from bench.privacy._rdp import renyi_epsilon

    pure = parts.pure_epsilon
    if parts.is_pure:
        yield UpperBound(pure, 0.0, "pure-sum")
        if pure == 0:
            return
    if parts.is_gaussian:
        yield UpperBound(gaussian_epsilon(parts.mu(), delta), delta, "gaussian-closed-form")
        return
    unsampled = parts.mu(sampling=False)
    yield UpperBound(gaussian_epsilon(unsampled, delta) + pure, delta, "basic-composition")
    yield UpperBound(zcdp_epsilon(math.hypot(unsampled, parts.pure_mu), delta), delta, "zcdp")
    yield UpperBound(renyi_epsilon(parts, delta), delta, "renyi")
    if exact:
        yield UpperBound(composed_epsilon(parts, delta), delta, "pld")
