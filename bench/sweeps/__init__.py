"""Sweeps: recipes of many runs, what has to be done for them, and who does it."""

from __future__ import annotations

from bench.sweeps.plan import Cell, State, plan
from bench.sweeps.recipe import Recipe, read

__all__ = ["Cell", "Recipe", "State", "plan", "read"]
