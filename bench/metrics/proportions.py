"""Classification accuracy, and the confidence interval of a proportion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy.special import betaincinv

if TYPE_CHECKING:
    from torch import Tensor


def count_correct(logits: Tensor, labels: Tensor) -> int:
    """Return the number of rows whose largest logit is the label's: the successes for `clopper_pearson`.

    Args:
        logits: (n, classes).
        labels: (n,) int64.

    Raises:
        ValueError: mismatched shapes, or a logit that is NaN or infinite.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}: expected (n, k) and (n,), n >= 1"
        )
    if not logits.isfinite().all():
        raise ValueError("a logit is NaN or infinite")
    return int((logits.argmax(1) == labels).sum())


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose largest logit is the label's, in [0, 1].

    Arguments and errors as for `count_correct`.
    """
    return count_correct(logits, labels) / len(labels)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial proportion.

    Its ends are the beta quantiles B(a / 2; s, t - s + 1) and B(1 - a / 2; s + 1, t - s) for s successes in t trials
    and a = 1 - confidence.

    Args:
        successes: 0 to `trials`.
        trials: at least 1; independent.
        confidence: in (0, 1); each tail gets half of the rest.

    Raises:
        ValueError: an argument out of its range.

    Source:
        Clopper and Pearson, Biometrika 26 (1934).

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
