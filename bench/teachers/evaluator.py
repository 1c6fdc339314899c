"""The network that judges reconstructions: another architecture and seed than any target, never shown to an attack.

It is trained on the whole training set with its labels (private and auxiliary images together).
"""

from __future__ import annotations

from typing import Any

from bench.config import sizes
from bench.teachers.recipes.standard import Recipe

EVALUATOR = "evaluator-cnn"

_TIERS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 1, "max_steps": 8, "batch": 64, "shift": 0},
    "quick": {"epochs": 10, "max_steps": 600, "batch": 64, "shift": 1},
    "paper": {"epochs": 20},
}


def recipe_for(tier: str) -> Recipe:
    """How the evaluator is trained in a tier. Raises BenchError for an unknown one."""
    return Recipe(**sizes(_TIERS, tier))
