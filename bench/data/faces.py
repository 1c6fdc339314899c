"""Data sets whose classes are people: those with at least N images; all others are outsiders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.data.decoded import Look
from bench.data.fewest import HELD_OUT
from bench.data.listing import Listing, Part
from bench.errors import BenchError


def identities(name: str, base: Path, shown: Mapping[Path, int], fewest: int, look: Look) -> Listing:
    """The people of `shown` (file to person) with at least `fewest` images as classes, the others as outsiders.

    Classes are in the order of the people's numbers and named after them: "person 7".

    Raises:
        BenchError: fewer than two people have so many images.
    """
    counts = Counter(shown.values())
    chosen = sorted(person for person, count in counts.items() if count >= fewest)
    if len(chosen) < 2:
        raise BenchError(
            f"data set '{name}': {len(chosen)} people have at least {fewest} images in {base}; give a smaller N"
        )
    numbers = {person: number for number, person in enumerate(chosen)}
    files = sorted((file for file, person in shown.items() if person in numbers), key=Path.as_posix)
    others = sorted((file for file, person in shown.items() if person not in numbers), key=Path.as_posix)
    part = Part(files, [numbers[shown[file]] for file in files], [shown[file] for file in files])
    names = tuple(f"person {person}" for person in chosen)
    return Listing(name, base, names, part, None, look, outsiders=others, hold_out=HELD_OUT)
