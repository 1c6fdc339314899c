"""The share of a set of records on which a network was trained, from the predictions of a membership attack.

Tong, Zarifzadeh, Kong, Shokri, "How much of my dataset did you use?", ICLR 2025 (DUCI). A prediction m_i of membership
has a true and a false positive rate, so that E[m_i] = FPR + p_i (TPR - FPR). Without their bias the predictions are
(m_i - FPR) / (TPR - FPR), and their mean estimates the share of members p. Both rates are measured on reference models,
whose training records are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_GAIN = 0.05
"""Smallest TPR - FPR of an attack that can estimate a share."""
NORMAL_95 = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Rule:
    """A decision rule: predict "member" for scores at or above a threshold; with its rates on reference models."""

    threshold: float
    tpr: float
    fpr: float

    @property
    def gain(self) -> float:
        """Return TPR - FPR."""
        return self.tpr - self.fpr


@dataclass(frozen=True)
class UsedShare:
    """An estimated share of members.

    Attributes:
        value: p_hat; unbiased, and so not limited to [0, 1].
        error: its standard error over the records, for the rule's rates. It does not include differences between
            networks, see `error_between_networks`.
    """

    value: float
    error: float


def best_rule(scores: Tensor, members: Tensor) -> Rule:
    """Return the rule with the largest TPR - FPR on scored records of reference models; of equals, the highest.

    Args:
        scores: float64 of any shape, higher for members.
        members: bool of the same shape, with some true and some false.
    """
    flat, inside = scores.flatten(), members.flatten()
    thresholds = flat.unique().flip(0)
    own, others = flat[inside].sort().values, flat[~inside].sort().values
    tpr = 1 - torch.searchsorted(own, thresholds).double() / len(own)
    fpr = 1 - torch.searchsorted(others, thresholds).double() / len(others)
    best = int((tpr - fpr).argmax())
    return Rule(float(thresholds[best]), float(tpr[best]), float(fpr[best]))


def estimate_share(scores: Tensor, rule: Rule) -> UsedShare | None:
    """Return p_hat of (n,) scored records; None if the rule's TPR - FPR is below `LEAST_GAIN`."""
    if rule.gain < LEAST_GAIN:
        return None
    predicted = float((scores >= rule.threshold).double().mean())
    error = math.sqrt(predicted * (1 - predicted) / len(scores)) / rule.gain
    return UsedShare((predicted - rule.fpr) / rule.gain, error)


def error_between_networks(scores: Tensor, members: Tensor, rule: Rule) -> float:
    """Return the root mean square error of p_hat on reference models, whose shares of members are known.

    A network's rates differ from the mean rates of the rule by chance, for all records together.

    Args:
        scores: (references, n), each reference in the role of the target.
        members: (references, n) bool.
        rule: with a gain above 0.
    """
    predicted = (scores >= rule.threshold).double().mean(1)
    shares = (predicted - rule.fpr) / rule.gain
    return float((shares - members.double().mean(1)).square().mean().sqrt())
