"""Largest epsilon of a randomised response that finite-precision random numbers can realise.

A response flips if 62 random bits are below F 2^62, rounded to an integer, with F = (k - 1) / (e^epsilon + k - 1): F is
realised to 2^-63, a relative 2^-63 / F. If the flip were drawn by comparing a float64 with 1 - F, there would be no
flips at all from F of about 2^-53 on: the identity, whose epsilon is infinite. With F >= 2^-32 the relative error is
below 2^-31, and drawing one of the k - 1 others from 63 bits adds (k - 1) 2^-63: the realised ratio of two
probabilities is e^epsilon to within a factor of e^(2^-30), 1e-9.
"""

from __future__ import annotations

import math

from bench.errors import BudgetError

LEAST_FLIP = 2.0**-32
"""Smallest flip probability that is drawn accurately enough."""


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
            f"epsilon {epsilon:g} for a randomised response over {choices} choices: answers would flip less often than "
            f"once in 2^32, too rare to be drawn faithfully; expected at most {most:.5g}, or inf for no noise at all"
        )
