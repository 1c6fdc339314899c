from __future__ import annotations

import math
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, RandomizedResponseDpEvent

from bench import registry
from bench.cli import details
from bench.cli.details import _notes, _variants
from bench.config import Departure
from bench.pipeline.stages import privacy_account
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.information import Information


def account(ledger: Ledger, budget: Budget) -> dict[str, Any]:
    return privacy_account(ledger, None, budget, 10, ["student"]).to_plain()


def test_a_run_s_end_says_why_an_epsilon_is_infinite_or_no_exact_composition():
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent(), why="the generator saw the teacher")
    ledger.spend(RandomizedResponseDpEvent(0.5, 10), count=10**7, unit=Unit.LABEL)
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY)
    numbers = account(ledger, Budget(epsilon=None, solve="none"))
    first, second = _notes(numbers)
    assert first.startswith("accounted per example: NonPrivateDpEvent() (the generator saw the teacher)")
    assert second.startswith("accounted per label: 10,000,000 randomised responses: too much for the exact composition")


def test_records_without_notes_say_nothing():
    found = {"epsilon": "inf", "delta": 1e-5, "accountant": "none", "relation": "add-or-remove"}
    assert _notes({"accounted_units": {"example": found}}) == []


@pytest.mark.parametrize(
    ("nats", "classes", "line"),
    [
        (2.56, 10, "information: all answers carry at most 2.56 nats, enough for a mean accuracy of at most 59.65 %"),
        (2.56, 0, "information: all answers carry at most 2.56 nats"),
        (12_345.6, 10, "information: all answers carry at most 12,346 nats, enough for any accuracy"),
        (math.inf, 10, "information: infinite; gradients"),
        (None, 10, "information: not known; gradients"),
    ],
)
def test_a_run_s_end_says_what_its_answers_carry(nats: float | None, classes: int, line: str) -> None:
    assert details.informed(Information(nats, "gradients", classes)) == line


def spec(variant: str, attack_variant: str | None = None) -> dict[str, Any]:
    attack = None if attack_variant is None else {"attack": "gmi", "variant": attack_variant}
    return {"release": {"method": "dpsd", "variant": variant}, "attack": attack}


class Changed:
    departures = tuple(Departure(what, "why") for what in ("few batches", "posterior mean", *("x" * 60, "y" * 60)))


class Once:
    departures = (Departure("one step", "why"),)


def test_a_run_s_end_names_both_variants_with_their_departures_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", lambda kind, name, variant: {"method": Changed, "attack": Once}[kind])
    assert _variants(spec("working", "working")) == [
        f"variant working: 4 departures (few batches; posterior mean; {'x' * 60}; 1 more), see `bench show dpsd`",
        "attack variant working: 1 departure (one step), see `bench show gmi`",
    ]
    assert _variants(spec("printed")) == ["variant printed: as its paper prints it"]
    assert _variants(spec("own")) == ["variant own: this project's own, which no paper prints"]


def test_numbers_have_their_unit_and_their_interval() -> None:
    numbers = {"auc": 0.5111, "auc.lo": 0.468, "auc.hi": 0.5532, "attack_accuracy": 0.79, "attack_accuracy.lo": 0.7272}
    numbers |= {"attack_accuracy.hi": 0.8441, "inception_e6": 6001526.0, "teacher_fid": 177.66}
    table = {
        (metric.key, subject.label): details._cell(numbers, metric, subject)
        for metric in details.measured(numbers, "reconstructions", "membership")
        for subject in details.TARGETS
    }
    assert table["auc", "student"] == "0.5111 [0.468, 0.553]"
    assert table["attack_accuracy", "student"] == "79.00% [72.7, 84.4]"
    assert table["inception_e6", "student"] == "6,001,526"
    assert (table["fid", "student"], table["fid", "teacher"]) == ("-", "177.7")


def test_notes_of_seeded_noise_say_who_the_epsilon_holds_for() -> None:
    ledger = Ledger()
    ledger.spend(GaussianDpEvent(2.0))
    numbers = account(ledger, Budget(epsilon=None, solve="none"))
    for noise, word in (("seeded", "--noise os"), ("os", "entropy")):
        (line,) = _notes(numbers | {"noise": noise})
        assert line.startswith("noise: ") and word in line
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent())
    assert not any("noise:" in line for line in _notes(account(ledger, Budget()) | {"noise": "seeded"}))
