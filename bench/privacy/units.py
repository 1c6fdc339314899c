"""What one step between neighbouring data sets is: whose change a guarantee covers."""

from __future__ import annotations

from enum import StrEnum


class Relation(StrEnum):
    """How a unit changes between neighbours: it is added or removed, or replaced by another one."""

    ADD_OR_REMOVE_ONE = "add-or-remove"
    REPLACE_ONE = "replace"


class Unit(StrEnum):
    """The thing whose change a guarantee hides. Numbers of different units are never mixed or ranked together.

    EXAMPLE: one record of the teacher's private training set. LABEL: one private record's label.
    QUERY: the answer to one synthetic image. CLIENT: all data of one federated client; how many clients there are is
    public, so that a client that leaves is one without records, who still answers. NONE: no promise.
    """

    EXAMPLE = "example"
    LABEL = "label"
    QUERY = "query"
    CLIENT = "client"
    NONE = "none"

    @property
    def relation(self) -> Relation:
        """A label and an answer are always there, so that they can only be replaced; a record or a client may leave."""
        return Relation.REPLACE_ONE if self in (Unit.LABEL, Unit.QUERY) else Relation.ADD_OR_REMOVE_ONE
