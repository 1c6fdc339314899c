"""Methods and attacks that a user passes as classes, for example from a notebook.

The name of such a plug-in consists of the class's name and a hash of its source, as `my-method-0123456789ab`. Steps and
records have this name, so that another version of the class is another method.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from bench.errors import BadPlugin
from bench.fingerprint import fingerprint
from bench.plugins.discovery import GIVEN, KINDS, Entry, entries

HASH = 12
"""Hex digits of the hash in a name."""


def add_class(kind: str, cls: type[Any]) -> tuple[str, str | None]:
    """Register a class in this process, unless it is a plug-in already, and return its name and variant.

    Args:
        kind: "method" or "attack".
        cls: a dataclass with `version` and `tiers` (CONTRIBUTING.md).

    Returns:
        Its name; and "working" if it is the separate code of that variant of a plug-in, else None.

    Raises:
        BadPlugin: the class is not such a dataclass.
    """
    if not (dataclasses.is_dataclass(cls) and hasattr(cls, "version") and hasattr(cls, "tiers")):
        raise BadPlugin(
            f"{kind} {cls.__qualname__}: expected a frozen dataclass with `version` and `tiers`; see CONTRIBUTING.md, "
            f"or give the name of one of `bench.{kind}s()`"
        )
    for entry in entries(kind).values():
        if entry.given is None and cls.__module__ == entry.module.partition(":")[0]:
            return entry.name, None
        if entry.working is not None and cls.__module__ == entry.working.partition(":")[0]:
            return entry.name, "working"
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", cls.__name__).lower()
    name = f"{re.sub(r'[^a-z0-9-]', '', words).strip('-')}-{fingerprint(cls)[:HASH]}"
    folder = KINDS[kind].group.rpartition(".")[2]
    GIVEN.setdefault(kind, {})[name] = Entry(
        name, kind, folder, f"{cls.__module__}:{cls.__qualname__}", None, given=cls
    )
    return name, None
