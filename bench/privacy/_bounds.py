"""Closed-form privacy bounds that the accountant uses in addition to dp_accounting's privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import optimize, special

DROPPED_MASS = 1e-12
"""Upper bound on the probability mass that `response_losses` drops, including its rounding errors."""


SMALL_MU = 1e-4
"""Below this mu the two terms of delta are nearly equal, and `small_log_delta` is used."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of mu-Gaussian differential privacy at `delta`; exact, and stable for mu in [0, inf].

    Balle and Wang (2018), Thm 8, in the variable a = mu/2 - epsilon/mu, where the large exponents cancel analytically:
    delta = Phi(a) - phi(a) M(mu - a), M the Mills ratio. Below mu = `SMALL_MU` see `small_log_delta`. The result is 0
    only where delta >= 2 Phi(mu/2) - 1, the total variation.

    >>> round(gaussian_epsilon(math.sqrt(200) * 2 * 16 / 100, 1e-5), 2)
    28.84
    """
    if mu == 0 or math.isinf(mu):
        return mu
    target = math.log(delta)
    if mu < SMALL_MU:
        steps = _root(lambda s: small_log_delta(mu, s), target, -40.0, 0.0)
        return 0.0 if steps is None else -mu * steps

    def log_delta(a: float) -> float:
        ratio = special.erfcx((mu - a) / math.sqrt(2)) / special.erfcx(-a / math.sqrt(2))
        return special.log_ndtr(a) + math.log1p(-ratio) if ratio < 1 else -math.inf

    root = _root(log_delta, target, special.ndtri(delta) - 1.0, mu / 2)
    return 0.0 if root is None else mu * (mu / 2 - root)


def small_log_delta(mu: float, s: float) -> float:
    """Return an upper bound on log delta of mu-Gaussian privacy at epsilon = -mu s, s <= 0.

    Relative error at most mu^2 / 8.

    The derivative is d delta / d mu = phi(mu/2 - epsilon/mu), and its integral over mu is at most e^(epsilon/2) mu
    g(s), g(s) = int_0^1 phi(s/t) dt = phi(s) + s Phi(s) = phi(s) (1 + s M(-s)), M the Mills ratio.
    """
    mills = math.sqrt(math.pi / 2) * special.erfcx(-s / math.sqrt(2))
    log_density = -s * s / 2 - math.log(2 * math.pi) / 2
    return math.log(mu) - mu * s / 2 + log_density + math.log1p(s * mills)


def _root(rising: Callable[[float], float], target: float, low: float, most: float) -> float | None:
    """Return where an increasing function reaches `target`, above `low`.

    None if it is still at most `target` at `most`.
    """
    if rising(most) <= target:
        return None
    high = min(low + 2.0, most)
    while rising(high) < target:
        high = min(low + 2 * (high - low), most)
    return optimize.brentq(lambda x: max(rising(x), -1e4) - target, low, high, xtol=1e-13)


def zcdp_epsilon(root: float, delta: float) -> float:
    """Return an upper bound on epsilon at `delta` of rho-zCDP (Bun and Steinke 2016, Prop. 1.3).

    Args:
        root: sqrt(2 rho) >= 0, which is mu for a Gaussian; rho itself might overflow.
    """
    return root * root / 2 + root * math.sqrt(-2 * math.log(delta))


def response_losses(epsilon: float, counts: Mapping[int, int]) -> tuple[int, np.ndarray]:
    """Return the privacy loss distribution of composed randomised responses, in multiples of `epsilon`.

    One response over k choices has loss +1 when the first input is kept, -1 when the second comes out, else 0.

    Args:
        epsilon: of each single response, > 0.
        counts: {k: number of responses over k choices}, k >= 2.

    Returns:
        (first, probabilities): `probabilities[i]` is the probability of the loss `(first + i) * epsilon`. Mass of at
        most `DROPPED_MASS` is left out (Hoeffding's tails).
    """
    total = sum(counts.values())
    length = 1 << (2 * total).bit_length()
    spectrum: np.ndarray = np.ones(length // 2 + 1, dtype=complex)
    mean = 0.0
    for choices, count in counts.items():
        kept = 1 / (1 + (choices - 1) * math.exp(-epsilon))
        flipped = kept * math.exp(-epsilon)
        single = np.array([flipped, max(0.0, 1 - kept - flipped), kept])
        spectrum *= np.fft.rfft(single, length) ** count
        mean += count * (kept - flipped)
    spread = 9 * math.sqrt(total) + 1
    first, last = max(-total, math.floor(mean - spread)), min(total, math.ceil(mean + spread))
    everything = np.fft.irfft(spectrum, length)
    return first, np.clip(everything[first + total : last + total + 1], 0.0, None)
