"""What a release took from private data: units, budgets, ledgers; and, by module, what follows from them.

`accountant` and `claims` (scipy, dp_accounting) and `mechanisms` (torch) are imported by those who need them, so that
this package alone stays quick to import.
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
