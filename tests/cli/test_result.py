from __future__ import annotations

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, RandomizedResponseDpEvent

from bench.cli.result import _notes
from bench.pipeline.release_step import privacy_account
from bench.privacy import Budget, Ledger, Unit


def test_a_run_s_end_says_why_an_epsilon_is_infinite_or_no_exact_composition():
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent(), why="the generator saw the teacher")
    ledger.spend(RandomizedResponseDpEvent(0.5, 10), count=10**7, unit=Unit.LABEL)
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY)
    numbers = privacy_account(ledger, None, Budget(epsilon=None, solve="none"))
    first, second = _notes(numbers)
    assert first.startswith("accounted per example: NonPrivateDpEvent() (the generator saw the teacher)")
    assert second.startswith("accounted per label: 10,000,000 randomised responses: too much for the exact composition")


def test_records_without_notes_say_nothing():
    found = {"epsilon": "inf", "delta": 1e-5, "accountant": "none", "relation": "add-or-remove"}
    assert _notes({"accounted_units": {"example": found}}) == []
