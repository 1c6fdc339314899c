"""Composition by Renyi differential privacy (RDP): an upper bound whose cost does not depend on the number of uses.

For a mechanism with output distributions P and Q of two neighbours, log E_Q (P/Q)^a is convex in the order a, is 0 at
a = 1, and adds up over uses. It is evaluated on a grid of orders and converted by Canonne, Kamath and Steinke (2020,
Prop. 12): epsilon = (sum + (a - 1) log((a - 1)/a) - log(a delta)) / (a - 1), least over a > 1. Every order yields a
bound.

Closed forms: Gaussian a (a - 1) mu^2 / 2; Laplace, Mironov (2017, Prop. 6); randomised response by its three ratios;
Poisson-sampled Gaussians at integer orders, Mironov, Talwar and Zhang (2019, sec. 3.3), linear in between, which is
above a convex function, and at most the value without sampling. An e-DP mechanism has at most a (a - 1) e^2 / 2 (Bun
and Steinke 2016) and (a - 1) e. Replacing a sampled record removes one and adds one: with R the distribution without
either, E_Q (P/Q)^a <= (E_R (P/R)^(2a) E_Q (R/Q)^(2a - 1))^(1/2) by Cauchy and Schwarz.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.privacy.composition import Composition

Array = NDArray[np.float64]

MOST_SAMPLED, MOST_KINDS = 400, 10_000
"""Most kinds of sampled Gaussians (about 10 ms each), and of all mechanisms (0.2 ms), so that a bound takes seconds."""
ORDERS = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(65, 4096, 60).round()]))
"""Integer orders at which Poisson-sampled Gaussians are evaluated."""
TINY = 1e-300
"""Replaces exponents that would underflow."""
ROUNDING = 4e-15
"""Rounding error of a logarithm of a sum, relative to the exponents in it."""


def renyi_epsilon(parts: Composition, delta: float) -> float:
    """Return an upper bound on epsilon at `delta`; infinite for too many kinds or noises beyond 10^150.

    Args:
        delta: in (0, 1).
    """
    scale = math.hypot(parts.mu(sampling=False), parts.pure_mu)
    if len(parts.sampled) > MOST_SAMPLED or parts.kinds > MOST_KINDS or not 1e-150 < scale < 1e150:
        return math.inf
    # Orders minus 1: near the best one of a Gaussian of mu = `scale`, and those at which sampling has a closed form
    best = math.log(math.sqrt(-2 * math.log(delta)) / scale)
    excess = np.exp(np.linspace(best - 10, best + 10, 4001))
    if parts.sampled:
        excess = np.concatenate([excess, ORDERS - 1, np.geomspace(1e-4, 4095, 2000)])
    with np.errstate(over="ignore"):
        total = np.zeros_like(excess)
        for log_moment in log_moments(parts, excess):
            total += log_moment
        found = (total - math.log(delta) - np.log1p(excess)) / excess - np.log1p(1 / excess)
    return max(0.0, float(found.min()))


def log_moments(parts: Composition, excess: Array) -> Iterator[Array]:
    """Yield log E_Q (P/Q)^a of all uses of each kind, at a = 1 + excess."""
    yield gaussian(parts.mu(), excess)
    for epsilon, count in parts.laplace.items():
        yield count * _pure(epsilon, excess, laplace(epsilon, excess))
    for (epsilon, choices), count in parts.response.items():
        yield count * _pure(epsilon, excess, response(epsilon, choices, excess))
    for (probability, multiplier), count in parts.sampled.items():
        if parts.is_replaced:
            both = [sampled_gaussian(probability, multiplier, at) for at in (2 * excess + 1, 2 * excess)]
            yield count * np.minimum((both[0] + both[1]) / 2, gaussian(2 / multiplier, excess))
        else:
            sampled = sampled_gaussian(probability, multiplier, excess)
            yield count * np.minimum(sampled, gaussian(1 / multiplier, excess))


def gaussian(mu: float, excess: Array) -> Array:
    """Return the log moment of a Gaussian mechanism of sensitivity mu standard deviations: a (a - 1) mu^2 / 2."""
    half = mu * math.sqrt(0.5)
    return half * (1 + excess) * half * excess


def _pure(epsilon: float, excess: Array, exact: Array) -> Array:
    """Return the minimum of the general bound for an epsilon-DP mechanism and its closed form, plus rounding errors."""
    order = 1 + excess
    above = exact + ROUNDING * (100 + order * epsilon)
    return np.minimum(np.minimum(above, order * epsilon * (excess * epsilon) / 2), excess * epsilon)


def laplace(epsilon: float, excess: Array) -> Array:
    """Return the log moment of an e-DP Laplace mechanism (Mironov 2017, Prop. 6).

    log(a / (2a - 1) e^((a - 1) e) + (a - 1) / (2a - 1) e^(-a e)).
    """
    order = 1 + excess
    grown = excess * epsilon + np.log(order / (order + excess))
    return np.logaddexp(grown, np.log(excess / (order + excess)) - order * epsilon)


def response(epsilon: float, choices: int, excess: Array) -> Array:
    """Return the log moment of k-ary randomised response, with probability ratios e^e, e^-e and, k - 2 times, 1."""
    flipped = -np.logaddexp(epsilon, math.log(choices - 1))
    total = np.logaddexp((1 + excess) * epsilon, -excess * epsilon)
    return flipped + (np.logaddexp(total, math.log(choices - 2)) if choices > 2 else total)


def sampled_gaussian(probability: float, multiplier: float, excess: Array) -> Array:
    """Return the log moment of a Poisson-sampled Gaussian, interpolated linearly between integer orders a.

    It is the log of the sum over k of C(a, k) q^k (1 - q)^(a - k) e^(k (k - 1) / (2 z^2)). The binomial probabilities,
    whose sum is 1, are subtracted term by term for precision: the terms k = 0 and 1 vanish.
    """
    rare, common, spread = math.log(probability), math.log1p(-probability), 1 / multiplier / math.sqrt(2)
    values = [0.0]
    for order in ORDERS:
        k = np.arange(2, order + 1)
        grown = np.maximum((k * spread) * ((k - 1) * spread), TINY)
        chances = log_binomial(order) + k * rare + (order - k) * common
        values.append(np.logaddexp(0, special.logsumexp(chances + grown + np.log(-np.expm1(-grown))) + 1e-9))
    return np.interp(excess, np.concatenate([[0.0], ORDERS - 1]), values, right=math.inf)


@cache
def log_binomial(order: float) -> Array:
    """Return log C(a, k) for k = 2..a."""
    k = np.arange(2, order + 1)
    return special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
