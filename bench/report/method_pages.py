"""A page per method, as plain data: what it is, what it promises, what was measured of it, how to run it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from bench import leaderboard, registry, worth
from bench.config import Description
from bench.leaderboard.flags import UNTRUE
from bench.leaderboard.selection import EXACT
from bench.report.command import installed
from bench.report.highlights import EPSILON
from bench.report.runs import audit_line
from bench.storage.records import Audit, Record


def names(records: Iterable[Record]) -> list[str]:
    """Every method of the bench, and every one that has runs, by name."""
    return sorted({*installed("method"), *(record.spec["release"]["method"] for record in records)})


def summary(name: str) -> str:
    """The first line of what a method says of itself."""
    return registry.entries("method")[name].summary if name in installed("method") else "not installed here"


def pages(
    records: Sequence[Record],
    audits: Sequence[Audit],
    releases: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One page for each of `names`.

    Args:
        releases: of `bench.report.releases`, of all data sets.
        tables: of `bench.report.paper_tables`.
    """
    of: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of[record.spec["release"]["method"]].append(record)
    return [_page(name, of[name], audits, releases, tables) for name in names(records)]


def _page(
    name: str,
    records: Sequence[Record],
    audits: Sequence[Audit],
    releases: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    mine = [audit for audit in audits if audit.spec["release"]["method"] == name]
    return {
        "name": name,
        "summary": summary(name),
        "folder": installed("method").get(name, "unknown"),
        "runs": len(records),
        "variants": _variants(name),
        "claims": claims(records),
        "releases": [line for line in releases if line["method"] == name],
        "audits": [{"dataset": leaderboard.dataset(audit)} | audit_line(audit) for audit in mine],
        "standings": standings(name, releases),
        "tables": [line for table in tables if (line := _in_table(name, table)) is not None],
    }


def claims(records: Iterable[Record]) -> list[dict[str, str]]:
    """What the records claim by: the theorem, the unit, and why the claim is disputed, "" where it is not."""
    found = set()
    for record in records:
        claim = record.privacy.get("claimed")
        if claim is not None:
            found.add((claim.get("source", ""), claim["unit"], leaderboard.dispute(claim)))
    return [{"source": source, "unit": unit, "dispute": dispute} for source, unit, dispute in sorted(found)]


def standings(name: str, releases: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where a method's most accurate release with a small proved epsilon stands among those of all methods.

    A place is a data set, a tier, a split and a unit; small is `EPSILON` at most. What is refuted does not count, nor
    what `bench choose` would not take for its account or its version.
    """
    best: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for line in releases:
        proved = isinstance(line["epsilon"], float) and line["epsilon"] <= EPSILON * (1 + EXACT)
        stands = not line["older"] and UNTRUE.keys().isdisjoint(line["flags"])
        if proved and stands and line["accuracy"] is not None and line["tier"] != "smoke":
            of = best[line["dataset"], line["tier"], line["split"], line["unit"]]
            of[line["method"]] = max(of.get(line["method"], 0.0), line["accuracy"])
    return [
        {
            **dict(zip(("dataset", "tier", "split", "unit"), place, strict=True)),
            "accuracy": of[name],
            "rank": 1 + sum(other > of[name] for other in of.values()),
            "of": len(of),
        }
        for place, of in sorted(best.items())
        if name in of
    ]


@cache
def _variants(name: str) -> list[dict[str, Any]]:
    """What each variant says of itself, the one that is run by default first."""
    if name not in installed("method"):
        return []
    known = registry.variants("method", name)
    return [_variant(name, variant, registry.describe("method", name, variant)) for variant in reversed(known)]


def _variant(name: str, variant: str, told: Description) -> dict[str, Any]:
    own = told.departures if variant == "working" else ()
    return {
        "variant": variant,
        "reference": str(told.facts["reference"]),
        "version": told.facts["version"],
        "unit": str(told.facts["unit"]),
        "needs": sorted(told.facts["needs"]),
        "doc": told.doc,
        "departures": [[each.what, each.why, worth.told(name, told, each)] for each in own],
    }


def _in_table(name: str, table: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many numbers of a method a paper's table prints, and how many of them have one of ours; None of none."""
    lines = [line for line in table["lines"] if line["method"] == name]
    if not lines:
        return None
    ours = {line["entry"] for line in lines if line["ours"] is not None}
    cells = len({line["entry"] for line in lines})
    return {"slug": table["slug"], "title": table["title"], "cells": cells, "ours": len(ours)}
