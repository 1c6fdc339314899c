"""Ledger events of the common mechanisms, as dp_accounting defines them, and the limits of randomised response.

dp_accounting needs scipy and is imported only when an event is made.

A randomised response flips if 62 random bits are below F 2^62, rounded to an integer, with the flip probability
F = (k - 1) / (e^epsilon + k - 1): F is realised to 2^-63, a relative 2^-63 / F. If the flip were drawn by comparing a
float64 with 1 - F, there would be no flips at all from F of about 2^-53 on: the identity, whose epsilon is infinite.
With F >= 2^-32 the relative error is below 2^-31, and drawing one of the k - 1 others from 63 bits adds
(k - 1) 2^-63: the realised ratio of two probabilities is e^epsilon to within a factor of e^(2^-30), 1e-9.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.errors import BudgetError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LEAST_FLIP = 2.0**-32
"""Smallest flip probability of a randomised response that is drawn accurately enough."""


def gaussian_event(multiplier: float) -> DpEvent:
    """Return the event of the Gaussian mechanism; without noise, of an unprotected use.

    Args:
        multiplier: >= 0, the noise's standard deviation over the L2 sensitivity.

    >>> gaussian_event(2.0), gaussian_event(0.0)
    (GaussianDpEvent(noise_multiplier=2.0), NonPrivateDpEvent())
    """
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def laplace_event(multiplier: float) -> DpEvent:
    """Return the event of the Laplace mechanism; without noise, of an unprotected use.

    Args:
        multiplier: >= 0, the noise's scale over the L1 sensitivity.
    """
    from dp_accounting import LaplaceDpEvent

    return LaplaceDpEvent(multiplier) if multiplier > 0 else unprotected_event()


def unprotected_event() -> DpEvent:
    """Return the event of an unprotected use, whose epsilon is infinite."""
    from dp_accounting import NonPrivateDpEvent

    return NonPrivateDpEvent()


def randomised_response_event(epsilon: float, choices: int) -> DpEvent:
    """Return the event of one response drawn by `mechanisms.randomised_response` over `choices` candidates.

    dp_accounting's noise parameter is the probability p of a uniform draw that may hit the true response,
    p = k / (e^epsilon + k - 1). For an epsilon > 0 it is kept below 1, so that no response is accounted as epsilon 0.

    Args:
        epsilon: in [0, `most_response_epsilon(choices)`], or infinity: a response without noise.
        choices: k >= 1.

    Raises:
        BenchError: a value outside these ranges, including NaN.

    >>> round(randomised_response_event(math.log(7), 4).noise_parameter, 12)
    0.4
    """
    from dp_accounting import RandomizedResponseDpEvent

    check_response_epsilon(epsilon, choices)
    odds = math.exp(-epsilon)
    noise = choices * odds / (1 + (choices - 1) * odds)
    return RandomizedResponseDpEvent(min(noise, 1 - 2**-53) if epsilon > 0 else 1.0, choices)


def most_response_epsilon(choices: int) -> float:
    """Return the largest finite epsilon of a randomised response over k choices: log((2^32 - 1) (k - 1)).

    Args:
        choices: k >= 1; with one choice the response reveals nothing, and any epsilon is allowed.

    Raises:
        BenchError: `choices` below 1.

    >>> round(most_response_epsilon(2), 2), round(most_response_epsilon(10), 2), most_response_epsilon(1)
    (22.18, 24.38, inf)
    """
    if choices < 1:
        raise BudgetError(f"a randomised response over {choices} choices; expected at least 1")
    return math.log((1 / LEAST_FLIP - 1) * (choices - 1)) if choices > 1 else math.inf


def check_response_epsilon(epsilon: float, choices: int) -> None:
    """Raise BenchError for an epsilon that cannot be drawn accurately. Infinity, a response without noise, is allowed.

    Raises:
        BenchError: `epsilon` negative or NaN, or finite and above `most_response_epsilon(choices)`; `choices` below 1.
    """
    if not epsilon >= 0:
        raise BudgetError(f"the epsilon of a randomised response is {epsilon}; expected a number >= 0 or inf")
    most = most_response_epsilon(choices)
    if most < epsilon < math.inf:
        raise BudgetError(
            f"epsilon {epsilon:g} for a randomised response over {choices} choices: responses would flip less often "
            f"than once in 2^32, too rare to be drawn accurately; expected at most {most:.5g}, or inf for no noise"
        )
