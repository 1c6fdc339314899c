"""The argument N of data sets whose classes are people with at least N images. Imports no library."""

from __future__ import annotations

HELD_OUT = 5
"""One image in so many of each person is held out, by the hash of its pixels."""


def check_fewest(argument: str) -> None:
    """Raises ValueError for an N that is none, or below which no image of a person could be held out."""
    if not argument.isascii() or not argument.isdigit() or int(argument) < HELD_OUT:
        raise ValueError(f"N is '{argument}'; expected a whole number of at least {HELD_OUT}, the images of a person")
