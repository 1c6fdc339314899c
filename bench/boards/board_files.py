"""Folders of boards, and all rows in them."""

from __future__ import annotations

from pathlib import Path

from bench import registry
from bench.boards.board_csv import read_board
from bench.errors import NotFound

PUBLISHED, OWN = Path("leaderboards"), Path("boards")
"""Folders of boards: of this project, and of a user."""
INSTALLED = registry.ROOT / PUBLISHED
CHECKOUT = Path("bench", "boards")
"""A folder that only a checkout of this project has next to its boards."""


def boards_folder(given: Path | None) -> Path:
    """The folder of published boards: the one given, else `leaderboards` of a checkout, else that of the installation.

    A folder of that name without the project's source next to it is a user's.
    """
    return given or (PUBLISHED if PUBLISHED.is_dir() and CHECKOUT.is_dir() else INSTALLED)


def own_folder(given: Path | None) -> Path | None:
    """The folder of a user's boards: the one given, else `boards` here, if it has any; else None."""
    return given or (OWN if any(OWN.glob("*.csv")) else None)


def boards(folder: Path) -> list[dict[str, str]]:
    """The rows of all boards in a folder, as text, each with its "dataset".

    Raises:
        BenchError: no such folder, no board in it, or a file in it that is no board.
    """
    found = sorted(folder.glob("*.csv"))
    if not found:
        inside = folder / "leaderboards"
        nearest = (
            f"give {inside}" if inside.is_dir() else "run from the project's directory, or give a folder of boards"
        )
        raise NotFound(f"no board in {folder}; {nearest}")
    return [row for path in found for row in read_board(path)]
