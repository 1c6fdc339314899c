"""Published results: leaderboards as tables, and the choice of a release by its accounted epsilon."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.errors import BadOption, UnknownName, unknown
from bench.privacy import Unit

if TYPE_CHECKING:
    import pandas as pd

    from bench.boards.selection import Candidate, Choice

UNITS = tuple(unit.value for unit in Unit if unit is not Unit.NONE)
"""Units by which releases can be chosen."""
Folder = str | os.PathLike[str] | None


def leaderboard(
    name: str | None = None,
    *,
    table: Literal["releases", "attacks", "coverage", "best"] = "releases",
    boards: Folder = None,
) -> pd.DataFrame:
    """Read a published leaderboard.

    Args:
        name: the data set of the board, such as "mnist"; None = all boards, one below the other.
        table: "releases" has a row for each release, "attacks" a row for each attack on one and each metric, "coverage"
            a row for each release that `choose` can recommend and each kind of attack, "best" a row for each kind of
            release and each limit on epsilon: the most accurate one.
        boards: a folder of boards; None = `leaderboards` here, else those of the installation.

    Returns:
        The table (docs/boards.md) with a column `dataset`; both tables join by the column `release`. Numbers are
        floats; infinite epsilons are `math.inf`.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board or no table of that name.
    """
    from bench.boards.records import boards_folder
    from bench.boards.tables import read_attacks, read_releases

    readers = {"releases": read_releases, "attacks": read_attacks, "coverage": _read_coverage, "best": _read_best}
    if table not in readers:
        raise unknown("table", table, readers)
    rows = readers[table](boards_folder(None if boards is None else Path(boards)))
    known = sorted(set(rows["dataset"]))
    if name is not None and name not in known:
        raise unknown("leaderboard", name, known)
    return rows if name is None else rows[rows["dataset"] == name].reset_index(drop=True)


def _read_coverage(folder: Path) -> pd.DataFrame:
    """Read which attacks ran on the recommended releases: one row for each release and kind of attack, none missing."""
    import pandas as pd

    from bench.boards.coverage import Cell
    from bench.boards.gaps import covered, read_gaps
    from bench.boards.tables import read_boards

    gaps = read_gaps(folder) or []
    rows = []
    for each in (each for board in read_boards(folder) for each in covered(board, gaps)):
        row = each.release.row
        of_release = (row.dataset, row.release, row.tier, row.split, row.unit, each.release.name, row.epsilon_accounted)
        rows += [(*of_release, *dataclasses.astuple(cell)) for cell in each.cells]
    of_cell = [field.name for field in dataclasses.fields(Cell)]
    return pd.DataFrame(rows, columns=["dataset", "release", "tier", "split", "unit", "name", "epsilon", *of_cell])


def _read_best(folder: Path) -> pd.DataFrame:
    """Read the best release of each kind within an accounted epsilon of 1, 3, 8 and 10."""
    import pandas as pd

    from bench.boards.best import best_releases
    from bench.boards.tables import read_boards

    rows = []
    for each in (each for board in read_boards(folder) for each in best_releases(board)):
        release, row = each.release, each.release.row
        known = (row.dataset, str(each.kind), each.limit, row.release, release.name, release.epsilon, release.accuracy)
        rows.append((*known, release.finished, each.attacks))
    columns = ["dataset", "kind", "within", "release", "name", "epsilon", "accuracy", "seeds", "attacks"]
    return pd.DataFrame(rows, columns=columns)


def reported() -> pd.DataFrame:
    """Read the numbers that the four papers publish.

    Returns:
        A row for each number: paper, table, data set, method, epsilon, value (a share in [0, 1]), setting, and `issue`,
        the known doubts about it (docs/papers.md). `epsilon` and `delta` are NaN where the paper gives none.

    Raises:
        BenchError: the file of the published numbers is missing or damaged.
    """
    import pandas as pd

    from bench import extensions

    numbers = [number for load in extensions.load("published numbers").values() for number in load()]
    table = pd.DataFrame([number.to_row() for number in numbers])
    for column in ("epsilon", "delta", "value"):
        table[column] = pd.to_numeric(table[column])
    return table


@dataclass(frozen=True, repr=False)
class Chosen:
    """Releases of the boards that meet given limits, from `choose`.

    Attributes:
        choice: `taken` has, for each (data set, tier, split), the candidates, the most accurate first; `excluded` has
            the other releases (`bench.boards.selection.objection` gives the reason); `nearest` has sentences on the
            nearest releases if none qualifies.
        read: descriptions of the boards that were read.
        folders: the folder of the boards that are "published" and of those that are "yours".
    """

    choice: Choice
    read: tuple[str, ...]
    folders: Mapping[str, Path]

    def add_attacks(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Add the results of attacks and audits to candidates of one data set, which must not be empty."""
        from bench.boards.selection import candidates
        from bench.boards.tables import read_board

        name = found[0].row.dataset
        boards = [read_board(self.folders[whose], name, whose) for whose in sorted({each.whose for each in found})]
        complete = {(each.whose, each.row.release): each for each in candidates(boards)}
        return [complete[each.whose, each.row.release] for each in found]

    def to_frame(self) -> pd.DataFrame:
        """Return the candidates as a table; the most accurate of a data set, tier and split comes first."""
        import pandas as pd

        columns = ["dataset", "tier", "split", "release", "accuracy", "epsilon", "delta", "unit", "whose"]
        rows = [
            (*place, each.name, each.accuracy, each.epsilon, each.delta, each.row.unit, each.whose)
            for place, found in self.choice.taken.items()
            for each in found
        ]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        table = self.to_frame()
        return "\n".join(self.choice.nearest) if table.empty else table.to_string(index=False)

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False)


def choose(
    max_epsilon: float,
    *,
    unit: str = "example",
    min_accuracy: float = 0.0,
    max_delta: float = 1e-4,
    dataset: str | None = None,
    boards: Folder = None,
    own: Folder = None,
    with_attacks: bool = True,
) -> Chosen:
    """Find the most accurate releases whose accounted epsilon is within a limit, as `bench choose`.

    Claimed epsilons are ignored.

    Args:
        max_epsilon: largest accounted epsilon, > 0 and finite.
        unit: the protected unit: "example", "label", "query", "client" or "group".
        min_accuracy: smallest accuracy, in [0, 1].
        max_delta: largest delta of the accounted epsilon, in [0, 1).
        dataset: one board only.
        boards: a folder of published boards, as for `leaderboard`.
        own: a folder of your own boards, which are read too; None = `boards` in the working directory, if it exists.
        with_attacks: read the results of attacks too, which takes most of the time.

    Returns:
        The releases that qualify, and the reasons why the others do not.

    Raises:
        BadOption: a limit out of range.
        UnknownName: another unit, or no board of the data set.
        NotFound: no boards.
    """
    if unit not in UNITS:
        raise unknown("unit", unit, UNITS)
    if not (max_epsilon > 0 and math.isfinite(max_epsilon)):
        raise BadOption(f"--max-epsilon {max_epsilon}: expected a finite number above 0")
    if not 0 <= min_accuracy <= 1:
        raise BadOption(f"--min-accuracy {min_accuracy}: expected a fraction in [0, 1], as in 0.9")
    if not 0 <= max_delta < 1:
        raise BadOption(f"--max-delta {max_delta}: expected a number in [0, 1), below one over the records")
    from bench.boards.records import boards_folder, own_folder
    from bench.boards.selection import Constraints
    from bench.boards.selection import choose as select
    from bench.boards.tables import read_boards

    places = {
        "published": boards_folder(None if boards is None else Path(boards)),
        "yours": own_folder(None if own is None else Path(own)),
    }
    folders = {whose: folder for whose, folder in places.items() if folder is not None}
    found = [board for whose, folder in folders.items() for board in read_boards(folder, None, whose, with_attacks)]
    count = {whose: sum(len(board.releases) for board in found if board.whose == whose) for whose in folders}
    read = [f"{whose} {folder} ({count[whose]} releases)" for whose, folder in folders.items()]
    known = sorted({board.dataset for board in found})
    if dataset is not None and dataset not in known:
        raise UnknownName(f"--dataset {dataset}: no such board in {' or '.join(read)}; give one of {', '.join(known)}")
    limits = Constraints(unit, max_epsilon, min_accuracy, max_delta)
    choice = select((board for board in found if dataset in (None, board.dataset)), limits)
    return Chosen(choice, tuple(read), folders)
