"""One-run audit: a lower bound on epsilon from a single training run with many canaries.

Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. Of m canaries each is put into the
training data by its own fair coin. The auditor guesses r of the coins, r fixed beforehand, and abstains on the others.
If training is (epsilon, delta)-DP for adding or removing one record, then with q = e^epsilon / (1 + e^epsilon) and
f(v) = P[Binomial(r, q) >= v],

    P[at least v right] <= f(v) + 2 m delta max over i in 1..v of (f(v - i) - f(v)) / i.

Every epsilon for which the right side is below 1 - confidence is refuted. The bound is for one audit: divide 1 -
confidence by k when using k of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.core.verdict import is_refuted
from bench.privacy.budget import Relation, Unit, epsilon_from_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray  # boards import this file without numpy

CONFIDENCE = 0.95
"""Default confidence of an audit's bound."""
LARGEST = 60.0
"""Largest epsilon that is searched."""
_HALVINGS = 60


def p_value(epsilon: float, guesses: int, correct: int, canaries: int, delta: float) -> float:
    """Return a bound, in [0, 1], on the probability of `correct` or more right guesses under (epsilon, delta)-DP.

    Args:
        epsilon: >= 0.
        guesses: r, of which `correct` were right.
        canaries: m >= r, including those without a guess.
        delta: in [0, 1).
    """
    import numpy as np
    from scipy.stats import binom  # takes a second to import, and most commands do not need it

    tail = binom.sf(np.arange(correct + 1) - 1, guesses, 1 / (1 + math.exp(-epsilon)))
    bound = float(tail[correct])
    if delta and correct:
        steps = np.arange(1, correct + 1)
        bound += 2 * canaries * delta * float(np.max((tail[correct - steps] - bound) / steps))
    return min(1.0, bound)


def one_run_epsilon(
    guesses: int, correct: int, canaries: int, delta: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """Return the epsilon that the guesses refute, >= 0: training is not (epsilon', delta)-DP for any epsilon' below it.

    Args:
        guesses: r >= 1, fixed before the scores were seen.
        correct: 0 to `guesses`.
        canaries: m >= `guesses`.
        delta: in [0, 1).
        confidence: in (0, 1); for a private training at most a share 1 - confidence of audits exceed its epsilon.

    Raises:
        ValueError: an argument out of its range.

    >>> [round(one_run_epsilon(n, n, n), 2) for n in (20, 100, 1000, 10_000)]
    [1.82, 3.49, 5.81, 8.11]
    """
    if not (0 <= correct <= guesses <= canaries and guesses >= 1):
        raise ValueError(f"{correct} right of {guesses} guesses on {canaries} canaries: expected an ascending order")
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise ValueError(f"delta {delta}, confidence {confidence}: expected 0 <= delta < 1 and 0 < confidence < 1")
    tail = 1 - confidence
    if p_value(0.0, guesses, correct, canaries, delta) >= tail:
        return 0.0
    low, high = 0.0, LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if p_value(middle, guesses, correct, canaries, delta) < tail:
            low = middle
        else:
            high = middle
    return low


@cache  # a sweep needs the value for every audit
def ceiling(guesses: int, canaries: int, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Return the detection limit of the audit: the bound if every guess is right."""
    return one_run_epsilon(guesses, guesses, canaries, delta, confidence)


def correct_guesses(scores: NDArray[np.floating[Any]], coins: NDArray[np.bool_], guesses: int) -> int:
    """Count the right guesses: the highest scores are guessed members, as many lowest scores non-members.

    For an odd number there is one more member guess. Equal scores keep the canaries' order, which is independent of the
    coins.

    Args:
        scores: (m,), higher for canaries that are more likely members.
        coins: (m,), true for the canaries that are members.
        guesses: 1 to m.

    Raises:
        ValueError: a score is NaN, or the shapes differ.
    """
    import numpy as np

    if scores.shape != coins.shape or not 1 <= guesses <= len(scores):
        raise ValueError(f"{guesses} guesses, {scores.shape} scores, {coins.shape} coins: expected r <= m and (m,)")
    if np.isnan(scores).any():
        raise ValueError("a canary's score is NaN")
    order = np.argsort(-scores, kind="stable")
    out = guesses // 2
    return int(coins[order[: guesses - out]].sum() + (~coins[order[len(order) - out :]]).sum())


def comparable(found: Mapping[str, Any] | None, delta: float) -> str | None:
    """Return the reason why an audit's bound cannot be compared with this epsilon; None if it can.

    The audit is a game of adding or removing one private example, and its bound holds at `delta`. It can refute an
    (epsilon, d) guarantee for the same unit and relation with d <= delta, and no other.

    Args:
        found: a claim or an accounted epsilon as plain data of a record ("epsilon", "unit", "delta", perhaps
        "relation").
        delta: of the audit.
    """
    if found is None:
        return "nothing is promised"
    if found["unit"] != Unit.EXAMPLE:
        return f"it is per {found['unit']}, the audit is per example"
    if found.get("relation", Relation.ADD_OR_REMOVE_ONE) != Relation.ADD_OR_REMOVE_ONE:
        return f"its relation is {found['relation']}, the audit's is {Relation.ADD_OR_REMOVE_ONE}"
    if math.isinf(epsilon_from_json(found["epsilon"])):
        return "it is infinite"
    if found["delta"] > delta:
        return f"its delta {found['delta']:g} is above the audit's {delta:g}"
    return None


def refutes(bound: float, delta: float, found: Mapping[str, Any] | None) -> bool:
    """Return whether an audit's lower bound at `delta` refutes a comparable epsilon."""
    return (
        comparable(found, delta) is None
        and found is not None
        and is_refuted(epsilon_from_json(found["epsilon"]), bound)
    )
