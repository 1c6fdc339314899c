"""Distinguish things of one name by the fields in which they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence


def apart(names: Sequence[Hashable], fields: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each thing the fields that distinguish it from others of its name; "" if its name is unique.

    Args:
        fields: the fields of each thing, in display order; empty ones are not shown.

    >>> apart(["a", "a", "b"], [{"teacher": "teacher=x"}, {"teacher": "teacher=y"}, {"teacher": "teacher=z"}])
    ['teacher=x', 'teacher=y', '']
    """
    others: dict[Hashable, list[Mapping[str, str]]] = defaultdict(list)
    for name, own in zip(names, fields, strict=True):
        others[name].append(own)
    return [
        ", ".join(text for field, text in own.items() if text and len({other[field] for other in others[name]}) > 1)
        for name, own in zip(names, fields, strict=True)
    ]
