"""Folders of boards, and all wide rows in them (`boards`)."""

from __future__ import annotations

from pathlib import Path

from bench import registry
from bench.boards.tables import RELEASES
from bench.boards.wide import wide_texts as boards

__all__ = ["INSTALLED", "OWN", "PUBLISHED", "boards", "boards_folder", "own_folder"]

PUBLISHED, OWN = Path("leaderboards"), Path("boards")
"""Default names of the folders of boards: this project's, and a user's."""
INSTALLED = registry.ROOT / PUBLISHED
CHECKOUT = Path("bench", "boards")
"""A folder that only a checkout of this project has next to its boards."""


def boards_folder(given: Path | None) -> Path:
    """Return the folder of published boards: the given one, else `leaderboards` of a checkout, else the installed one.

    A folder of that name without the project's source next to it is a user's.
    """
    return given or (PUBLISHED if PUBLISHED.is_dir() and CHECKOUT.is_dir() else INSTALLED)


def own_folder(given: Path | None) -> Path | None:
    """Return the folder of a user's boards: the given one, else `boards` in the working directory if it exists; or
    None."""
    return given or (OWN if any(OWN.glob(f"{RELEASES}/*.csv")) else None)
