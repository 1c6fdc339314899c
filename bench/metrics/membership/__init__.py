"""Metrics of membership attacks: how well scores separate training records from other records.

A higher score means "member". Every metric depends only on the ranking of the scores: neither the order of the rows nor
an increasing transformation of the scores changes it. Where a threshold must be chosen, it is chosen on a random half
of the members and of the non-members, and the result is from the other half.

All intervals assume that records are independent draws. Records scored on one model share its training, so the
intervals cover other records on this model, not other models.
"""

from bench.metrics.membership.auc import auc_gain, auc_interval, gap_auc
from bench.metrics.membership.indication import epsilon_lower
from bench.metrics.membership.rates import Balanced, RateAt, balanced_accuracy, tpr_at
from bench.metrics.membership.verdict import Membership, MembershipPower, membership, membership_power

__all__ = [
    "Balanced",
    "Membership",
    "MembershipPower",
    "RateAt",
    "auc_gain",
    "auc_interval",
    "balanced_accuracy",
    "epsilon_lower",
    "gap_auc",
    "membership",
    "membership_power",
    "tpr_at",
]
