"""Closed forms that the accountant needs beside the privacy loss distributions of dp_accounting."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy import optimize, special

DROPPED_MASS = 1e-12
"""Upper bound on the probability that `response_losses` leaves out and on its rounding errors."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of mu-Gaussian differential privacy at `delta`; exact, and stable for any mu in [0, inf].

    Balle and Wang (2018), Thm 8, in the variable a = mu/2 - epsilon/mu, where the large exponents cancel by hand:
    delta = Phi(a) - phi(a) M(mu - a), M the Mills ratio.

    >>> round(gaussian_epsilon(math.sqrt(200) * 2 * 16 / 100, 1e-5), 2)
    28.84
    """
    if mu == 0 or math.isinf(mu):
        return mu

    def log_delta(a: float) -> float:
        ratio = special.erfcx((mu - a) / math.sqrt(2)) / special.erfcx(-a / math.sqrt(2))
        return special.log_ndtr(a) + math.log1p(-ratio) if ratio < 1 else -math.inf

    if log_delta(mu / 2) <= math.log(delta):
        return 0.0
    low = special.ndtri(delta) - 1.0
    high = min(low + 2.0, mu / 2)
    while log_delta(high) < math.log(delta):
        high = min(low + 2 * (high - low), mu / 2)
    root = optimize.brentq(lambda a: max(log_delta(a), -1e4) - math.log(delta), low, high, xtol=1e-13)
    return mu * (mu / 2 - root)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Upper bound on epsilon at `delta` of rho-zero-concentrated privacy (Bun and Steinke 2016, Prop. 1.3)."""
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def response_losses(epsilon: float, counts: Mapping[int, int]) -> tuple[int, np.ndarray]:
    """Privacy loss, in multiples of `epsilon`, of composed randomised responses between two inputs.

    One response over k choices loses +1 when the first input is kept, -1 when the other comes out, else 0.

    Args:
        epsilon: of each single response, > 0.
        counts: {k: how many responses over k choices}, k >= 2.

    Returns:
        (first, probabilities): `probabilities[i]` belongs to the loss `(first + i) * epsilon`. At most `DROPPED_MASS`
        is left out (Hoeffding's tails).
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
