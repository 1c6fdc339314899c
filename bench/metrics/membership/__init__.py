"""How well scores tell the records a model was trained on from records it never saw.

A higher score says "member". Every number depends on the order of the scores alone: neither the order of the rows nor
an increasing transformation of the scores changes it. Where a threshold has to be chosen, it is chosen on a random half
of the members and of the non-members, and the other half is what is reported.

All intervals take records for independent draws. Records scored on one model share its training, so the intervals are
for other records on this model, not for other models.
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
