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
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize

from bench.privacy._bounds import DROPPED_MASS, response_losses
from bench.privacy._sampled_gaussian import sampled_gaussian
from bench.privacy.composition import Composition

FINEST_GRID = 1e-4
GRID_POINTS = 400_000
WIDEST_LOSS = 2e8
"""Largest loss: beyond about 2.8e8 the grid's step exceeds 709, whose exponential dp_accounting computes and
overflows."""
LARGEST_LAPLACE = 300.0
"""Largest pure epsilon of one use; above it rounding errors occasionally put dp_accounting's deltas out of order."""
MOST_RESPONSES, MOST_RESPONSE_WORK = 1_000_000, 20_000_000
"""Most randomised responses; and for those with the same epsilon, most responses times distinct numbers of choices."""
MOST_KINDS = 100
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
    responses = sum(parts.response.values())
    if parts.kinds > MOST_KINDS:
        return f"{parts.kinds:,} kinds of noise"
    work = sum(len(counts) * sum(counts.values()) for counts in _response_groups(parts).values())
    if responses > MOST_RESPONSES or work > MOST_RESPONSE_WORK:
        return f"{_amount(responses)} randomised responses"
    if not _reach(parts) < WIDEST_LOSS:
        return f"privacy losses of {WIDEST_LOSS:g} and more"
    if max(parts.laplace, default=0.0) > LARGEST_LAPLACE:
        return f"Laplace noise of less than 1 / {LARGEST_LAPLACE:g} of the sensitivity"
    if 100 * rounding_error(parts) > delta:
        return f"{_amount(parts.uses)} use{'s' * (parts.uses > 1)} at delta {delta:g}"
    return ""


def _amount(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"{float(count):.3g}"


def rounding_error(parts: Composition) -> float:
    """Return an upper bound on the reduction of a delta by rounding."""
    return DROPPED_MASS + 1e-16 * parts.uses


def composed_epsilon(parts: Composition, delta: float) -> float:
    """Return epsilon at `delta` by the privacy loss distribution of all `parts`; requires that `why_not` returns ""."""
    return _read_epsilon(_composed_losses(parts, parts.mu(), _reach(parts)), delta - rounding_error(parts))


def _read_epsilon(losses: pld.PrivacyLossDistribution, delta: float) -> float:
    """Return the smallest epsilon at `delta`; dp_accounting's own inversion overflows for epsilons above 700."""

    def excess(at: float) -> float:
        return math.log(max(losses.get_delta_for_epsilon(at), 1e-300) / delta)

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return low
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 4 * WIDEST_LOSS:
            return math.inf
    return optimize.brentq(excess, low, high, xtol=1e-10) + 1e-10


def _reach(parts: Composition) -> float:
    """Return roughly the largest relevant privacy loss.

    It sets only the grid's width, not the validity of the bound.
    """
    mu = parts.mu()
    reach = mu * mu / 2 + 10 * mu
    for (probability, multiplier), count in parts.sampled.items():
        single = min(1 / multiplier / multiplier, 1e9)
        excess = single + 2 * math.log(probability) if single > 500 else math.log1p(probability**2 * math.expm1(single))
        reach += count * max(excess, 0.0) + 10 * math.sqrt(2 * count * max(excess, 0.0)) + math.sqrt(single)
    root = parts.pure_root
    return reach + min(parts.pure_sum, root * root / 2 + 9 * root)


def _composed_losses(parts: Composition, mu: float, reach: float) -> pld.PrivacyLossDistribution:
    """Return the privacy loss distribution of all parts, composed in an order that depends only on the parts."""
    groups = _response_groups(parts)
    exact = len(groups) == 1 and parts.pure and not parts.laplace
    points = sum(_width(*kind) for kind in parts.sampled) * (2 if parts.replaced else 1)
    step = next(iter(groups)) if exact else max(FINEST_GRID, reach / GRID_POINTS, points / MOST_POINTS)
    relation = NeighboringRelation.REPLACE_ONE if parts.replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    total = pld.identity(value_discretization_interval=step)
    if mu > 0:
        noise = min(1 / mu, LARGEST_MULTIPLIER)
        total = total.compose(pld.from_gaussian_mechanism(noise, value_discretization_interval=step))
    for (probability, multiplier), count in sorted(parts.sampled.items()):
        sampled = _sampled_losses(
            max(probability, LEAST_PROBABILITY), min(multiplier, LARGEST_MULTIPLIER), step, relation
        )
        total = total.compose(_power(sampled, count))
    for each, count in sorted(parts.laplace.items()):
        laplace = pld.from_laplace_mechanism(1 / max(each, LEAST_EPSILON), value_discretization_interval=step)
        total = total.compose(_power(laplace, count))
    for each, counts in sorted(groups.items()):
        total = total.compose(_response_pld(each, counts, step))
    return total


def _sampled_losses(
    probability: float, multiplier: float, step: float, relation: NeighboringRelation
) -> pld.PrivacyLossDistribution:
    """Return the losses of one use of a Poisson-sampled Gaussian."""
    if relation == NeighboringRelation.ADD_OR_REMOVE_ONE and probability < 1:
        return sampled_gaussian(probability, multiplier, step)
    return pld.from_gaussian_mechanism(
        multiplier, value_discretization_interval=step, sampling_prob=probability, neighboring_relation=relation
    )


def _width(probability: float, multiplier: float) -> float:
    """Return roughly the range of losses that a sampled Gaussian's grid covers, in both directions."""
    noise = min(multiplier, LARGEST_MULTIPLIER)
    return 2 * float(
        np.logaddexp(0.0, 0.5 / noise / noise + 10 / noise + math.log(probability) - math.log1p(-probability))
    )


def _power(losses: pld.PrivacyLossDistribution, count: int) -> pld.PrivacyLossDistribution:
    """Compose `count` uses of one kind."""
    if count < LONG:
        return losses.self_compose(count)
    root = math.isqrt(count)
    total = losses.self_compose(root).self_compose(root)
    rest = count - root * root
    return total.compose(losses.self_compose(rest)) if rest else total


def _response_groups(parts: Composition) -> dict[float, dict[int, int]]:
    """Return {epsilon: {choices: count}}; epsilons equal to nine digits are replaced by the largest of them.

    This is sound, as a response of smaller epsilon is a post-processing of one of larger epsilon over the same choices.
    """
    by_epsilon: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each, choices in parts.response:
        by_epsilon[f"{each:.9g}"].append((each, choices))
    groups: dict[float, dict[int, int]] = {}
    for members in by_epsilon.values():
        counts: dict[int, int] = defaultdict(int)
        for member in members:
            counts[member[1]] += parts.response[member]
        groups[max(each for each, _ in members)] = dict(sorted(counts.items()))
    return groups


def _response_pld(each: float, counts: dict[int, int], step: float) -> pld.PrivacyLossDistribution:
    """Return composed randomised responses on the grid; losses between grid points are rounded up."""
    first, probabilities = response_losses(each, counts)
    rounded: dict[int, float] = defaultdict(float)
    ratio = each / step
    for offset, probability in enumerate(probabilities):
        rounded[math.ceil((first + offset) * ratio)] += float(probability)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(rounded, DROPPED_MASS, step)
