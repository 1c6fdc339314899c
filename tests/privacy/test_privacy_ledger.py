from __future__ import annotations

import dataclasses
import json
import math

import dp_accounting as dp
import pytest

from bench.errors import BenchError
from bench.privacy import Entry, Ledger, Unit, randomised_response_event

EVENTS = [
    dp.GaussianDpEvent(1.5),
    dp.LaplaceDpEvent(20.0),
    dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)),
    dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.GaussianDpEvent(2.0)])),
    dp.RandomizedResponseDpEvent(0.3, 10),
    dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(0.8)), 7),
    dp.ComposedDpEvent([dp.LaplaceDpEvent(3.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3)]),
    dp.NonPrivateDpEvent(),
    dp.UnsupportedDpEvent(),
    dp.NoOpDpEvent(),
    dp.ZCDpEvent(0.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_survives_json(event):
    ledger = Ledger()
    ledger.spend(event, count=3, unit=Unit.QUERY, why="votes")
    back = Ledger.from_json(json.loads(json.dumps(ledger.to_json(), allow_nan=False)))
    assert back.entries() == (Entry(event, 3, Unit.QUERY, "votes"),)


def test_units_are_kept_apart_and_in_order():
    ledger = Ledger()
    ledger.spend(dp.GaussianDpEvent(1.0), unit=Unit.QUERY)
    ledger.spend(dp.GaussianDpEvent(2.0), count=5)
    ledger.spend(dp.GaussianDpEvent(3.0), unit=Unit.QUERY)
    assert [entry.event.noise_multiplier for entry in ledger.entries(Unit.QUERY)] == [1.0, 3.0]
    assert [entry.count for entry in ledger.entries(Unit.EXAMPLE)] == [5]
    assert ledger.entries(Unit.CLIENT) == ()
    assert len(ledger.entries()) == 3


def test_entries_cannot_be_changed():
    ledger = Ledger()
    ledger.spend(dp.GaussianDpEvent(1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.entries()[0].count = 0


@pytest.mark.parametrize("count, error", [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_counts_are_positive_ints(count, error):
    ledger = Ledger()
    with pytest.raises(error):
        ledger.spend(dp.GaussianDpEvent(1.0), count=count)
    assert ledger.entries() == ()


@pytest.mark.parametrize(
    "event, error",
    [
        ("gaussian", TypeError),
        (dp.GaussianDpEvent(math.nan), ValueError),
        (dp.SelfComposedDpEvent(dp.GaussianDpEvent(math.inf), 2), ValueError),
        (dp.ZCDpEvent(object()), TypeError),
    ],
)
def test_what_cannot_be_recorded_is_refused_when_it_is_spent(event, error):
    ledger = Ledger()
    with pytest.raises(error):
        ledger.spend(event)
    assert ledger.entries() == ()


def test_an_unknown_event_in_a_record_is_refused():
    item = {"event": {"name": "EpsilonDeltaDpEvent", "epsilon": 1.0}, "count": 1, "unit": "example", "why": ""}
    with pytest.raises(BenchError, match="EpsilonDeltaDpEvent"):
        Ledger.from_json([item])
    with pytest.raises(BenchError, match="importlib"):
        Ledger.from_json([{**item, "event": {"name": "importlib"}}])


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("choices", [2, 3, 10])
def test_randomised_response_event_has_the_epsilon_it_was_made_from(epsilon, choices):
    event = randomised_response_event(epsilon, choices)
    p, k = event.noise_parameter, event.num_buckets
    assert math.log((1 - p + p / k) / (p / k)) == pytest.approx(epsilon, abs=1e-12)


def test_randomised_response_event_does_not_overflow():
    assert randomised_response_event(5000.0, 10).noise_parameter == 0.0
    assert randomised_response_event(math.inf, 10).noise_parameter == 0.0
