"""Facts about installed plug-ins that boards need: versions, needs, defaults; cached, as every row needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from bench import data, plugins, registry
from bench.config import Variant
from bench.errors import BenchError
from bench.renamed import present_names, rename
from bench.storage.specs import canonical
from bench.validate import present


@cache
def installed_version(kind: str, name: str, variant: str | None) -> int:
    """Return the version of a plug-in; 0 if it or its variant is not installed."""
    try:
        return int(registry.describe(kind, name, variant).facts["version"])
    except BenchError:
        return 0


@dataclass(frozen=True)
class Defaults:
    """The version of an installed method's variant, and the default values of its options at a tier, as in specs."""

    version: int
    options: Mapping[str, Any]


@cache
def defaults(method: str, variant: str, tier: str) -> Defaults | None:
    """Return version and default options of a method's variant; None if it is not installed."""
    if method not in plugins.entries("method") or variant not in registry.variants("method", method):
        return None
    described = registry.describe("method", method, variant)
    values = rename(described.values(tier, cast(Variant, variant)), described.recorded_as)
    return Defaults(described.facts["version"], values)


def needs(method: str, variant: str, tier: str, options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the needs of the installed method at these options, such as {"teacher"}; None if it is not installed or
    refuses them."""
    return _needs(method, variant, tier, canonical(options))


@cache
def _needs(method: str, variant: str, tier: str, options: str) -> frozenset[str] | None:
    try:
        described = registry.describe("method", method, variant)
        usual = described.values(tier, cast(Variant, variant))
        needs_of = present(described.needs, f"`needs` of method {method}")
        given = present_names(json.loads(options))
        return needs_of(usual | {name: value for name, value in given.items() if name in usual})
    except (BenchError, TypeError, ValueError):  # the last two: old options that are refused today
        return None


def teacher_matters(found: frozenset[str] | None) -> bool:
    """Whether the release depends on the teacher's network or recipe, by its `needs`; True if they are unknown."""
    return found is None or bool({"teacher", "teacher_network", "teacher_ensemble"} & found)


@cache
def tuned_on_test_sets(method: str, variant: str) -> Mapping[str, str]:
    """Return data set to the settings that were chosen on its test set; {} for a method that is not installed."""
    try:
        return dict(registry.describe("method", method, variant).facts.get("seen_test_sets", {}))
    except BenchError:
        return {}


@cache
def classes_of(name: str, split: str) -> int:
    """Return the number of classes of a split of a data set; 0 if unknown."""
    return len(data.facts(name).classes_of(split))
