"""Bounds on the information in the responses of a record (`bench.privacy.information`), also for older records.

Records from before 2026-11-22 hold only the ledger's events; `_OLD` parses their descriptions. Unknown descriptions
give no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from bench.boards.installed import classes_of
from bench.privacy import Unit
from bench.privacy.information import (
    Information,
    gaussian_capacity,
    laplace_capacity,
    noise_over_radius,
    response_capacity,
    selective_capacity,
    total,
)
from bench.storage.records import Record

Event = Mapping[str, Any]
"""An entry of a ledger as stored in a record: event, count, unit, why."""
Capacity = Callable[[Event, Event, int], float]
"""Function of (the entry of unit `example`, that of unit `query`, number of classes c) -> nats of the whole entry."""


def information(record: Record) -> Information:
    """Return the bound on all responses of a record's release; nats None if unknown, or if the run failed."""
    if not record.privacy:
        return Information(None, "the run failed")
    said = record.privacy.get("information")
    if said is not None:
        return Information.from_json(said)
    where = record.spec["release"]["teacher"]["data"]
    return of_events(record.privacy.get("events", []), classes_of(where["dataset"], where["split"]))


def of_events(events: list[Event], classes: int) -> Information:
    """Return the same bound from ledger entries as stored in files, for c classes."""
    carried: list[tuple[float | None, str]] = []
    queries = [event for event in events if event["unit"] == Unit.QUERY]
    for entry in (event for event in events if event["unit"] == Unit.EXAMPLE):
        nats = math.inf if entry["event"]["name"] == "NonPrivateDpEvent" else None
        start = next((start for start in _OLD if entry["why"].startswith(start)), "")
        if nats is None and start and classes >= 2:
            words, capacity = _OLD[start]
            query = next((each for each in queries if each["why"].startswith(words)), None)
            nats = None if query is None else capacity(entry, query, classes)
        carried.append((nats, entry["why"]))
    return total(carried, classes)


def _multiplier(entry: Event) -> float:
    return entry["event"]["noise_multiplier"]


def _response(entry: Event) -> tuple[float, int]:
    """Return epsilon and k: the probability p of a uniform draw is k / (e^epsilon + k - 1)."""
    noise, choices = entry["event"]["noise_parameter"], entry["event"]["num_buckets"]
    return math.log1p(choices * (1 - noise) / noise), choices


_OLD: dict[str, tuple[str, Capacity]] = {
    # Noisy rows: one row has multiplier sigma / 2, the b rows of a batch sigma / (2 sqrt(b))
    "normalised gradients of a batch, a noise draw per row": (
        "one row's normalised gradient",
        lambda entry, query, classes: (
            entry["count"]
            * round((_multiplier(query) / _multiplier(entry)) ** 2)
            * gaussian_capacity(2 * _multiplier(query), classes)
        ),
    ),
    # Noisy sums over batches: norm b beta, multiplier sigma / (2 b)
    "normalised gradients of a batch, a noise draw per batch": (
        "one row's normalised gradient",
        lambda entry, _, classes: entry["count"] * gaussian_capacity(2 * _multiplier(entry), classes),
    ),
    # Noisy sums over n teachers: norm n beta, multiplier for one response sigma / (2 n)
    "sum of normalised gradients of": (
        "sum of normalised gradients of",
        lambda entry, query, classes: entry["count"] * gaussian_capacity(2 * _multiplier(query), classes),
    ),
    # The entry of unit `query` has the number of responses per image
    "randomised response over": (
        "the randomised responses to one image",
        lambda entry, query, _: entry["count"] * query["count"] * response_capacity(*_response(entry)),
    ),
    "selective response": (
        "one selective response",
        lambda entry, _, classes: entry["count"] * selective_capacity(_response(entry)[0], classes),
    ),
    # Noisy vote counts: all n votes on one image move by at most sqrt(2) n in L2, and 2 n in L1
    "noisy votes of": (
        "noisy votes of",
        lambda entry, query, _: (
            entry["count"] * laplace_capacity(2 * _multiplier(query))
            if query["event"]["name"] == "LaplaceDpEvent"
            else entry["count"] * gaussian_capacity(noise_over_radius(_multiplier(query)))
        ),
    ),
    # Noisy thresholds: one bit each, about the largest count, which is between 0 and n
    "the noisy largest count": (
        "the noisy largest count",
        lambda entry, query, _: entry["count"] * min(math.log(2), gaussian_capacity(2 * _multiplier(query), 1)),
    ),
}
"""First words of an entry's description to those of its entry of unit `query`, and the nats of both entries."""
