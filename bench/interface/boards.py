"""Published results: leaderboards as tables, and the choice of a release by its proved privacy."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BadOption, UnknownName, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bench.boards.selection import Choice

UNITS = ("example", "label", "query", "client")
WHOSE = "whose"
"""Column of rows: "published", or "yours"."""

Folder = str | os.PathLike[str] | None


def leaderboard(name: str | None = None, *, boards: Folder = None) -> pd.DataFrame:
    """Read a published leaderboard.

    Args:
        name: the data set of the board, such as "mnist"; None = all boards, one below the other.
        boards: a folder of boards; None = `leaderboards` here, else those of the installation.

    Returns:
        A row for each release with an attack or without one. Numbers are floats; infinite epsilons are `math.inf`.

    Raises:
        NotFound: no board in the folder.
        UnknownName: no board of that name.
    """
    rows = _releases(boards)
    known = sorted({row["dataset"] for row in rows})
    if name is not None and name not in known:
        raise unknown("leaderboard", name, known)
    import pandas as pd

    table = pd.DataFrame([row for row in rows if name in (None, row["dataset"])])
    return table.apply(_as_numbers)


def _releases(boards: Folder) -> list[dict[str, str]]:
    """The rows of all boards in a folder."""
    from bench.boards import board_files

    return board_files.boards(board_files.boards_folder(None if boards is None else Path(boards)))


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of texts as floats where all that are not empty are numbers."""
    import pandas as pd

    numbers = pd.to_numeric(column.replace("", None), errors="coerce")
    is_numeric = bool((numbers.notna() | (column == "") | column.isna()).all()) and bool(numbers.notna().any())
    return numbers.astype(float) if is_numeric else column


@dataclass(frozen=True, repr=False)
class Chosen:
    """Releases of the boards that keep limits, from `choose`.

    Attributes:
        choice: `taken` has, for each (data set, tier, split), the candidates in order, the most accurate first;
            `excluded` the others, each with the reason; `nearest` sentences where nothing qualifies.
        read: which boards were read, a phrase each.
    """

    choice: Choice
    read: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """The candidates as a table, a row each, the most accurate of a data set, tier and split first."""
        import pandas as pd

        columns = ["dataset", "tier", "split", "release", "accuracy", "epsilon", "delta", "unit", WHOSE]
        rows = [
            (*place, each.name, each.accuracy, each.epsilon, each.delta, each.row["unit"], each.row[WHOSE])
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
    from bench.boards import board_files
    from bench.boards.selection import Constraints
    from bench.boards.selection import choose as select

    given = [None if folder is None else Path(folder) for folder in (boards, own)]
    places = (("published", board_files.boards_folder(given[0])), ("yours", board_files.own_folder(given[1])))
    rows: list[dict[str, str]] = []
    read = []
    for whose, place in places:
        if place is not None:
            found = [row | {WHOSE: whose} for row in _releases(place)]
            rows += found
            read.append(f"{whose} {place} ({len(found)} rows)")
    known = sorted({row["dataset"] for row in rows})
    if dataset is not None and dataset not in known:
        raise UnknownName(f"--dataset {dataset}: no such board in {' or '.join(read)}; there is {', '.join(known)}")
    limits = Constraints(unit, max_epsilon, min_accuracy, max_delta)
    return Chosen(select([row for row in rows if dataset in (None, row["dataset"])], limits), tuple(read))
