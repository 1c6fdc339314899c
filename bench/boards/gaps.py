"""Known gaps: attacks that apply to a recommended release and did not run, with the reason, in `coverage/gaps.csv`.

`bench leaderboard --check` accepts a missing kind of attack only if the file lists it, and a line of the file only as
long as the attack is missing.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from bench.boards.coverage import AttackKind, CoveredRelease, State, coverage
from bench.boards.tables import Board
from bench.errors import BenchError

GAPS = Path("coverage", "gaps.csv")
"""The file of known gaps in a folder of boards; without it, `--check` requires no attacks."""
COLUMNS = ("dataset", "tier", "split", "methods", "kinds", "reason")
NOT_LISTED = "not attacked yet, and no reason is listed"


@dataclass(frozen=True)
class Gap:
    """A kind of attack that did not run on the recommended releases of a method at a place.

    Attributes:
        place: data set, tier and split, as `Candidate.place`.
        reason: why it did not run.
        line: number of the line in the file, from 1.
    """

    place: tuple[str, str, str]
    method: str
    kind: AttackKind
    reason: str
    line: int


def read_gaps(boards: Path) -> list[Gap] | None:
    """Read the known gaps of a folder of boards, one for each method and kind of a line; None without the file.

    Raises:
        BenchError: other columns, an empty cell or an unknown kind; the message names the line.
    """
    path = boards / GAPS
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            heads, *lines = list(csv.reader(stream))
    except FileNotFoundError:
        return None
    except (OSError, csv.Error, ValueError) as error:  # empty, or not UTF-8 text
        raise BenchError(f"{path}: not a CSV file: {error}") from None
    if tuple(heads) != COLUMNS:
        raise BenchError(f"{path}: expected the columns {','.join(COLUMNS)}, not {','.join(heads)}")
    return [gap for number, cells in enumerate(lines, 2) for gap in _gaps_of(path, number, cells)]


def _gaps_of(path: Path, number: int, cells: Sequence[str]) -> list[Gap]:
    """Return the gaps of a line. Raises BenchError as `read_gaps`."""
    if len(cells) != len(COLUMNS) or not all(cell.strip() for cell in cells):
        raise BenchError(f"{path}, line {number}: expected {len(COLUMNS)} cells, none of them empty")
    dataset, tier, split, methods, kinds, reason = cells
    if unknown := [kind for kind in kinds.split() if kind not in [*AttackKind]]:
        known = ", ".join(AttackKind)
        raise BenchError(f"{path}, line {number}: no kind of attack '{unknown[0]}': give some of {known}")
    place, named = (dataset, tier, split), product(methods.split(), map(AttackKind, kinds.split()))
    return [Gap(place, method, kind, reason, number) for method, kind in named]


def covered(board: Board, gaps: Iterable[Gap]) -> list[CoveredRelease]:
    """Return the recommended releases of a board; each missing attack has its reason."""
    reasons = {(gap.place, gap.method, gap.kind): gap.reason for gap in gaps}
    return [_with_reasons(each, reasons) for each in coverage(board)]


def _with_reasons(
    found: CoveredRelease, reasons: Mapping[tuple[tuple[str, str, str], str, AttackKind], str]
) -> CoveredRelease:
    place, method = found.release.place, found.release.row.method
    cells = [
        replace(cell, reason=reasons.get((place, method, cell.kind), NOT_LISTED))
        if cell.state is State.MISSING
        else cell
        for cell in found.cells
    ]
    return CoveredRelease(found.release, tuple(cells))


def findings(board: Board, gaps: Iterable[Gap]) -> list[str]:
    """Return a line for each release with missing attacks that are not known gaps, and for each known gap of the board
    that is none.

    Args:
        gaps: those of other boards are ignored.
    """
    missing = {
        (each.release.place, each.release.row.method, cell.kind): each.release.name
        for each in coverage(board)
        for cell in each.cells
        if cell.state is State.MISSING
    }
    known = {(gap.place, gap.method, gap.kind): gap for gap in gaps if gap.place[0] == board.dataset}
    unlisted: dict[tuple[tuple[str, str, str], str], list[str]] = defaultdict(list)
    for key, name in missing.items():
        if key not in known:
            unlisted[key[0], name].append(key[2])
    found = [
        f"{' '.join(place)}: {name} is recommended, and no attack of kind {', '.join(kinds)} ran on it; run it, or add "
        f"the reason to {GAPS}"
        for (place, name), kinds in unlisted.items()
    ]
    return found + [_not_a_gap(gap) for key, gap in known.items() if key not in missing]


def _not_a_gap(gap: Gap) -> str:
    return (
        f"{GAPS}, line {gap.line}: no recommended release of {gap.method} on {' '.join(gap.place)} is without an "
        f"attack of kind '{gap.kind}'; remove it from the line"
    )


def gaps_without_board(gaps: Iterable[Gap], datasets: Iterable[str]) -> list[str]:
    """Return a line for each known gap on a data set that has no board."""
    known = set(datasets)
    return [_not_a_gap(gap) for gap in gaps if gap.place[0] not in known]
