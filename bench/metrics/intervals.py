"""Confidence intervals of proportions."""

from __future__ import annotations

from scipy.special import betaincinv


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial proportion (Clopper and Pearson, 1934), from beta quantiles.

    Args:
        successes: 0 to `trials`.
        trials: at least 1; independent.
        confidence: in (0, 1); each tail gets half of the rest.

    Raises:
        ValueError: an argument out of its range.

    >>> tuple(round(bound, 4) for bound in clopper_pearson(0, 10))
    (0.0, 0.3085)
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes in {trials} trials: expected 0 <= successes <= trials and trials >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return low, high
