"""Composition by privacy loss distributions: the tightest bound, used as long as its time and rounding are bounded.

- A Gaussian's noise multiplier is already relative to the L2 sensitivity between the intended neighbours (see
  `ledger`), so Gaussian losses are always built with dp_accounting's ADD_OR_REMOVE_ONE, whose sensitivity is 1; its
  REPLACE_ONE would double it. Only Poisson-sampled Gaussians under replacement use REPLACE_ONE, because their
  multiplier is relative to one record's contribution.
- Randomised responses are built from their three privacy losses, under replacement: dp_accounting 0.6.0 ignores the
  count of a self-composed `RandomizedResponseDpEvent`, and under REPLACE_SPECIAL reports too little.
- Losses are on a grid; those between grid points are spread over both neighbouring points so that no delta decreases.
  The grid has about `GRID_POINTS` points over the relevant range, and a step of at least `FINEST_GRID`.
- Fourier transforms round: `rounding_error` bounds the effect on a delta (measured: 200 times less). A delta that is
  not 100 times as large is left to other bounds.
- dp_accounting 0.6.0 inverts the loss of a Poisson-sampled Gaussian point by point in Python: one to two seconds for
  400,000 points, which the search for a noise multiplier repeats many times. `sampled_gaussian` computes the same
  deltas with arrays; the connected dots, the tails and the distribution functions are dp_accounting's, and
  tests/privacy/test_privacy_compositions.py compares both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray
from scipy import optimize

from bench.privacy._bounds import DROPPED_MASS, response_losses
from bench.privacy.composition import Composition

FINEST_GRID = 1e-4
"""Smallest step of the grid of losses."""
GRID_POINTS = 400_000
"""Approximate number of grid points over the range of relevant losses."""
WIDEST_LOSS = 2e8
"""Largest loss: beyond about 2.8e8 the grid's step exceeds 709, whose exponential dp_accounting computes and
overflows."""
LARGEST_LAPLACE = 300.0
"""Largest pure epsilon of one use; above it rounding errors occasionally put dp_accounting's deltas out of order."""
MOST_RESPONSES, MOST_RESPONSE_WORK = 1_000_000, 20_000_000
"""Most randomised responses; and for those with the same epsilon, most responses times distinct numbers of choices."""
MOST_KINDS = 100
"""Most different mechanisms."""
MOST_POINTS = 2_000_000
"""Most grid points over all kinds of sampled Gaussians; above it the grid is coarser. Under replacement each takes 4
microseconds."""
LONG = 20_000
"""Number of uses of a kind from which they are composed in two stages: the window of one stage grows with their
number."""
LARGEST_MULTIPLIER, LEAST_PROBABILITY, LEAST_EPSILON = 1e6, 1e-12, 1e-8
"""Weaker mechanisms are composed with these values, which cannot underestimate; the effect is far below the grid's
step."""


def why_not(parts: Composition, delta: float) -> str:
    """Return the reason why the losses of `parts` cannot be composed at this delta; "" if they can."""

    def amount(count: int) -> str:
        return f"{count:,}" if count < 10**15 else f"{float(count):.3g}"

    responses = sum(parts.response.values())
    if parts.kinds > MOST_KINDS:
        return f"{parts.kinds:,} kinds of noise"
    work = sum(len(counts) * sum(counts.values()) for counts in _response_groups(parts).values())
    if responses > MOST_RESPONSES or work > MOST_RESPONSE_WORK:
        return f"{amount(responses)} randomised responses"
    if not _range_of_losses(parts) < WIDEST_LOSS:
        return f"privacy losses of {WIDEST_LOSS:g} and more"
    if max(parts.laplace, default=0.0) > LARGEST_LAPLACE:
        return f"Laplace noise of less than 1 / {LARGEST_LAPLACE:g} of the sensitivity"
    if 100 * rounding_error(parts) > delta:
        return f"{amount(parts.uses)} use{'s' * (parts.uses > 1)} at delta {delta:g}"
    return ""


def rounding_error(parts: Composition) -> float:
    """Return an upper bound on the reduction of a delta by rounding."""
    return DROPPED_MASS + 1e-16 * parts.uses


def composed_epsilon(parts: Composition, delta: float) -> float:
    """Return epsilon at `delta` by the privacy loss distribution of all `parts`; requires that `why_not` returns "".

    dp_accounting's own inversion from delta to epsilon overflows for epsilons above 700.
    """
    losses, allowed = composed_losses(parts), delta - rounding_error(parts)

    def excess(epsilon: float) -> float:
        return math.log(max(losses.get_delta_for_epsilon(epsilon), 1e-300) / allowed)

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return low
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 4 * WIDEST_LOSS:
            return math.inf
    return optimize.brentq(excess, low, high, xtol=1e-10) + 1e-10


def composed_losses(parts: Composition) -> pld.PrivacyLossDistribution:
    """Return the privacy loss distribution of all parts, composed in an order that depends only on the parts."""
    groups, mu = _response_groups(parts), parts.mu()
    step = grid_step(parts, groups)
    total = pld.identity(value_discretization_interval=step)
    if mu > 0:
        noise = min(1 / mu, LARGEST_MULTIPLIER)
        total = total.compose(pld.from_gaussian_mechanism(noise, value_discretization_interval=step))
    for (probability, multiplier), count in sorted(parts.sampled.items()):
        probability, multiplier = max(probability, LEAST_PROBABILITY), min(multiplier, LARGEST_MULTIPLIER)
        if parts.is_replaced:
            sampled = pld.from_gaussian_mechanism(
                multiplier,
                value_discretization_interval=step,
                sampling_prob=probability,
                neighboring_relation=NeighboringRelation.REPLACE_ONE,
            )
        else:
            sampled = sampled_gaussian(probability, multiplier, step)
        total = total.compose(_self_composed(sampled, count))
    for epsilon, count in sorted(parts.laplace.items()):
        laplace = pld.from_laplace_mechanism(1 / max(epsilon, LEAST_EPSILON), value_discretization_interval=step)
        total = total.compose(_self_composed(laplace, count))
    for epsilon, counts in sorted(groups.items()):
        first, probabilities = response_losses(epsilon, counts)
        rounded: dict[int, float] = defaultdict(float)
        for offset, probability in enumerate(probabilities):  # losses between grid points are rounded up
            rounded[math.ceil((first + offset) * (epsilon / step))] += float(probability)
        total = total.compose(pld.PrivacyLossDistribution.create_from_rounded_probability(rounded, DROPPED_MASS, step))
    return total


def grid_step(parts: Composition, groups: dict[float, dict[int, int]]) -> float:
    """Return the step of the grid of losses: exact for randomised responses of one epsilon without other mechanisms."""
    if len(groups) == 1 and parts.is_pure and not parts.laplace:
        return next(iter(groups))
    points = 0.0
    for probability, multiplier in parts.sampled:  # roughly the losses that a sampled Gaussian's grid covers, both ways
        noise = min(multiplier, LARGEST_MULTIPLIER)
        odds = math.log(probability) - math.log1p(-probability)
        points += 2 * float(np.logaddexp(0.0, 0.5 / noise / noise + 10 / noise + odds))
    points *= 2 if parts.is_replaced else 1
    return max(FINEST_GRID, _range_of_losses(parts) / GRID_POINTS, points / MOST_POINTS)


def _range_of_losses(parts: Composition) -> float:
    """Return roughly the largest relevant privacy loss.

    It sets only the grid's width, not the validity of the bound.
    """
    mu = parts.mu()
    largest = mu * mu / 2 + 10 * mu
    for (probability, multiplier), count in parts.sampled.items():
        single = min(1 / multiplier / multiplier, 1e9)
        excess = single + 2 * math.log(probability) if single > 500 else math.log1p(probability**2 * math.expm1(single))
        largest += count * max(excess, 0.0) + 10 * math.sqrt(2 * count * max(excess, 0.0)) + math.sqrt(single)
    pure = parts.pure_mu
    return largest + min(parts.pure_epsilon, pure * pure / 2 + 9 * pure)


def _self_composed(losses: pld.PrivacyLossDistribution, count: int) -> pld.PrivacyLossDistribution:
    """Compose `count` uses of one kind."""
    if count < LONG:
        return losses.self_compose(count)
    root = math.isqrt(count)
    total = losses.self_compose(root).self_compose(root)
    rest = count - root * root
    return total.compose(losses.self_compose(rest)) if rest else total


def _response_groups(parts: Composition) -> dict[float, dict[int, int]]:
    """Return {epsilon: {choices: count}}; epsilons equal to nine digits are replaced by the largest of them.

    This cannot underestimate: a response of smaller epsilon is a post-processing of one of larger epsilon over the same
    choices.
    """
    by_epsilon: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for epsilon, choices in parts.response:
        by_epsilon[f"{epsilon:.9g}"].append((epsilon, choices))
    groups: dict[float, dict[int, int]] = {}
    for members in by_epsilon.values():
        counts: dict[int, int] = defaultdict(int)
        for member in members:
            counts[member[1]] += parts.response[member]
        groups[max(epsilon for epsilon, _ in members)] = dict(sorted(counts.items()))
    return groups


def sampled_gaussian(probability: float, multiplier: float, step: float) -> pld.PrivacyLossDistribution:
    """Return the losses of one Poisson-sampled Gaussian, for an added or removed record; equal to dp_accounting's.

    Args:
        probability: in (0, 1), the sampling probability of every record.
        multiplier: > 0, noise over one record's contribution.
        step: of the grid of privacy losses, > 0.
    """
    pmfs = []
    for kind in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        loss = GaussianPrivacyLoss(multiplier, sampling_prob=probability, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
        deltas = hockey_stick(loss, probability, multiplier, np.arange(low, high + 1) * step, kind)
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas))
    return pld.PrivacyLossDistribution(*pmfs)


def hockey_stick(
    loss: GaussianPrivacyLoss,
    q: float,
    multiplier: float,
    epsilons: NDArray[np.floating[Any]],
    kind: AdjacencyType,
) -> NDArray[np.floating[Any]]:
    """Return the hockey-stick divergence at each epsilon, P[loss >= eps] - e^eps Q[loss >= eps].

    With L(x) = -(x + 1/2) / multiplier^2 the loss of the unsampled Gaussian, the sampled loss is log(1 - q + q e^L(x))
    for a removed record, and its negative at -x for an added one.
    """
    sign = 1.0 if kind is AdjacencyType.REMOVE else -1.0
    edge = math.log1p(-q)  # no x has a loss below it (for an added record: above its negative)
    inner = sign * epsilons > edge
    # Epsilons outside are negative, for a removed record; for the others e^eps cannot overflow
    deltas = np.where(inner, 0.0, -np.expm1(np.minimum(epsilons, 0.0)) if kind is AdjacencyType.REMOVE else 0.0)
    eps = sign * epsilons[inner]
    with np.errstate(divide="ignore"):  # at the edge itself the unsampled loss is minus infinity
        unsampled = eps - math.log(q) + np.log1p(-np.exp(edge - eps))
    x = sign * (-0.5 - unsampled * multiplier**2)
    deltas[inner] = loss.mu_upper_cdf(x) - np.exp(epsilons[inner] + loss.mu_lower_log_cdf(x))
    return np.clip(deltas, 0.0, 1.0)
