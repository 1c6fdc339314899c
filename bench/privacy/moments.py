"""Privacy cost of noisy votes by several accountants: an attempt to reproduce DGD's published numbers.

No run uses this module. It makes the table "DGD's published epsilons by several accountants" of docs/privacy.md, which
compares the moments accountant's bounds with the others (`dgd_table`); tests/privacy/test_privacy_moments.py checks it.

One query releases votes with Laplace noise of scale 2/e0 on every count. One private record changes one teacher's vote,
so two counts by 1 each, and a query is e0-differentially private with delta = 0; n queries compose. DGD publishes, for
e0 = 1/20 and delta = 1e-5, 5.80 at 400 queries and 10.1 at 1000 by advanced composition, 8.03 at 1000 by "moments
accountant", and epsilon 10.0 for 1300 queries and 1.00 for 27 in its tables.

Result: `claims.dgd_composition` reproduces 5.80 and 10.1. No accountant here reproduces 8.03, 10.0 and 1.00; each is
between the exact privacy loss distribution and the classic data-independent moments:

queries  printed  composition  classic moments  RDP, improved  PLD
     27     1.00        1.314            1.281          0.986  0.918
    400     5.80        5.799            5.303          4.700  4.317
   1000     8.03       10.087            8.838          8.055  7.421
   1300     10.0       11.901           10.338          9.433  8.700

The paper says that it adds "an advanced limit" of PATE (Papernot et al. 2017), whose Theorem 3 bounds a query's moments
by the margin of its votes. Such a number depends on the private votes, which the paper does not publish; PATE itself
reports the same 8.03 for 1000 queries on MNIST. A data-dependent epsilon may not be published as a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting import LaplaceDpEvent

from bench.errors import BenchError
from bench.privacy.accountant import account
from bench.privacy.budget import Unit
from bench.privacy.claims import dgd_composition
from bench.privacy.ledger import Ledger

MOST_MOMENTS = 32
"""Default number of moments of `classic_moments`."""
SCALE_EPSILON = 1 / 20
"""DGD's e0."""
DELTA = 1e-5
"""DGD's delta."""
PRINTED = {27: 1.0, 400: 5.80, 1000: 8.03, 1300: 10.0}
"""DGD's published numbers: 5.80 by composition, the others by its moments accountant."""


def classic_moments(
    queries: int, scale_epsilon: float = SCALE_EPSILON, delta: float = DELTA, most: int = MOST_MOMENTS
) -> float:
    """Return epsilon of n noisy votes by the data-independent moments of PATE (Papernot et al. 2017, Theorem 2).

    min over l = 1..most of (n a(l) - log delta) / l with a(l) = min(e0^2 l (l + 1) / 2, e0 l): their
    2 gamma^2 l (l + 1) for a (2 gamma, 0)-private query, gamma = e0 / 2, and the bound on any moment by pure privacy.

    Args:
        queries: n >= 0.
        scale_epsilon: e0 > 0.
        delta: in (0, 1).
        most: the largest moment used, >= 1. PATE's own script stops at 8.

    Raises:
        BenchError: a value outside these ranges.

    >>> [round(classic_moments(n), 3) for n in (27, 400, 1000, 1300)]
    [1.281, 5.303, 8.838, 10.338]
    >>> round(classic_moments(27, most=8), 3), round(classic_moments(1000, most=8), 3)
    (1.743, 8.838)
    """
    _check(queries, scale_epsilon, delta)
    if most < 1:
        raise BenchError(f"moments up to {most}; expected at least 1")
    moments = ((ell, min(scale_epsilon**2 * ell * (ell + 1) / 2, scale_epsilon * ell)) for ell in range(1, most + 1))
    return min((queries * moment - math.log(delta)) / ell for ell, moment in moments)


def rdp_improved(queries: int, scale_epsilon: float = SCALE_EPSILON, delta: float = DELTA) -> float:
    """Return epsilon of n e0-DP queries (delta = 0) by Renyi privacy and the improved conversion.

    Renyi divergence of order a of binary randomised response, the worst e0-private mechanism:
    r = log((sinh(a e0) - sinh((a - 1) e0)) / sinh(e0)) / (a - 1); converted by Canonne, Kamath and Steinke (2020):
    r + log((a - 1)/a) - log(delta a)/(a - 1), least over real a > 1.

    Raises:
        BenchError: `queries` below 0, `scale_epsilon` not above 0, or `delta` outside (0, 1).

    >>> [round(rdp_improved(n), 3) for n in (27, 400, 1000, 1300)]
    [0.986, 4.7, 8.055, 9.433]
    """
    _check(queries, scale_epsilon, delta)
    return _convert(lambda order: queries * response_divergence(order, scale_epsilon), delta)


def rdp_laplace(queries: int, scale_epsilon: float = SCALE_EPSILON, delta: float = DELTA) -> float:
    """As `rdp_improved`, with the divergence of Laplace noise on one count that changes by e0 times its scale.

    log(a/(2a - 1) e^((a - 1) e0) + (a - 1)/(2a - 1) e^(-a e0)) / (a - 1) (Mironov 2017, Prop. 6). A vote that changes
    two counts by half as much each has a smaller divergence.

    Raises:
        BenchError: as `rdp_improved`.

    >>> [round(rdp_laplace(n), 3) for n in (27, 400, 1000, 1300)]
    [0.978, 4.657, 7.977, 9.34]
    """
    _check(queries, scale_epsilon, delta)
    return _convert(lambda order: queries * laplace_divergence(order, scale_epsilon), delta)


def pld(queries: int, scale_epsilon: float = SCALE_EPSILON, delta: float = DELTA) -> float:
    """Return epsilon of n queries by the project's accountant: the privacy loss distribution of a Laplace event.

    Raises:
        BenchError: as `rdp_improved`.

    >>> [round(pld(n), 3) for n in (27, 400, 1000, 1300)]
    [0.918, 4.317, 7.421, 8.7]
    """
    _check(queries, scale_epsilon, delta)
    if queries == 0:
        return 0.0
    ledger = Ledger()
    ledger.spend(LaplaceDpEvent(1 / scale_epsilon), count=queries)
    return account(ledger, Unit.EXAMPLE, delta).epsilon


def dgd_table(queries: Sequence[int]) -> list[dict[str, float | int | None]]:
    """Return every accountant's epsilon at DGD's settings (e0 = 1/20, delta = 1e-5), one row per number of queries.

    Returns:
        Rows with "queries", "printed" (the paper's number, None where it has none), "composition", "classic_moments",
        "rdp_improved", "rdp_laplace" and "pld".
    """
    return [
        {
            "queries": n,
            "printed": PRINTED.get(n),
            "composition": dgd_composition(n, SCALE_EPSILON, DELTA),
            "classic_moments": classic_moments(n),
            "rdp_improved": rdp_improved(n),
            "rdp_laplace": rdp_laplace(n),
            "pld": pld(n),
        }
        for n in queries
    ]


def _check(queries: int, scale_epsilon: float, delta: float) -> None:
    if queries < 0:
        raise BenchError(f"queries is {queries}; expected >= 0")
    if not 0 < scale_epsilon < math.inf:
        raise BenchError(f"scale_epsilon is {scale_epsilon}; expected a finite number > 0")
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}; expected 0 < delta < 1, such as 1e-5")


def response_divergence(order: np.ndarray, e0: float) -> np.ndarray:
    """Evaluate the sinh formula as e^((a-1) e0) (1 + e^(-(2a - 1) e0)) / (1 + e^(-e0)), without cancellation."""
    return e0 + (np.log1p(np.exp(-(2 * order - 1) * e0)) - math.log1p(math.exp(-e0))) / (order - 1)


def laplace_divergence(order: np.ndarray, e0: float) -> np.ndarray:
    """Evaluate the formula of `rdp_laplace` on a logarithmic scale."""
    grown = (order - 1) * e0 + np.log(order / (2 * order - 1))
    shrunk = -order * e0 + np.log((order - 1) / (2 * order - 1))
    return np.logaddexp(grown, shrunk) / (order - 1)


def _convert(divergence: Callable[[np.ndarray], np.ndarray], delta: float) -> float:
    """Return the smallest epsilon at `delta` over the orders of a Renyi divergence (Canonne et al. 2020, Prop. 12)."""
    order = 1 + np.exp(np.linspace(-10.0, 12.0, 200_001))
    excess = order - 1
    values = divergence(order) + np.log(excess / order) - (math.log(delta) + np.log(order)) / excess
    return max(0.0, float(values.min()))
