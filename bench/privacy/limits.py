"""How weak a randomised response may be before the random numbers it is drawn with no longer deliver it.

Answers compare a float64 uniform, a multiple of 2^-53, with the chance to keep the label, which lies in [1/2, 1) and is
a multiple of 2^-53 as well. What is realised differs from F = (k - 1) / (e^epsilon + k - 1), the chance to flip, by
half a unit of 1 + (k - 1) e^-epsilon and half a unit of its inverse: less than 2^-52. So the flips are wrong by a
share of 2^-52 / F at most, and from F of about 2^-53 on there are none: the identity, whose epsilon is infinite.
With F >= 2^-32 the share is below 2^-20; drawing one of the k - 1 others from 32 random bits adds (k - 1) / 2^32. The
realised ratio of two probabilities is then e^epsilon to within a factor of e^(2^-19), 2e-6, for up to 4,000 candidates.
"""

from __future__ import annotations

import math

from bench.errors import BenchError

LEAST_FLIP = 2.0**-32
"""The smallest chance to flip that is drawn faithfully enough."""


def most_response_epsilon(choices: int) -> float:
    """The largest finite epsilon of a randomised response over k choices: log((2^32 - 1) (k - 1)).

    Args:
        choices: k >= 1; one choice says nothing, and any epsilon will do.

    Raises:
        BenchError: `choices` below 1.

    >>> round(most_response_epsilon(2), 2), round(most_response_epsilon(10), 2), most_response_epsilon(1)
    (22.18, 24.38, inf)
    """
    if choices < 1:
        raise BenchError(f"a randomised response over {choices} choices; expected at least 1")
    return math.log((1 / LEAST_FLIP - 1) * (choices - 1)) if choices > 1 else math.inf


def check_response_epsilon(epsilon: float, choices: int) -> None:
    """Refuse an epsilon that no float64 uniform can deliver. Infinity, an answer without noise, passes.

    Raises:
        BenchError: `epsilon` negative or NaN, or finite and above `most_response_epsilon(choices)`; `choices` below 1.
    """
    if not epsilon >= 0:
        raise BenchError(f"the epsilon of a randomised response is {epsilon}; expected a number >= 0 or inf")
    most = most_response_epsilon(choices)
    if most < epsilon < math.inf:
        raise BenchError(
            f"epsilon {epsilon:g} for a randomised response over {choices} choices: answers would flip less often than "
            f"once in 2^32, which random numbers of 53 bits do not deliver; expected at most {most:.5g}, or inf for "
            "answers without noise"
        )
