from __future__ import annotations

import json
import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_ledger_round_trips_every_event(event):
    ledger = Ledger()
    ledger.spend(event, count=3, unit=Unit.QUERY, why="votes")
    back = Ledger.from_json(json.loads(json.dumps(ledger.to_json(), allow_nan=False)))
    assert back.entries() == (Entry(event, 3, Unit.QUERY, "votes"),)


def test_ledger_keeps_units_apart_and_in_order():
    ledger = Ledger()
    ledger.spend(dp.GaussianDpEvent(1.0), unit=Unit.QUERY)
    ledger.spend(dp.GaussianDpEvent(2.0), count=5)
    ledger.spend(dp.GaussianDpEvent(3.0), unit=Unit.QUERY)
    assert [entry.event.noise_multiplier for entry in ledger.entries(Unit.QUERY)] == [1.0, 3.0]
    assert [entry.count for entry in ledger.entries(Unit.EXAMPLE)] == [5]
    assert ledger.entries(Unit.CLIENT) == ()
    assert len(ledger.entries()) == 3


@pytest.mark.parametrize("count, error", [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_spend_refuses_an_invalid_count(count, error):
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
def test_spend_refuses_an_event_that_cannot_be_stored(event, error):
    ledger = Ledger()
    with pytest.raises(error):
        ledger.spend(event)
    assert ledger.entries() == ()


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 22.0])
@pytest.mark.parametrize("choices", [2, 3, 10])
def test_randomised_response_event_has_its_epsilon(epsilon, choices):
    event = randomised_response_event(epsilon, choices)
    p, k = event.noise_parameter, event.num_buckets
    assert math.log((1 - p + p / k) / (p / k)) == pytest.approx(epsilon, abs=1e-12)


GAUSSIAN = {"name": "GaussianDpEvent", "noise_multiplier": 1.0}
ENTRY = {"event": GAUSSIAN, "count": 1, "unit": "example", "why": ""}


def nested(depth: int, kind: str = "SelfComposedDpEvent") -> dict[str, Any]:
    item: dict[str, Any] = dict(GAUSSIAN)
    for _ in range(depth):
        inner = {"events": [item]} if kind == "ComposedDpEvent" else {"event": item, "count": 1}
        item = {"name": kind, **inner}
    return item


BAD_EVENTS = [
    None, [], {"noise_multiplier": 1.0}, {"name": None}, {"name": "annotations"}, {"name": "importlib"},
    {"name": "EpsilonDeltaDpEvent", "epsilon": 1.0}, {"name": "no\nsuch event"}, {"name": "GaussianDpEvent"},
    {**GAUSSIAN, "sensitivity": 2.0},
    *({**GAUSSIAN, "noise_multiplier": bad} for bad in ("1", None, True, [1.0], {}, math.nan, math.inf, 10**5000)),
    {"name": "RandomizedResponseDpEvent", "noise_parameter": 0.5, "num_buckets": 2.5},
    {"name": "SelfComposedDpEvent", "event": GAUSSIAN, "count": "3"},
    {"name": "SelfComposedDpEvent", "event": 1.0, "count": 3},
    {"name": "ComposedDpEvent", "events": GAUSSIAN},
    {"name": "ComposedDpEvent", "events": [1.0]},
    {"name": "MixtureOfGaussiansDpEvent", "standard_deviation": 1.0, "sensitivities": 1.0, "sampling_probs": [1.0]},
    nested(21), nested(1000), nested(1000, "ComposedDpEvent"), nested(100_000),
]  # fmt: skip
MALFORMED = [
    *(None, {}, "GaussianDpEvent", 3, [None], [[]], [{}]),
    [{**ENTRY, "more": 1}],
    [{key: value for key, value in ENTRY.items() if key != "why"}],
    *([{**ENTRY, "count": bad}] for bad in (0, True, "7", 1.0, 10**5000)),
    *([{**ENTRY, "unit": bad}] for bad in ("planet", ["example"], "x" * 10_000)),
    [{**ENTRY, "why": 5}],
    *([{**ENTRY, "event": bad}] for bad in BAD_EVENTS),
]


@pytest.mark.parametrize("items", MALFORMED, ids=range(len(MALFORMED)))
def test_from_json_refuses_a_malformed_ledger(items):
    with pytest.raises(BenchError) as caught:
        Ledger.from_json(items)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["SelfComposedDpEvent", "ComposedDpEvent"])
def test_ledger_round_trips_nested_events(kind):
    item = {**ENTRY, "event": nested(19, kind)}
    assert Ledger.from_json([item]).to_json() == [item]


@pytest.mark.parametrize("depth", [21, 400])
def test_spend_refuses_a_deeply_nested_event(depth):
    event = dp.GaussianDpEvent(1.0)
    for _ in range(depth):
        event = dp.SelfComposedDpEvent(event, 1)
    with pytest.raises(ValueError, match="20"):
        Ledger().spend(event)


def test_ledger_round_trips_lists_and_defaults():
    ledger = Ledger()
    ledger.spend(dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]))
    ledger.spend(dp.SingleEpochTreeAggregationDpEvent(1.0, [3, 4]))
    ledger.spend(dp.SingleEpochTreeAggregationDpEvent(1.0, 3))
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))).to_json() == ledger.to_json()
    short = {**ENTRY, "event": {"name": "ZCDpEvent", "rho": 0.5}}
    assert Ledger.from_json([short]).entries()[0].event == dp.ZCDpEvent(0.5)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(
    ["GaussianDpEvent", "SelfComposedDpEvent", "PoissonSampledDpEvent", "example"])  # fmt: skip
NAMES = st.sampled_from(["name", "event", "events", "count", "noise_multiplier", "sampling_probability", "unit", "why"])
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))


@given(event=ANYTHING, count=LEAVES)
def test_from_json_accepts_or_refuses_anything(event, count):
    for items in (event, [event], [{**ENTRY, "event": event}], [{**ENTRY, "count": count}]):
        try:
            ledger = Ledger.from_json(items)
        except BenchError as refused:
            assert "\n" not in str(refused)
        else:
            assert ledger.to_json() == Ledger.from_json(ledger.to_json()).to_json()
