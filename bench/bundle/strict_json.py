"""Strict JSON for untrusted files: unique keys, finite numbers, and a one-line error otherwise."""

from __future__ import annotations

import json
import math
from typing import Any

from bench.escape import visible


class Failed(Exception):
    """A bundle is not valid; the message says in one line why."""


def load(content: bytes, name: str) -> Any:
    """Decode a JSON text.

    Args:
        name: file name, for the error message.

    Raises:
        Failed: not JSON in UTF-8, nested too deeply, a repeated key, or a number that is not finite.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key[:100]!r} is there twice")
            found[key] = value
        return found

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text[:40]} is not a finite number")
        return number

    try:
        return json.loads(content.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {visible(str(error))}"
        raise Failed(f"{name} cannot be read ({reason[:200]})") from None
