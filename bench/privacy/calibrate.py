"""Calibration of the noise, or of the number of steps, to a budget.

Every returned value was itself evaluated, so that its cost is known to be within the budget.
"""

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
"""Most times that the search range is widened by a factor of two, in each direction."""
GUESSES = 8
"""Most guesses of the interval that contains the parameter; most costs of the bench need three or four."""
FARTHEST = 100.0
"""Guesses more than this many e-folds away are discarded."""
GENEROUS = 1e4
"""Budgets above this try the largest count first, as the intermediate evaluations would be wasted."""
Parameters = TypeVar("Parameters", bound=Any)


class Unreachable(BudgetError):
    """Raised if no parameter meets the budget."""


def calibrate_noise(
    cost: Callable[[float], float], budget: float, low: float, high: float, rtol: float = 1e-3
) -> float:
    """Return the smallest noise that meets a budget, for a cost that decreases with the noise.

    Args:
        cost: function from noise > 0 to cost, such as epsilon; infinity and NaN count as over the budget.
        budget: the largest allowed cost.
        low, high: initial search range, 0 < low < high; widened by factors of two, up to 2^60 times, if needed.
        rtol: relative width at which the search stops.

    Returns:
        x with `cost(x) <= budget`, as evaluated, and `cost(y) > budget` for some y >= x / (1 + rtol); or the lowest
        parameter tried, if that also meets the budget.

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
    return _bisect(read, budget, low, high, rtol)


def _bisect(cost: Callable[[float], float], budget: float, low: float, high: float, rtol: float) -> float:
    """Return the result of bisecting [low, high] for a decreasing cost, with fewer evaluations than bisection.

    A secant of log cost over log parameter guesses the final bisection interval that contains the solution; costs are
    evaluated at the ends of that interval only. If `GUESSES` guesses do not find it, the remaining range is bisected.

    Args:
        cost: cheap at values evaluated before; above the budget at `low` and not above it at `high`.
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
    """Return the interval at which bisection ends; `falls(middle)` is True if the solution is at most `middle`."""
    while high > low * (1 + rtol):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if falls(middle) else (middle, high)
    return low, high


def _secant(cost: Callable[[float], float], budget: float, first: float, second: float) -> float:
    """Return where the power law through two evaluated parameters meets the budget; NaN if nowhere."""
    values = cost(first), cost(second), budget
    if not all(0 < value < math.inf for value in values) or values[0] == values[1]:
        return math.nan
    slope = math.log(second / first) / math.log(values[1] / values[0])
    exponent = slope * math.log(budget / values[1])
    return second * math.exp(exponent) if abs(exponent) < FARTHEST else math.nan


def largest_count(cost: Callable[[int], float], budget: float, high: int) -> int:
    """Return the largest count that meets a budget, up to `high`, for a cost that grows with the count.

    Args:
        cost: function from count >= 1 to cost, such as epsilon; infinity and NaN count as over the budget.
        budget: the largest allowed cost.
        high: >= 1, the largest allowed count.

    Returns:
        n in [1, high] with `cost(n) <= budget`, as evaluated, and `cost(n + 1) > budget` unless n is `high`.

    Raises:
        Unreachable: a count of 1 already exceeds the budget.

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
    """Calibrate the noise, or the number of steps, so that the parameters just meet a budget.

    Args:
        parameters: a frozen dataclass with the fields `steps` and `noise`.
        budget: infinity removes the noise; no budget, or --solve none, leaves the parameters unchanged.
        cost: epsilon of given parameters that is compared with `budget`, at its delta and for its unit.
        noise: name of the field with the noise, as a multiple of the sensitivity.
        most: largest number of steps.

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
