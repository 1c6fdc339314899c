"""Differential privacy: mechanisms, the ledger (list of their uses), the accountant, the papers' claims, and audits.

- `budget`, `ledger`, `events`: the protected unit, the budget of a run, and the list of every use of private data.
- `accountant`: epsilon from a ledger; `calibrate`: noise or steps from an epsilon; `claims`: the papers' theorems.
- `mechanisms`, `counts`, `noise`: the Gaussian and Laplace mechanisms, randomised response, and their random draws.
- `audit`: lower bound on a mechanism's epsilon by the distinguishing game; `one_run`: on that of a training, by
  canaries.
- `witness`: sensitivity check, by running a method on neighbouring data; `information`: bounds in nats on what the
  responses reveal about all private data.

Importing this package is fast: modules that need scipy, dp_accounting or torch are imported where they are used.
"""

from bench.privacy.budget import Budget, Claim, Relation, Unit
from bench.privacy.calibrate import Unreachable, calibrate_noise, largest_count, noise_or_steps
from bench.privacy.events import check_response_epsilon, most_response_epsilon, randomised_response_event
from bench.privacy.ledger import Entry, Ledger

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
