"""Texts of `bench run --details`."""

import math
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, RandomizedResponseDpEvent

from bench import registry
from bench.cli import details
from bench.config import Departure
from bench.core.privacy import PrivacyReport
from bench.pipeline.stages import privacy_account
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.information import Information


def report(ledger: Ledger, noise: str = "seeded") -> PrivacyReport:
    budget = Budget(epsilon=None, solve="none")
    return privacy_account(ledger, None, budget, 10, ["student"]).report(noise, {})


def test_account_has_the_reasons_of_inexact_epsilons() -> None:
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent(), why="the generator saw the teacher")
    ledger.spend(RandomizedResponseDpEvent(0.5, 10), count=10**7, unit=Unit.LABEL)
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY)
    infinite, inexact, noise = details.describe_account(report(ledger))
    assert infinite.startswith("accounted per example: NonPrivateDpEvent() (the generator saw the teacher)")
    assert inexact.startswith("accounted per label: 10,000,000 ") and "--noise os" in noise


@pytest.mark.parametrize(("noise", "word"), [("seeded", "--noise os"), ("os", "operating system")])
def test_account_with_finite_epsilon_has_the_noise(noise: str, word: str) -> None:
    ledger = Ledger()
    ledger.spend(GaussianDpEvent(2.0))
    (line,) = details.describe_account(report(ledger, noise))
    assert word in line


def test_account_without_notes_and_finite_epsilon_is_empty() -> None:
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent())
    found = report(ledger)
    silent = {"accounted_units": {"example": found.accounted.model_copy(update={"note": ""})}}
    assert details.describe_account(found.model_copy(update=silent)) == []


@pytest.mark.parametrize(
    ("nats", "classes", "values"),
    [
        (2.56, 10, ["2.56 nats", "59.65 %"]),
        (2.56, 0, ["2.56 nats"]),
        (12_345.6, 10, ["12,346 nats", "any accuracy"]),
        (math.inf, 10, ["infinite", "gradients"]),
        (None, 10, ["unknown", "gradients"]),
    ],
)
def test_information_bound_is_shown_with_its_accuracy(nats: float | None, classes: int, values: list[str]) -> None:
    line = details.describe_information(Information(nats, "gradients", classes))
    assert line.startswith("information: ") and all(value in line for value in values)
    assert ("accuracy" in line) == (nats is not None and nats < math.inf and classes > 0)


class Many:
    departures = tuple(Departure(what, "why") for what in ("few batches", "posterior mean", *("x" * 60, "y" * 60)))


class One:
    departures = (Departure("one step", "why"),)


def test_variant_is_shown_with_its_changes_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", lambda kind, name, variant: {"method": Many, "attack": One}[kind])
    many = details.describe_variant("method", "dpsd", "working")
    assert f"4 changes from the paper (few batches; posterior mean; {'x' * 60}; 1 more)" in many
    one = details.describe_variant("attack", "g", "working")
    assert "1 change from the paper (one step)" in one and "`bench show g`" in one
    for name in ("printed", "own"):
        assert details.describe_variant("method", "dpsd", name).startswith(f"variant {name}: ")


@pytest.mark.parametrize(
    ("key", "subject", "expected"),
    [
        ("auc", "student", "0.5111 [0.468, 0.553]"),
        ("attack_accuracy", "student", "79.00% [72.7, 84.4]"),
        ("inception_e6", "student", "6,001,526"),
        ("fid", "student", "-"),
        ("fid", "teacher", "177.7"),
    ],
)
def test_cell_has_number_and_interval(key: str, subject: str, expected: str) -> None:
    numbers: dict[str, Any] = {"auc": 0.5111, "auc.lo": 0.468, "auc.hi": 0.5532}
    numbers |= {"attack_accuracy": 0.79, "attack_accuracy.lo": 0.7272, "attack_accuracy.hi": 0.8441}
    numbers |= {"inception_e6": 6001526.0, "teacher_fid": 177.66}
    (target,) = [each for each in details.TARGETS if each.label == subject]
    assert details.format_cell(numbers, details.metrics()[key], target) == expected
