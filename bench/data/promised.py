"""Check that a data set of another package reads what it declares; contract tests check this project's own."""

from __future__ import annotations

import re
from typing import Any

from bench.data.dataset import DatasetFacts
from bench.data.images import ImageData
from bench.data.request import Request

CHANNELS = (1, 3)
WORDS = re.compile(r"[a-z0-9_-]{1,64}")
"""Pattern of a data set's name, which becomes part of file names."""


def unlike(name: str, facts: DatasetFacts, found: Any, asked: Request) -> str:
    """Return the fault of the images that a data set called `name` has read for a request; "" if there is none."""
    if not isinstance(found, ImageData):
        return f"reads {type(found).__name__}; expected ImageData"
    if not (found.name == name or found.name.startswith(f"{name}-")) or not WORDS.fullmatch(found.name):
        return f"reads images called '{found.name}'; expected '{name}', or '{name}-' and letters, digits, - and _"
    channels, height, width = found.shape
    if channels not in CHANNELS or height != width:
        return f"reads images of {channels}x{height}x{width}; expected 1 or 3 channels, and as many rows as columns"
    if facts.class_names and tuple(found.class_names) != facts.class_names:
        return f"reads {found.classes} classes that are not those of its facts, {', '.join(facts.class_names)}"
    is_own = asked.size is None and asked.channels is None
    if is_own and facts.shape is not None and found.shape != facts.shape:
        return f"reads images of {channels}x{height}x{width}; its facts say {'x'.join(map(str, facts.shape))}"
    return ""
