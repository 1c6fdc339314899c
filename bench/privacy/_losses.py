"""Composition of privacy loss distributions: the tightest bound, for as long as its work and its rounding are bounded.

- A Gaussian's noise multiplier is already relative to the L2 sensitivity between the neighbours that are meant (see
  `ledger`), so Gaussian losses are always built with dp_accounting's ADD_OR_REMOVE_ONE, whose sensitivity is 1;
  its REPLACE_ONE would double it. Only Poisson-sampled Gaussians under replacement use REPLACE_ONE, because their
  multiplier is relative to one record's contribution.
- Randomised responses are built from their three privacy losses, under replacement: dp_accounting 0.6.0 ignores the
  count of a self-composed `RandomizedResponseDpEvent`, and under REPLACE_SPECIAL reports too little.
- Losses lie on a grid, those between grid points are spread over the two neighbours so that no delta falls. The grid
  has about `GRID_POINTS` points over what matters, and a step of `FINEST_GRID` at least.
- Fourier transforms round: `rounding_error` bounds what that may do to a delta (measured: 200 times less), and a delta
  that is not 100 times as large is left to other bounds.
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
"""Beyond about 2.8e8 the grid's step is above 709, whose exponential dp_accounting forms, and which is no float."""
LARGEST_LAPLACE = 300.0
"""Pure epsilon of one use; of larger ones dp_accounting's deltas are now and then out of order by a rounding error."""
MOST_RESPONSES, MOST_RESPONSE_WORK = 1_000_000, 20_000_000
"""Randomised responses; and of those that share an epsilon, times how many numbers of choices they have."""
MOST_KINDS = 100
MOST_POINTS = 2_000_000
"""Points of all kinds of sampled Gaussians together; else the grid is coarser. Under replacement each takes 4
microseconds."""
LONG = 20_000
"""Uses of a kind from which on they are composed in two stages: the window of one stage grows with their number."""
LARGEST_MULTIPLIER, LEAST_PROBABILITY, LEAST_EPSILON = 1e6, 1e-12, 1e-8
"""Weaker mechanisms are composed as if they were these, which cannot understate: far below the grid's step."""


def why_not(parts: Composition, delta: float) -> str:
    """Why the losses of `parts` are not composed at this delta, in words; "" if they are."""
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
    """Upper bound on what rounding takes from a delta."""
    return DROPPED_MASS + 1e-16 * parts.uses


def composed_epsilon(parts: Composition, delta: float) -> float:
    """Epsilon at `delta` by the privacy loss distribution of all `parts`, where `why_not` has no objection."""
    return _read_epsilon(_composed_losses(parts, parts.mu(), _reach(parts)), delta - rounding_error(parts))


def _read_epsilon(losses: pld.PrivacyLossDistribution, delta: float) -> float:
    """Smallest epsilon at `delta`; dp_accounting's own inversion overflows to infinity for epsilons above 700."""

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
    """About the largest privacy loss that can matter. Only the grid's width depends on it, not what is proved."""
    mu = parts.mu()
    reach = mu * mu / 2 + 10 * mu
    for (probability, multiplier), count in parts.sampled.items():
        single = min(1 / multiplier / multiplier, 1e9)
        excess = single + 2 * math.log(probability) if single > 500 else math.log1p(probability**2 * math.expm1(single))
        reach += count * max(excess, 0.0) + 10 * math.sqrt(2 * count * max(excess, 0.0)) + math.sqrt(single)
    root = parts.pure_root
    return reach + min(parts.pure_sum, root * root / 2 + 9 * root)


def _composed_losses(parts: Composition, mu: float, reach: float) -> pld.PrivacyLossDistribution:
    """The privacy loss distribution of everything in `parts`, in an order that depends on the parts alone."""
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
    """One use of a Poisson-sampled Gaussian."""
    if relation == NeighboringRelation.ADD_OR_REMOVE_ONE and probability < 1:
        return sampled_gaussian(probability, multiplier, step)
    return pld.from_gaussian_mechanism(
        multiplier, value_discretization_interval=step, sampling_prob=probability, neighboring_relation=relation
    )


def _width(probability: float, multiplier: float) -> float:
    """About the losses that a sampled Gaussian's grid covers, in both directions."""
    noise = min(multiplier, LARGEST_MULTIPLIER)
    return 2 * float(
        np.logaddexp(0.0, 0.5 / noise / noise + 10 / noise + math.log(probability) - math.log1p(-probability))
    )


def _power(losses: pld.PrivacyLossDistribution, count: int) -> pld.PrivacyLossDistribution:
    """`count` uses of one kind."""
    if count < LONG:
        return losses.self_compose(count)
    root = math.isqrt(count)
    total = losses.self_compose(root).self_compose(root)
    rest = count - root * root
    return total.compose(losses.self_compose(rest)) if rest else total


def _response_groups(parts: Composition) -> dict[float, dict[int, int]]:
    """{epsilon: {choices: count}}, with epsilons equal to nine digits taken as the largest of them.

    A response of smaller epsilon is a post-processing of one of larger epsilon over the same choices, so this is sound.
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
    """Composed randomised responses on the grid; losses between grid points are rounded up."""
    first, probabilities = response_losses(each, counts)
    rounded: dict[int, float] = defaultdict(float)
    ratio = each / step
    for offset, probability in enumerate(probabilities):
        rounded[math.ceil((first + offset) * ratio)] += float(probability)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(rounded, DROPPED_MASS, step)
