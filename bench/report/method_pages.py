"""One page per method, as plain data: description, privacy, measurements, command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from bench import registry
from bench.boards.flags import UNTRUE
from bench.boards.selection import EXACT, MOST_DELTA
from bench.config import Description
from bench.privacy.claims import dispute as reason_of_dispute
from bench.report import glossary
from bench.report.command import installed, variants_of
from bench.report.highlights import EPSILON
from bench.report.runs import audit_lines
from bench.storage.records import Audit, Record

AS_PRINTED = ", as its paper prints it"


def names(records: Iterable[Record]) -> list[str]:
    """List every method of the bench, and every one that has runs, by name."""
    return sorted({*installed("method"), *(record.spec["release"]["method"] for record in records)})


def summary(name: str) -> str:
    """Return the first line of a method's docstring, without `AS_PRINTED` if another variant is the default."""
    if name not in installed("method"):
        return "not installed here"
    told = registry.entries("method")[name].summary
    return told if variants_of("method", name)[-1] == "printed" else told.replace(AS_PRINTED, "")


def pages(
    records: Sequence[Record],
    audits: Sequence[Audit],
    releases: Sequence[Mapping[str, Any]],
    added: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return one page for each of `names`.

    Args:
        releases: of `bench.report.releases`, of all data sets.
        added: contributions of sections, by section and method.
    """
    of: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of[record.spec["release"]["method"]].append(record)
    return [_page(name, of[name], audits, releases, added) for name in names(records)]


def _page(
    name: str,
    records: Sequence[Record],
    audits: Sequence[Audit],
    releases: Sequence[Mapping[str, Any]],
    added: Mapping[str, Mapping[str, Any]],
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
        "audits": audit_lines(mine),
        "standings": standings(name, releases),
        **{section: of_methods[name] for section, of_methods in added.items() if name in of_methods},
    }


def claims(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the claims of records: theorem, unit, and why the claim is disputed, "" if it is not.

    `by` are the variants of the runs with this claim and the options, such as "mode=label", that only they have; `told`
    is the dispute in words.
    """
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        claim = record.privacy.get("claimed")
        if claim is not None:
            found[claim.get("source", ""), claim["unit"], reason_of_dispute(record.privacy)].append(record)
    return [
        {
            "source": source,
            "unit": unit,
            "dispute": dispute,
            "told": glossary.dispute(dispute),
            "by": [*_of(mine), *_choices(mine, [each for key, of in found.items() if key != place for each in of])],
            "runs": len(mine),
        }
        for place, mine in sorted(found.items())
        for source, unit, dispute in (place,)
    ]


def _of(records: Iterable[Record]) -> list[str]:
    return [f"variant {variant}" for variant in sorted({str(each.spec["release"]["variant"]) for each in records})]


def _choices(mine: Sequence[Record], others: Iterable[Record]) -> list[str]:
    """Return text and boolean options that have one value in all of `mine` and never that value in the others."""
    taken = {each for record in others for each in _words(record)}
    shared = set.intersection(*(_words(record) for record in mine))
    return [f"{name}={value}" for name, value in sorted(shared - taken)]


def _words(record: Record) -> set[tuple[str, str]]:
    options = record.spec["release"]["options"].items()
    return {(name, str(value).lower()) for name, value in options if isinstance(value, str | bool)}


def standings(name: str, releases: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rank a method's most accurate release with a small accounted epsilon among those of all methods.

    Releases are ranked per data set, tier, split and unit; a small epsilon is at most `EPSILON`. Refuted releases do
    not count, nor those that `bench choose` would refuse for their account or their version.
    """
    best: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for line in releases:
        proved = isinstance(line["epsilon"], float) and line["epsilon"] <= EPSILON * (1 + EXACT)
        stands = not line["older"] and UNTRUE.keys().isdisjoint(line["flags"])
        stands = stands and (line["delta"] or 0.0) <= MOST_DELTA * (1 + EXACT)
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
    """Return the description of each variant, the default first."""
    if name not in installed("method"):
        return []
    known = registry.variants("method", name)
    return [_variant(name, variant, registry.describe("method", name, variant)) for variant in reversed(known)]


def _variant(name: str, variant: str, described: Description) -> dict[str, Any]:
    own = described.departures if variant == "working" else ()
    return {
        "variant": variant,
        "reference": str(described.facts["reference"]),
        "version": described.facts["version"],
        "unit": str(described.facts["unit"]),
        "needs": sorted(described.facts["needs"]),
        "doc": described.doc,
        "departures": [[each.what, each.why, registry.effect(name, described, each)] for each in own],
    }
