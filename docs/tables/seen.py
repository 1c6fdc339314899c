"""The list of settings that were chosen by looking at a test set, as the sources say it."""

from __future__ import annotations

from bench import registry
from docs.tables.cells import table


def seen() -> str:
    """Data set and settings of every baseline that says so."""
    rows = [
        [f"`{name}`", dataset, settings]
        for name in registry.entries("method", "baselines")
        for dataset, settings in sorted(registry.describe("method", name).facts.get("seen_test_sets", {}).items())
    ]
    return table(["baseline", "test set of", "what was chosen"], rows)
