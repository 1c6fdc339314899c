"""Data sets with people as classes: people with at least N images; all others are outsiders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from bench.data.decoded import Look
from bench.data.fewest import HELD_OUT
from bench.data.listing import Listing, Part
from bench.errors import BadData


def identities(
    name: str, base: Path, shown: Mapping[Path, int], fewest: int, look: Look, most: int | None = None
) -> Listing:
    """List the people of `shown` (file to person) with at least `fewest` images as classes, the others as outsiders.

    Classes are in the order of the people's numbers and named after them: "person 7". Of a person with more than `most`
    images, `most` are kept, chosen by the hash of their files' names; the others are not used at all.

    Raises:
        BenchError: fewer than two people have at least `fewest` images.
    """
    every = defaultdict(list)
    for file, person in shown.items():
        every[person].append(file)
    chosen = sorted(person for person, files in every.items() if len(files) >= fewest)
    if len(chosen) < 2:
        raise BadData(
            f"data set '{name}': {len(chosen)} people have at least {fewest} images in {base}; give a smaller N"
        )
    numbers = {person: number for number, person in enumerate(chosen)}
    kept = (file for person in chosen for file in _some(every[person], base, most))
    files = sorted(kept, key=Path.as_posix)
    others = sorted((file for file, person in shown.items() if person not in numbers), key=Path.as_posix)
    part = Part(files, [numbers[shown[file]] for file in files], [shown[file] for file in files])
    names = tuple(f"person {person}" for person in chosen)
    return Listing(name, base, names, part, None, look, outsiders=others, hold_out=HELD_OUT)


def _some(files: list[Path], base: Path, most: int | None) -> list[Path]:
    """Select at most `most` of a person's files by hash: the first names often show one event."""

    def hashed(file: Path) -> str:
        return sha256(file.relative_to(base).as_posix().encode()).hexdigest()

    return sorted(files, key=hashed)[:most]
