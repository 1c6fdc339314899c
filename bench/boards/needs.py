"""The needs of the method of a board's release, and so what the release depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from bench import registry
from bench.config import Variant
from bench.errors import BenchError
from bench.storage.specs import canonical
from bench.validate import present


def needs(method: str, variant: Variant, tier: str, options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the needs of the installed method at these options, such as {"teacher"}; None if it is not installed or
    refuses them."""
    return _needs(method, variant, tier, canonical(options))


def teacher_matters(found: frozenset[str] | None) -> bool:
    """Whether the release depends on the teacher's network or recipe, by its `needs`; True if they are unknown."""
    return found is None or bool({"teacher", "teacher_network", "teacher_ensemble"} & found)


@cache
def _needs(method: str, variant: Variant, tier: str, given: str) -> frozenset[str] | None:
    try:
        described = registry.describe("method", method, variant)
        usual = described.values(tier, variant)
        needs_of = present(described.needs, f"`needs` of method {method}")
        return needs_of(usual | {name: value for name, value in json.loads(given).items() if name in usual})
    except (BenchError, TypeError, ValueError):  # the last two: old options that are refused today
        return None
