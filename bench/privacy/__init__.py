"""Privacy accounting: units, budgets, ledgers; and modules for accounting, claims, mechanisms and audits.

`accountant` and `claims` (scipy, dp_accounting) and `mechanisms` (torch) are imported only where they are used, so that
importing this package alone is fast.
"""

from bench.privacy.budget import Budget, Claim
from bench.privacy.calibrate import Unreachable, calibrate_noise, largest_count, noise_or_steps
from bench.privacy.ledger import Entry, Ledger, randomised_response_event
from bench.privacy.limits import check_response_epsilon, most_response_epsilon
from bench.privacy.units import Relation, Unit

__all__ = [
    "Budget",
    "Claim",
    "Entry",
    "Ledger",
    "Relation",
    "Unit",
    "Unreachable",
    "calibrate_noise",
    "check_response_epsilon",
    "largest_count",
    "most_response_epsilon",
    "noise_or_steps",
    "randomised_response_event",
]
