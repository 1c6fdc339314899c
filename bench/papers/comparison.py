"""Each printed accuracy with the row of a board that stands for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.boards.board_cells import Row, blank, number, options
from bench.boards.flags import UNTRUE
from bench.boards.selection import most_measured
from bench.config import STUDENT, TIERS
from bench.papers.matching import ONE_OF_TWO, are_close, difference, names_noise, of_row
from bench.papers.printed_numbers import UNNAMED, Reported, beside
from bench.storage.options import GROUPS

Exists = Callable[[str, str], bool]


@dataclass(frozen=True)
class Line:
    """A printed accuracy and the board's row beside it; `row` is None where there is none, and `state` says why."""

    entry: Reported
    row: Row | None
    state: str
    flags: str

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return None if self.row is None else difference(number(self.row["accuracy_mean"]), self.entry)


def compare(entries: Iterable[Reported], rows: Iterable[Row], exists: Exists) -> list[Line]:
    """Each printed accuracy with our row of it, one for each variant that was run; alone if there is none.

    Beside a number that belongs to one of two epsilons, not known which, stands a row of each.

    Of several rows of a variant one of the largest tier is taken, then the one with the fewest options other than the
    defaults, then one of today's version, then one whose account is true, then one of the usual student, then the one
    with the most seeds; accuracy has no say.

    Args:
        rows: of boards, with "dataset" in each.
        exists: whether the bench has (method, data set).
    """
    done = [(row, of_row(row, unsure=True)) for row in rows if number(row.get("accuracy_mean")) is not None]
    lines = []
    for entry in entries:
        found: dict[tuple[str | float, ...], Row] = {}
        for row in sorted((row for row, printed in done if entry in printed), key=_plainness):
            claimed = number(row.get("epsilon_claimed"))
            # A number of one epsilon has one row of a variant; one that may be for two has one of each
            which = [each for each in beside(entry) if ONE_OF_TWO in entry.issues and are_close(each, claimed)]
            found.setdefault((str(row["variant"]), *which), row)
        lines += [_line(entry, found[name], "") for name in sorted(found, key=str)]
        if not found:
            lines.append(_line(entry, None, _absent(entry, exists)))
    return lines


def _absent(entry: Reported, exists: Exists) -> str:
    """Why no row stands beside a number: what the paper leaves out, else what the bench does."""
    if entry.dataset == UNNAMED:
        return "no data set named"
    if not exists(entry.method, entry.dataset):
        return "planned"
    if "protection-not-stated" in entry.issues:
        return "protection not stated"
    return "epsilon not stated" if entry.unit != "none" and not names_noise(entry) else "not run"


def _line(entry: Reported, row: Row | None, state: str) -> Line:
    own = str(blank(row.get("flags"))).split() if row is not None else []
    flags = {*own, *(f"reported:{issue}" for issue in entry.issues)}
    return Line(entry, row, state, " ".join(sorted(flags)))


def of_tier(rows: Iterable[Row], tier: str | None = None) -> list[Row]:
    """Rows of one tier; unasked, of all but tier smoke, whose numbers say nothing."""
    return [row for row in rows if row["tier"] == tier or (tier is None and row["tier"] != TIERS[0])]


def _plainness(row: Row) -> tuple[Any, ...]:
    given = options(str(blank(row.get("options"))))
    number = sum(len(given[group]) for group in GROUPS if group != "attack")
    flags = set(str(blank(row.get("flags"))).split())
    other = row.get("student") != STUDENT
    return (
        -TIERS.index(row["tier"]), number, "older-version" in flags, not flags.isdisjoint(UNTRUE), other,
        *most_measured(row),
    )  # fmt: skip
