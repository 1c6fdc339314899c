"""What tells things of one name apart: of the fields in which they differ, those that a reader must see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence


def apart(names: Sequence[Hashable], fields: Sequence[Mapping[str, str]]) -> list[str]:
    """For each thing its fields that some other one of the same name has otherwise; "" where a name is one thing's.

    Args:
        fields: of each thing, in the order in which they are said; an empty one is not said.

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
