"""The f-DP audit: a lower bound on epsilon from one training run, by testing a family of trade-off curves.

Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run", ICML 2025 (arXiv 2410.22235), for guesses
between two worlds of each canary. As in `bench.privacy.one_run`, of m canaries each is in the training data by a fair
coin, r guesses are made and c are right. For a trade-off curve f let b be the inverse of 1 - f. If at least c guesses
are right with probability beta, then the masses R of right and H of wrong guesses, per canary, satisfy

    R = beta c / m,  H = beta (r - c) / m,  and for i = c - 1, ..., 0:
    H' = max(H, b(R)),  R = min(1, R + i (H' - H) / (r - i)),  H = H'.

The curve is refuted if R + H > r / m at the end.

The Gaussian curve gives a larger epsilon than Steinke et al. for Gaussian mechanisms, and is valid for that family
only: randomised response at epsilon 1 gets 1.65 from the Gaussian curve. Use the curve of the mechanism whose claim is
tested: "gaussian" for noisy gradients without subsampling, "epsilon-delta" for any mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from scipy.special import ndtr, ndtri

from bench.privacy.one_run import CONFIDENCE, LARGEST

Curve = Literal["gaussian", "epsilon-delta"]
_HALVINGS = 60
_MOST_MU = 50.0


def f_dp_epsilon(
    guesses: int,
    correct: int,
    canaries: int,
    delta: float,
    confidence: float = CONFIDENCE,
    curve: Curve = "gaussian",
) -> float:
    """Return the epsilon, at `delta`, of the largest curve of the family that the guesses refute; >= 0.

    Args:
        guesses, correct, canaries, delta, confidence: as in `one_run_epsilon`; for "gaussian" delta must be above 0.
        curve: the family of curves.

    Raises:
        ValueError: an argument out of its range.

    >>> round(f_dp_epsilon(100, 92, 1000, 1e-5), 4)
    2.7533
    """
    if not (0 <= correct <= guesses <= canaries and guesses >= 1):
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries: expected an ascending order")
    if not (0 <= delta < 1 and 0 < confidence < 1) or (curve == "gaussian" and delta == 0):
        raise ValueError(f"delta {delta}, confidence {confidence}: expected [0, 1), above 0 for gaussian, and (0, 1)")
    beta = 1 - confidence
    if curve == "gaussian":
        mu = _largest(lambda mu: _is_refuted(gaussian_curve(mu), beta, guesses, correct, canaries), _MOST_MU)
        return _epsilon_at(mu, delta)
    return _largest(lambda eps: _is_refuted(epsilon_delta_curve(eps, delta), beta, guesses, correct, canaries), LARGEST)


def _is_refuted(inverse: Callable[[float], float], beta: float, guesses: int, correct: int, canaries: int) -> bool:
    right, wrong = beta * correct / canaries, beta * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        next_wrong = max(wrong, inverse(right))
        if next_wrong == wrong:
            break
        right = min(1.0, right + i / (guesses - i) * (next_wrong - wrong))
        wrong = next_wrong
    return right + wrong > guesses / canaries


def gaussian_curve(mu: float) -> Callable[[float], float]:
    """Return b of the Gaussian mechanism of sensitivity / deviation `mu`: b(y) = Phi(Phi^-1(y) - mu)."""
    return lambda y: float(ndtr(ndtri(y) - mu))


def epsilon_delta_curve(epsilon: float, delta: float) -> Callable[[float], float]:
    """Return b of (epsilon, delta)-DP: b(y) = max(0, e^-eps (y - delta), 1 - delta - e^eps (1 - y))."""
    grow = math.exp(epsilon)
    return lambda y: max(0.0, (y - delta) / grow, 1 - delta - grow * (1 - y))


def _largest(is_refuted: Callable[[float], bool], most: float) -> float:
    """Return the largest parameter that is refuted; 0 if none is."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _epsilon_at(mu: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism at delta: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta."""
    if mu == 0:
        return 0.0

    def delta_at(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))

    low, high = 0.0, LARGEST
    if delta_at(low) <= delta:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return low
