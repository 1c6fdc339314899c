"""Typed values of the project: privacy, records and results. Imports neither torch nor pandas."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A free-form JSON object, such as the options of a plug-in."""
