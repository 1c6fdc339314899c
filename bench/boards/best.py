"""The best releases: the most accurate one of each kind within an accounted epsilon for one private record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from bench.boards.coverage import Cell, State, cells, void_splits
from bench.boards.flags import pretrained_flag
from bench.boards.selection import EXACT, MOST_DELTA, Candidate, candidates
from bench.boards.tables import Board

EPSILONS = (1.0, 3.0, 8.0, 10.0)
"""Limits on the accounted epsilon."""
OF_STUDENTS = {
    "dgd", "dpsd", "dpdfd", "dp-dfd", "fed-dpsd", "dp-teacher", "pate", "pate-gnmax", "class-moments",
}  # fmt: skip
"""Methods whose released network did not see the records: it learned from responses or from noisy moments."""
OF_IMAGES = {
    "dp-merf", "dp-ntk", "dp-kernel", "dpdm", "dp-feta", "sim-pe", "p3gm", "psg", "dp-gan", "dp-sinkhorn", "pate-gan",
    "gs-wgan", "g-pate", "datalens", "private-drawings",
}  # fmt: skip
"""Methods that release images or a generator; their accuracy is that of a network trained on images."""
NOT_TAKEN = frozenset({"older-version", "float32-noise", "account-corrected", "refuted"})
"""Flags of releases that are not the best ones of anything."""


class Kind(StrEnum):
    """The kind of a release, and whether it used public photographs."""

    PUBLIC = "network, public photographs"
    NETWORK = "network"
    STUDENT = "student"
    IMAGES = "images"


@dataclass(frozen=True)
class Best:
    """The most accurate release of a kind within an epsilon.

    Attributes:
        limit: one of `EPSILONS`; the release's accounted epsilon is at most this.
        cells: one for each kind of attack, as in the table of coverage.
    """

    kind: Kind
    limit: float
    release: Candidate
    cells: tuple[Cell, ...]

    @property
    def attacks(self) -> str:
        """Attacks that ran on it, each with its value and its baseline; "not attacked" without any."""
        return "; ".join(f"{cell.kind} {cell}" for cell in self.cells if cell.state is State.RAN) or "not attacked"


def kind_of(release: Candidate) -> Kind:
    """Return the kind of a release, by its method and its public weights."""
    if pretrained_flag(release.row_flags):
        return Kind.PUBLIC
    method = release.row.method
    return Kind.STUDENT if method in OF_STUDENTS else Kind.IMAGES if method in OF_IMAGES else Kind.NETWORK


def best_releases(board: Board) -> list[Best]:
    """Return the best releases of a board for each kind and epsilon, where there is one.

    Counted are releases of split iid, not of tier smoke and not `printed`, which protect a record.
    """
    void = void_splits(board)
    found = [each for each in candidates([board]) if _counts(each)]
    return [
        Best(kind, limit, best, cells(best, void))
        for kind in Kind
        for limit in EPSILONS
        if (best := _most_accurate(each for each in found if kind_of(each) is kind and _is_within(each, limit)))
    ]


def _counts(release: Candidate) -> bool:
    row = release.row
    is_meant = row.variant != "printed" and row.unit == "example" and row.split == "iid" and row.tier != "smoke"
    is_known = release.accuracy is not None and release.delta is not None and release.delta <= MOST_DELTA
    return is_meant and is_known and not NOT_TAKEN & release.flags


def _is_within(release: Candidate, limit: float) -> bool:
    return release.epsilon is not None and release.epsilon <= limit * (1 + EXACT)


def _most_accurate(found: Iterable[Candidate]) -> Candidate | None:
    return max(found, key=lambda each: (each.accuracy or 0.0, -(each.epsilon or 0.0)), default=None)
