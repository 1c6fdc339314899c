"""PATE's privacy bounds for noisy votes: data-independent ones by the number of queries, and data-dependent ones.

All bounds are Renyi divergences D_alpha at orders alpha > 1, added over queries and converted to epsilon by min over
alpha of sum D_alpha + log(1 / delta) / (alpha - 1). The moments accountant of the first paper is equivalent: its log
moment at lambda is lambda D_(lambda + 1), with integer lambda.

Data-independent bounds hold for any votes. Data-dependent ones are functions of the votes and therefore private: an
epsilon computed from them must not be released as it is, nor compared with a budget. They bound D_alpha(M(D) || M(D'))
for the data D with these votes and any neighbour D'; they hold only if just the arg-max is released, as noisy counts
reveal more.

"2017" is Papernot et al., "Semi-supervised Knowledge Transfer" (PATE, Laplace votes); "2018" is Papernot et al.,
"Scalable Private Learning with PATE" (GNMax, Gaussian votes with a threshold).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

Values = NDArray[np.float64]

WHOLE_ORDERS = np.arange(2, 10_002, dtype=np.float64)
"""lambda + 1 for lambda = 1 to 10,000."""
FEW_WHOLE_ORDERS = WHOLE_ORDERS[:512]
"""lambda + 1 for lambda = 1 to 512, for bounds that are evaluated for every query."""
ORDERS = 1 + np.logspace(-1.5, 3, 300)
"""Orders alpha for Gaussian votes."""


def epsilon_of(renyi: Values, orders: Values, delta: float) -> float:
    """Return the smallest epsilon over orders (Papernot et al. 2017, Theorem 2, the tail bound; 2018, Theorem 5).

    Args:
        renyi: (k,) total divergences over all queries.
        orders: (k,) their orders alpha, > 1.
    """
    return float((renyi - math.log(delta) / (orders - 1)).min())


def laplace_renyi(scale: float, orders: Values) -> Values:
    """Return (k,) divergences of one query with Laplace noise of `scale` b per count, which is (2 / b)-DP.

    The smaller of e0^2 alpha / 2 (2017, Theorem 2: log moment at lambda at most 2 gamma^2 lambda (lambda + 1), with
    e0 = 2 gamma) and e0.
    """
    pure = 2 / scale
    return np.minimum(pure**2 * orders / 2, pure)


def gaussian_claim(squares: float, delta: float) -> float:
    """Return epsilon of composed Gaussians over all orders: rho + 2 sqrt(rho log(1 / delta)), rho = `squares` / 2.

    GNMax has 1 / z^2 = 2 / sigma^2 per query (2018, Proposition 8), the threshold 1 / sigma_1^2. The paper's MNIST:

    >>> [round(gaussian_claim(answers * 2 / 40**2 + 640 / 150**2, 1e-5), 2) for answers in (286, 640)]
    [3.17, 4.78]
    """
    return squares / 2 + 2 * math.sqrt(-squares / 2 * math.log(delta))


def laplace_claim(queries: int, scale: float, delta: float) -> float:
    """Return epsilon of noisy arg-maxes by the moments accountant (2017, section 3).

    >>> [round(laplace_claim(queries, 20.0, 1e-5), 2) for queries in (100, 1000)]
    [5.3, 20.76]
    """
    return epsilon_of(queries * laplace_renyi(scale, WHOLE_ORDERS), WHOLE_ORDERS, delta)


def log_wrong_laplace(votes: Values, scale: float) -> Values:
    """Return (n,) log upper bounds on the probability that the noisy arg-max is not the plurality (2017, Lemma 4).

    The sum over the other classes of (2 + g / b) / (4 exp(g / b)), with g the number of votes by which a class is
    behind; at most 1 - 1 / classes.

    Args:
        votes: (n, classes) counts without noise.
        scale: b.
    """
    gap = _gaps(votes) / scale
    return _capped(np.log((2 + gap) / 4) - gap)


def log_wrong_gaussian(votes: Values, sigma: float) -> Values:
    """As `log_wrong_laplace` for GNMax (2018, Proposition 7): the sum of erfc(g / (2 sigma)) / 2."""
    return _capped(special.log_ndtr(-_gaps(votes) / (sigma * math.sqrt(2))))


def laplace_renyi_of_votes(votes: Values, scale: float, orders: Values) -> Values:
    """Return (n, k) divergences of each query's arg-max, given the votes (2017, Theorem 3, or Theorem 2 if smaller).

    With q an upper bound on the probability of another label than the plurality, and q < 1 / (1 + e^e0): (1 - q) ((1 -
    q) / (1 - e^e0 q))^lambda + q e^(e0 lambda), lambda = alpha - 1.
    """
    pure, log_q, moment = 2 / scale, log_wrong_laplace(votes, scale)[:, None], orders - 1
    holds = log_q < -np.logaddexp(0, pure)
    with np.errstate(invalid="ignore", divide="ignore"):
        likely = orders * _log_rest(log_q) - moment * _log_rest(pure + log_q)
        found = np.logaddexp(likely, log_q + pure * moment) / moment
    plain = laplace_renyi(scale, orders)
    return np.where(holds, np.fmin(found, plain), plain)


def gaussian_renyi_of_events(log_q: Values, sigma: float, orders: Values) -> Values:
    """Return (n, k) divergences of mechanisms with D_alpha <= alpha / sigma^2, given bounds q on P(output is not i*).

    2018, Theorem 6, with mu_2 = sigma sqrt(log(1 / q)) and mu_1 = mu_2 + 1 (its Proposition 10):
    log((1 - q) A^(alpha - 1) + q B^(alpha - 1)) / (alpha - 1), A = (1 - q) / (1 - (q e^eps_2)^((mu_2 - 1) / mu_2)),
    B = e^eps_1 / q^(1 / (mu_1 - 1)), eps_i = mu_i / sigma^2; alpha / sigma^2 where its conditions do not hold.

    Args:
        log_q: (n,) logarithms of q, an upper bound on the probability of any output other than i*.
        sigma: of GNMax; sqrt(2) sigma_1 for the threshold, whose divergence is alpha / (2 sigma_1^2).
    """
    log_q = log_q[:, None]
    second = sigma * np.sqrt(-log_q)
    first = second + 1
    eps_1, eps_2 = first / sigma**2, second / sigma**2
    with np.errstate(invalid="ignore", divide="ignore"):
        room = (second - 1) * eps_2 - second * (np.log1p(1 / (first - 1)) + np.log1p(1 / (second - 1)))
        holds = (orders <= first) & (second > 1) & (-log_q > eps_2) & (log_q <= room)
        log_a = _log_rest(log_q) - _log_rest((log_q + eps_2) * (second - 1) / second)
        log_b = eps_1 - log_q / (first - 1)
        moment = orders - 1
        found = np.logaddexp(_log_rest(log_q) + moment * log_a, log_q + moment * log_b) / moment
    plain = orders / sigma**2
    return np.where(holds, np.fmin(found, plain), plain)


def log_rarer_side(votes: Values, threshold: float, sigma: float) -> Values:
    """Return (n,) logs of the smaller of the probabilities to pass and to fail the threshold, at most log(1/2).

    Args:
        threshold: in votes; the largest count plus N(0, sigma^2) passes if it is at least this.
    """
    return special.log_ndtr(-np.abs(votes.max(1) - threshold) / sigma)


def _gaps(votes: Values) -> Values:
    """Return (n, classes - 1): by how many votes each other class is behind the plurality."""
    ordered = np.sort(votes, axis=1)
    return ordered[:, -1:] - ordered[:, :-1]


def _capped(log_terms: Values) -> Values:
    return np.minimum(special.logsumexp(log_terms, axis=1), math.log1p(-1 / (log_terms.shape[1] + 1)))


def _log_rest(log_q: Values) -> Values:
    """Return log(1 - q); NaN where q > 1."""
    return np.log1p(-np.exp(log_q))
