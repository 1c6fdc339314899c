"""Classification accuracy."""

from __future__ import annotations

from torch import Tensor


def hits(logits: Tensor, labels: Tensor) -> int:
    """Return the number of rows whose largest logit is the label's: the successes for `intervals.clopper_pearson`.

    Args:
        logits: (n, classes). labels: (n,) int64.

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
    """Return the share of rows whose largest logit is the label's, in [0, 1]. Arguments and errors as for `hits`."""
    return hits(logits, labels) / len(labels)
