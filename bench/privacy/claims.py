"""Claims: the privacy theorems of the papers (DPSD, DPDFD, DP-DFD, DGD) as published, their defects, and disputes.

Symbols: b batch, T steps, s noise scale, B normalisation bound beta, c classes, d delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.privacy.budget import Relation, Unit, epsilon_from_json
from bench.privacy.one_run import refutes

if TYPE_CHECKING:
    import numpy as np

MOST_COUNT = 10**18
DEFECTS = {
    "DPSD, Theorem 1": "noise-taken-without-its-bound",
    "DPDFD, Theorem 3": "noise-taken-without-its-bound",
    "the generator's use of the baseline is not charged": "baseline-not-charged",
    "the private images are not charged": "private-images-not-charged",
}
"""Known defects: source of a claim to what its proof omits or gets wrong, in the form of `Claim.disputed`."""
NO_EPSILON = "answers-give-the-label-away"
"""`Claim.disputed` of responses without a finite epsilon: DPSD's Eq. 5 as published, DP-DFD's soft responses."""
BELOW_ACCOUNT, BELOW_AUDIT = "below-an-exact-account", "below-an-audits-bound"
"""Results of `dispute` when an account or an audit contradicts a claim that has no other known defect."""
PURE = {"RandomizedResponseDpEvent", "LaplaceDpEvent"}
"""Events whose epsilons at delta 0 compose exactly by addition."""
CLEARLY = 1e-3
"""Relative margin by which an account must exceed a claim to contradict it: composition is less precise than
addition."""


def defect(source: str) -> str:
    """Return the known defect of claims from this source, in a few words joined by "-"; "" if none is known.

    >>> defect("DPSD, Theorem 1"), defect("DPSD, Theorem 2")
    ('noise-taken-without-its-bound', '')
    """
    return next((reason for words, reason in DEFECTS.items() if words in source), "")


def dispute(privacy: Mapping[str, Any]) -> str:
    """Return why the claim of a record is disputed, in a few words joined by "-".

    Return "" if it is not disputed, or there is no claim.

    The first applicable reason: the plug-in's statement (`Claim.disputed`); a known defect of the theorem (`defect`); a
    larger exact account of the same unit (`BELOW_ACCOUNT`); a larger lower bound of an audit (`BELOW_AUDIT`). An
    account that is only an upper bound contradicts nothing: the claim may have the better proof.

    Args:
        privacy: the privacy section of a record.
    """
    claim = privacy["claimed"]
    if claim is None:
        return ""
    if known := claim.get("disputed") or defect(claim.get("source", "")):
        return str(known)
    if is_below_exact_account(claim, privacy):
        return BELOW_ACCOUNT
    audited = privacy.get("audited")
    return BELOW_AUDIT if audited and refutes(audited["epsilon_lower"], audited["delta"], claim) else ""


def is_below_exact_account(claim: Mapping[str, Any], privacy: Mapping[str, Any]) -> bool:
    """Return whether a claim is below the accounted epsilon for its unit, and that epsilon cannot be improved.

    Gaussians without other mechanisms are composed exactly at any delta, randomised responses and Laplace noise at
    delta 0. An epsilon that is needed at a larger delta than the claim's is also needed at the claim's. For records and
    clients a claim does not say whether they are replaced or removed: an account for replacement may be larger than one
    for removal, so that only removal contradicts the claim.
    """
    accounted = privacy["accounted_units"].get(claim["unit"])
    if accounted is None or accounted["delta"] < claim["delta"]:
        return False
    if claim["unit"] not in (Unit.LABEL, Unit.QUERY) and accounted["relation"] != Relation.ADD_OR_REMOVE_ONE:
        return False
    kinds = {entry["event"]["name"] for entry in privacy.get("events", []) if entry["unit"] == claim["unit"]}
    exact = kinds == {"GaussianDpEvent"} or (bool(kinds) and kinds <= PURE and claim["delta"] == 0)
    return exact and epsilon_from_json(accounted["epsilon"]) > epsilon_from_json(claim["epsilon"]) * (1 + CLEARLY)


def dpsd_theorem1(*, beta: float, classes: int, batch: int, steps: int, sigma: float, delta: float) -> float:
    """Return epsilon of T noisy annotation steps: DPSD, Theorem 1, and DPDFD, Theorem 3 (with C for B, n for c).

    epsilon = min over q > 1 of 2 B^2 c b T q / s^2 + log((q-1)/q) - log(q d)/(q-1), for unit `query`.

    Known defects: the proof uses noise N(0, s^2) where the algorithm adds N(0, s^2 B^2), so that epsilon decreases with
    B although B cancels in the mechanism; and it covers one synthetic response, not one private record.

    Args:
        beta: B > 0, in gradient units; C in DPDFD.
        classes: c >= 1, at most 1e18, as all counts here.
        batch: b >= 1, synthetic images per step.
        steps: T >= 0.
        sigma: s >= 0, noise over B; 0 gives infinity.
        delta: d in (0, 1).

    Raises:
        BenchError: a value outside these ranges.

    >>> fixed = {"classes": 10, "batch": 256, "sigma": 100.0, "delta": 1e-5}
    >>> round(dpsd_theorem1(beta=1e-3, steps=200, **fixed), 4)
    0.0456
    >>> round(dpsd_theorem1(beta=1e-3, steps=40_000, **fixed), 4)
    0.8046
    >>> round(dpsd_theorem1(beta=5e-3, steps=40_000, **fixed), 4)
    4.7933
    """
    _require("beta", beta, beta > 0, "> 0")
    _require_count("classes", classes, 1)
    _require_count("batch", batch, 1)
    _require_count("steps", steps, 0)
    _require("sigma", sigma, sigma >= 0, ">= 0")
    _require_delta(delta)
    if sigma == 0:
        return math.inf
    slope = 2 * beta * beta * classes * batch * steps / sigma / sigma
    return _minimum_over_orders(slope, delta) if math.isfinite(slope) else math.inf


def dpsd_theorem2(epsilon: float) -> float:
    """Return epsilon of one response in label mode (DPSD, Theorem 2, and DP-DFD), for unit `query`.

    It is the mechanism's own epsilon, with delta 0.

    Known defects: N responses compose to N epsilon for one private record; DPSD's Eq. 5 as published (randomised
    response over all c classes, yet uniform over the candidates when the label is not among them) and DP-DFD's soft
    responses have no finite epsilon at all.

    Raises:
        BenchError: `epsilon` is negative or NaN.
    """
    _require("epsilon", epsilon, epsilon >= 0, ">= 0")
    return float(epsilon)


def dgd_composition(queries: int, scale_epsilon: float, delta: float, latent_epsilon: float = 0.0) -> float:
    """Return epsilon of n noisy votes by DGD's composition, n e0^2 + e0 sqrt(-2 n log d) + e1, for unit `example`.

    Known defects: DGD's generator is trained on the unprotected baseline network, which the formula omits; the e1 that
    the paper adds for its VAE protects synthetic images, not private records. The paper's tables at epsilon 10 (1300
    queries) and 1 (27 queries) come from a moments accountant; this formula gives 11.90 and 1.314 there.

    Args:
        queries: n >= 0, at most 1e18.
        scale_epsilon: e0 >= 0; each vote count gets Laplace noise of scale 2/e0.
        delta: d in (0, 1).
        latent_epsilon: e1 >= 0 of the VAE (0.01 in the paper), outside the root as in section III-E.

    Raises:
        BenchError: a value outside these ranges.

    >>> round(dgd_composition(400, 1 / 20, 1e-5), 4), round(dgd_composition(1000, 1 / 20, 1e-5), 3)
    (5.7985, 10.087)
    """
    _require_count("queries", queries, 0)
    _require("scale_epsilon", scale_epsilon, scale_epsilon >= 0, ">= 0")
    _require_delta(delta)
    _require("latent_epsilon", latent_epsilon, latent_epsilon >= 0, ">= 0")
    root = math.sqrt(-2 * queries * math.log(delta))
    return queries * (scale_epsilon * scale_epsilon) + scale_epsilon * root + latent_epsilon


def _minimum_over_orders(slope: float, delta: float) -> float:
    """Return min over q > 1 of slope q + log((q-1)/q) - log(q delta)/(q-1), at least 0, by a refined scan."""

    def objective(u: np.ndarray) -> np.ndarray:
        order, *less = _order_and_rest(u, delta)
        return slope * order - less[0] - less[1]

    import numpy as np  # imported here, as boards only need `defect` of this module
    from scipy.optimize import minimize_scalar

    grid, order, *less = _scan(delta)
    values = slope * order - less[0] - less[1]
    at = int(np.argmin(values))
    bounds = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    refined = minimize_scalar(objective, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(min(refined.fun, values[at])))


def _order_and_rest(u: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for u = log(q-1): q, and the two terms that do not depend on the slope, both to be subtracted."""
    import numpy as np

    excess = np.exp(u)
    return 1 + excess, np.log1p(1 / excess), (np.log1p(excess) + math.log(delta)) / excess


@lru_cache(maxsize=64)
def _scan(delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the scanned u and its `_order_and_rest`.

    Cached and shared by all slopes, so callers must not modify it.
    """
    import numpy as np

    grid = np.linspace(-60.0, 60.0, 2401)
    return grid, *_order_and_rest(grid, delta)


def _require(name: str, given: float, holds: bool, expected: str) -> None:
    if not holds:
        raise BenchError(f"{name} is {given}; expected {expected}")


def _require_count(name: str, given: int, least: int) -> None:
    _require(name, given, least <= given <= MOST_COUNT, f">= {least} and at most {MOST_COUNT:g}")


def _require_delta(delta: float) -> None:
    _require("delta", delta, 0 < delta < 1, "0 < delta < 1, such as 1e-5")
