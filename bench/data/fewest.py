"""The argument N of data sets with classes of people with at least N images. Imports no library."""

from __future__ import annotations

HELD_OUT = 5
"""One in this many images of each person is held out, by the hash of its pixels."""


def check_fewest(argument: str) -> None:
    """Raise ValueError for an invalid N, or one too small to hold out an image of every person."""
    if not argument.isascii() or not argument.isdigit() or int(argument) < HELD_OUT:
        raise ValueError(f"N is '{argument}'; expected a whole number of at least {HELD_OUT}, the images of a person")
