"""The neighbouring relation of a privacy guarantee: the unit that changes, and how it changes."""

from __future__ import annotations

from enum import StrEnum


class Relation(StrEnum):
    """How a unit differs between neighbours: added or removed, or replaced by another one."""

    ADD_OR_REMOVE_ONE = "add-or-remove"
    REPLACE_ONE = "replace"


class Unit(StrEnum):
    """The unit of data that a guarantee protects. Numbers of different units are never mixed or ranked together.

    EXAMPLE: one record of the teacher's private training set. LABEL: one private record's label. QUERY: the response to
    one synthetic image. CLIENT: all data of one federated client; the number of clients is public, so that a removed
    client stays as one without records, which still responds. NONE: no guarantee.
    """

    EXAMPLE = "example"
    LABEL = "label"
    QUERY = "query"
    CLIENT = "client"
    NONE = "none"

    @property
    def relation(self) -> Relation:
        """Return the default relation: a label or a response always exists, so it is replaced.

        Records and clients are removed.
        """
        return Relation.REPLACE_ONE if self in (Unit.LABEL, Unit.QUERY) else Relation.ADD_OR_REMOVE_ONE
