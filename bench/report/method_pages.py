"""One page per method: description, privacy, measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bench import registry
from bench.boards.flags import UNTRUE
from bench.boards.selection import EXACT, MOST_DELTA
from bench.privacy.claims import dispute as reason_of_dispute
from bench.renamed import present_names
from bench.report import glossary
from bench.report.command import installed, variants_of
from bench.report.releases import EPSILON, ReleaseLine
from bench.report.runs import AuditLine, audit_lines
from bench.storage.records import Audit, Record

AS_PRINTED = ", as its paper prints it"
Added = Mapping[str, Mapping[str, object]]
"""Name of a section to method to its contribution."""


@dataclass(frozen=True)
class VariantPage:
    """A variant of a method; `departures` are its changes from the paper: the change, the reason, the effect."""

    variant: str
    reference: str
    version: int
    unit: str
    needs: list[str]
    doc: str
    departures: list[tuple[str, str, str]]


@dataclass(frozen=True)
class ClaimLine:
    """A claim of a method's runs.

    Attributes:
        source: the theorem.
        dispute, explanation: why the claim is disputed, as a code and in words; "" if it is not.
        by: the variants of the runs with this claim, and the options, such as "mode=label", that only they have.
        runs: number of these runs.
    """

    source: str
    unit: str
    dispute: str
    explanation: str
    by: list[str]
    runs: int


@dataclass(frozen=True)
class Ranking:
    """The rank of a method's most accurate release with a small accounted epsilon among those of `of` methods."""

    dataset: str
    tier: str
    split: str
    unit: str
    accuracy: float
    rank: int
    of: int


@dataclass(frozen=True)
class MethodSummary:
    """A method in the list of methods; `folder` is where its code is, and `runs` the number of its runs."""

    name: str
    folder: str
    summary: str
    runs: int


@dataclass(frozen=True)
class MethodPage(MethodSummary):
    """A method's page."""

    variants: list[VariantPage]
    claims: list[ClaimLine]
    releases: list[ReleaseLine]
    audits: list[AuditLine]
    rankings: list[Ranking]
    sections: Mapping[str, object]


def pages(
    records: Sequence[Record], audits: Sequence[Audit], releases: Sequence[ReleaseLine], added: Added
) -> list[MethodPage]:
    """Return one page for every method of the bench and every one that has runs, by name.

    Args:
        releases: releases of all data sets.
        added: contributions of sections.
    """
    of: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of[record.spec["release"]["method"]].append(record)
    return [
        MethodPage(
            name=name,
            folder=installed("method").get(name, "unknown"),
            summary=summary(name),
            runs=len(of[name]),
            variants=_variants(name),
            claims=claims(of[name]),
            releases=[line for line in releases if line.method == name],
            audits=audit_lines([audit for audit in audits if audit.spec["release"]["method"] == name]),
            rankings=rankings(name, releases),
            sections={section: methods[name] for section, methods in added.items() if name in methods},
        )
        for name in sorted({*installed("method"), *of})
    ]


def summary(name: str) -> str:
    """Return the first line of a method's docstring, without `AS_PRINTED` if another variant is the default."""
    if name not in installed("method"):
        return "not installed here"
    line = registry.entries("method")[name].summary
    return line if variants_of("method", name)[-1] == "printed" else line.replace(AS_PRINTED, "")


def claims(records: Iterable[Record]) -> list[ClaimLine]:
    """Return the claims of records, by theorem, unit and dispute."""
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        claim = record.privacy.get("claimed")
        if claim is not None:
            found[claim.get("source", ""), claim["unit"], reason_of_dispute(record.privacy)].append(record)
    lines = []
    for key, mine in sorted(found.items()):
        source, unit, dispute = key
        others = [record for place, of in found.items() if place != key for record in of]
        variants = sorted({str(record.spec["release"]["variant"]) for record in mine})
        own = set.intersection(*map(_words, mine)) - {each for record in others for each in _words(record)}
        by = [f"variant {variant}" for variant in variants] + [f"{name}={value}" for name, value in sorted(own)]
        lines.append(ClaimLine(source, unit, dispute, glossary.dispute(dispute), by, len(mine)))
    return lines


def _words(record: Record) -> set[tuple[str, str]]:
    """Return the text and boolean options of a method."""
    options = present_names(record.spec["release"]["options"]).items()
    return {(name, str(value).lower()) for name, value in options if isinstance(value, str | bool)}


def rankings(name: str, releases: Iterable[ReleaseLine]) -> list[Ranking]:
    """Rank a method's most accurate release with a small accounted epsilon among those of all methods.

    Releases are ranked per data set, tier, split and unit; a small epsilon is at most `EPSILON`. Refuted releases do
    not count, nor those that `bench choose` would refuse for their account or their version.
    """
    best: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    for line in releases:
        is_small = isinstance(line.epsilon, float) and line.epsilon <= EPSILON * (1 + EXACT)
        is_valid = not line.older and UNTRUE.keys().isdisjoint(line.flags)
        is_valid = is_valid and (line.delta or 0.0) <= MOST_DELTA * (1 + EXACT)
        if is_small and is_valid and line.accuracy is not None and line.tier != "smoke":
            of = best[line.dataset, line.tier, line.split, line.unit]
            of[line.method] = max(of.get(line.method, 0.0), line.accuracy)
    return [
        Ranking(*place, of[name], 1 + sum(other > of[name] for other in of.values()), len(of))
        for place, of in sorted(best.items())
        if name in of
    ]


@cache
def _variants(name: str) -> list[VariantPage]:
    """Return the description of each variant, the default first."""
    if name not in installed("method"):
        return []
    found = []
    for variant in reversed(registry.variants("method", name)):
        described = registry.describe("method", name, variant)
        facts = described.facts
        own = described.departures if variant == "working" else ()
        found.append(VariantPage(
            variant, str(facts["reference"]), facts["version"], str(facts["unit"]), sorted(facts["needs"]),
            described.doc, [(each.what, each.why, registry.effect(name, described, each)) for each in own],
        ))  # fmt: skip
    return found
