"""Calibration: the least noise, or the most steps, that meet a budget. Only values whose cost was read come back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from bench.errors import BudgetError
from bench.privacy.budget import Budget

WIDEN = 60
GUESSES = 8
"""Of the interval that the parameter lies in; most costs of the bench need three or four."""
FARTHEST = 100.0
"""A guess that many e-folds away is none."""
GENEROUS = 1e4
"""A budget above which the largest count is tried first: on the way to it every cost would be read in vain."""
Parameters = TypeVar("Parameters", bound=Any)


class Unreachable(BudgetError):
    """No parameter meets the budget."""


def calibrate_noise(
    cost: Callable[[float], float], budget: float, low: float, high: float, rtol: float = 1e-3
) -> float:
    """The least noise that meets a budget: of a parameter whose cost falls as it grows, the smallest affordable value.

    Args:
        cost: parameter > 0 to cost; infinity and NaN count as over the budget.
        budget: the cost allowed.
        low, high: where to look first, 0 < low < high; widened by factors of two, up to 2^60 times, where needed.
        rtol: relative width at which the search stops.

    Returns:
        x with `cost(x) <= budget`, as evaluated, and `cost(y) > budget` for some y >= x / (1 + rtol); or the lowest
        parameter tried, where even that one meets the budget.

    Raises:
        Unreachable: the highest parameter tried still costs more than the budget.

    >>> round(calibrate_noise(lambda sigma: 1 / sigma, 0.25, 0.1, 1.0), 2)
    4.0
    """
    if not (0 < low < high and rtol > 0):
        raise ValueError(f"expected 0 < low < high and rtol > 0, got low={low}, high={high}, rtol={rtol}")
    read = cache(cost)
    for _ in range(WIDEN):
        if read(high) <= budget:
            break
        low, high = high, 2 * high
    else:
        raise Unreachable(f"a budget of {budget:.6g} cannot be met: even parameter {low:.3g} costs {read(low):.6g}")
    for _ in range(WIDEN):
        if not read(low) <= budget:
            break
        low, high = low / 2, low
    else:
        return high
    return _where_bisection_ends(read, budget, low, high, rtol)


def _where_bisection_ends(cost: Callable[[float], float], budget: float, low: float, high: float, rtol: float) -> float:
    """What halving [low, high] gives, for a cost that falls: the upper end of the last interval, with fewer costs read.

    A secant of log cost over log parameter guesses in which of the intervals that halving may end with the budget is
    met; costs are read at the ends of that one alone. Where `GUESSES` do not find it, what they left is halved.

    Args:
        cost: cheap where it was read before; above the budget at `low` and not above it at `high`.
    """
    over, met = low, high
    last, latest = low, high
    for _ in range(GUESSES):
        guess = _secant(cost, budget, last, latest)
        if not over < guess < met:
            guess = math.sqrt(over * met)
        below, above = _last_interval(low, high, rtol, partial(operator.le, guess))
        trial = above if above < met else below
        if trial == over:
            return met
        last, latest = latest, trial
        over, met = (over, trial) if cost(trial) <= budget else (trial, met)
    return _last_interval(low, high, rtol, lambda m: m >= met or (m > over and cost(m) <= budget))[1]


def _last_interval(low: float, high: float, rtol: float, falls: Callable[[float], bool]) -> tuple[float, float]:
    """The interval that halving ends with; `falls` says of a middle whether the wanted parameter is at most that."""
    while high > low * (1 + rtol):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if falls(middle) else (middle, high)
    return low, high


def _secant(cost: Callable[[float], float], budget: float, first: float, second: float) -> float:
    """Where the power law through two parameters' costs meets the budget; NaN where there is none."""
    values = cost(first), cost(second), budget
    if not all(0 < value < math.inf for value in values) or values[0] == values[1]:
        return math.nan
    slope = math.log(second / first) / math.log(values[1] / values[0])
    exponent = slope * math.log(budget / values[1])
    return second * math.exp(exponent) if abs(exponent) < FARTHEST else math.nan


def largest_count(cost: Callable[[int], float], budget: float, high: int) -> int:
    """The largest count that meets a budget, up to `high`, for a cost that grows with the count.

    Args:
        cost: count >= 1 to cost; infinity and NaN count as over the budget.
        budget: the cost allowed.
        high: >= 1, the largest count wanted.

    Returns:
        n in [1, high] with `cost(n) <= budget`, as evaluated, and `cost(n + 1) > budget` unless n is `high`.

    Raises:
        Unreachable: not even one is allowed.

    >>> largest_count(lambda steps: 0.1 * steps, 1.05, 100)
    10
    """
    if high < 1:
        raise ValueError(f"expected high >= 1, got {high}")
    if not cost(1) <= budget:
        raise Unreachable(f"a budget of {budget:.6g} does not allow a single use, which costs {cost(1):.6g}; add noise")
    if budget > GENEROUS and cost(high) <= budget:
        return high
    allowed, refused = 1, high + 1
    while allowed < high:
        trial = min(2 * allowed, high)
        if not cost(trial) <= budget:
            refused = trial
            break
        allowed = trial
    while refused - allowed > 1:
        middle = (allowed + refused) // 2
        if cost(middle) <= budget:
            allowed = middle
        else:
            refused = middle
    return allowed


def noise_or_steps(
    parameters: Parameters, budget: Budget, cost: Callable[[Parameters], float], noise: str, most: int
) -> Parameters:
    """Calibration: parameters with the noise, or the number of steps, at which they just meet a budget.

    Args:
        parameters: a frozen dataclass with the fields `steps` and `noise`.
        budget: infinity takes the noise away; none, or --solve none, leaves the parameters as they are.
        cost: the epsilon of parameters that `budget` is held against, at its delta and for its unit.
        noise: the field that holds the noise, as a multiple of the sensitivity.
        most: steps, at the most.

    Raises:
        BenchError: the budget cannot be met, with the reason.
    """
    if budget.epsilon is not None and math.isinf(budget.epsilon):
        return replace(parameters, **{noise: 0.0})
    if budget.epsilon is None or budget.solve == "none":
        return parameters
    try:
        if budget.solve == "steps":
            count = largest_count(lambda n: cost(replace(parameters, steps=n)), budget.epsilon, most)
            return replace(parameters, steps=count)
        found = calibrate_noise(lambda z: cost(replace(parameters, **{noise: z})), budget.epsilon, 0.5, 8.0)
        return replace(parameters, **{noise: found})
    except Unreachable as error:
        raise BudgetError(f"--epsilon {budget.epsilon:g} --solve {budget.solve}: {error}") from None
