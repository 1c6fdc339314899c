"""Published results: leaderboards as tables, and the choice of a release by its proved privacy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import BadOption, UnknownName, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bench.boards.selection import Candidate, Choice

UNITS = ("example", "label", "query", "client")
Folder = str | os.PathLike[str] | None


def leaderboard(name: str | None = None, *, boards: Folder = None) -> pd.DataFrame:
    """Read a published leaderboard.

    Args:
        name: the data set of the board, such as "mnist"; None = all boards, one below the other.
        boards: a folder of boards; None = `leaderboards` here, else those of the installation.

    Returns:
        A row for each release: the table of releases (docs/boards.md). Numbers are floats; infinite epsilons are
        `math.inf`. `bench.boards.read_attacks` reads what attacks on them measured.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of that name.
    """
    from bench.boards.tables import RELEASES, boards_folder, data_sets, read_releases

    folder = boards_folder(None if boards is None else Path(boards))
    if name is None:
        return read_releases(folder)
    known = data_sets(folder)
    if name not in known:
        raise unknown("leaderboard", name, known)
    return read_releases(folder / RELEASES / f"{name}.csv")


@dataclass(frozen=True, repr=False)
class Chosen:
    """Releases of the boards that keep limits, from `choose`.

    Attributes:
        choice: `taken` has, for each (data set, tier, split), the candidates in order, the most accurate first;
            `excluded` the others; `nearest` sentences where nothing qualifies. Their attacks and audits are not read,
            which takes longest: `with_attacks` does.
        read: which boards were read, a phrase each.
        folders: "published" or "yours" to the folder of these boards.
    """

    choice: Choice
    read: tuple[str, ...]
    folders: Mapping[str, Path]

    def with_attacks(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Candidates of one data set with what attacks and audits measured of them, in the same order."""
        from bench.boards.selection import candidates
        from bench.boards.tables import read_board

        name, whose = found[0].row.dataset, sorted({each.whose for each in found})
        boards = [read_board(self.folders[each], name, each) for each in whose]
        complete = {(each.whose, each.row.release): each for each in candidates(boards)}
        return [complete[each.whose, each.row.release] for each in found]

    def to_frame(self) -> pd.DataFrame:
        """The candidates as a table, a row each, the most accurate of a data set, tier and split first."""
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
) -> Chosen:
    """Find the most accurate releases whose accounted epsilon keeps a limit, as `bench choose`.

    Claims of papers play no part.

    Args:
        max_epsilon: largest accounted epsilon, > 0 and finite.
        unit: the protected unit: "example", "label", "query" or "client".
        min_accuracy: least accuracy, in [0, 1].
        max_delta: largest delta of the account, in [0, 1).
        dataset: one board only.
        boards: as of `leaderboard`.
        own: a folder of your own boards, which are read too; None = `boards` here, if it has any.

    Returns:
        What qualifies, and why the others do not.

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
    from bench.boards.selection import Constraints
    from bench.boards.selection import choose as select
    from bench.boards.tables import boards_folder, own_folder, read_boards

    given = [None if folder is None else Path(folder) for folder in (boards, own)]
    places = {"published": boards_folder(given[0]), "yours": own_folder(given[1])}
    folders = {whose: folder for whose, folder in places.items() if folder is not None}
    found = {whose: read_boards(folder, whose=whose, with_attacks=False) for whose, folder in folders.items()}
    read = tuple(
        f"{whose} {folders[whose]} ({sum(len(board.releases) for board in of)} releases)" for whose, of in found.items()
    )
    known = sorted({board.dataset for of in found.values() for board in of})
    if dataset is not None and dataset not in known:
        raise UnknownName(f"--dataset {dataset}: no such board in {' or '.join(read)}; there is {', '.join(known)}")
    limits = Constraints(unit, max_epsilon, min_accuracy, max_delta)
    chosen = (board for of in found.values() for board in of if dataset in (None, board.dataset))
    return Chosen(select(chosen, limits), read, folders)
