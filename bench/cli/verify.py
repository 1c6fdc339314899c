"""`bench verify`: whether a bundle is what it says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli import paths
from bench.progress import head, out

if TYPE_CHECKING:
    from bench.bundle import Verified

HELP = "check a bundle of `bench export`: its files, its epsilon from its ledger, its student"
DESCRIPTION = (
    "Holds every file against the manifest, computes every epsilon again from the ledger with the installed "
    "accountant, and loads the student. Exit status 0: as printed; 1: it is not; 2: no bundle. Whether the ledger is "
    "what the method did, no one can see from a bundle."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench verify`."""
    parser.add_argument("folder", metavar="DIR", type=paths.named, help="a directory that `bench export` wrote")


def execute(given: argparse.Namespace) -> int:
    """Verify and show. Returns the exit status."""
    from bench import bundle

    try:
        found = bundle.verify(given.folder)
    except bundle.Failed as error:
        print(f"bench: not verified: {error}", file=sys.stderr)
        return 1
    show(given.folder, found)
    return 0


def show(folder: Path, found: Verified) -> None:
    """Print the table of epsilons, the student, the verdict and the warnings."""
    from rich.table import Table

    model, privacy = found.model, found.privacy
    head(f"\n{model['architecture']}, released by {privacy['method']['name']}")
    table = Table(box=None, header_style="bold")
    for column in ("epsilon", "printed", "recomputed", "delta", "protects one", "neighbours"):
        table.add_column(column)
    for unit, ours in found.recomputed.items():
        printed = privacy["accounted"][unit]
        table.add_row(
            *("accounted", _number(printed), _number(ours.to_json())),
            *(f"{printed['delta']:g}", unit, printed["relation"]),
        )
    if (claim := privacy["claimed"]) is not None:
        table.add_row("claimed", _number(claim), "-", f"{claim['delta']:g}", claim["unit"], "")
    out.print(table)
    shape = "x".join(map(str, model["input"]["shape"]))
    lines = [
        f"files     {found.files} as in the manifest",
        f"student   answers two {shape} images with {found.answered[1]} classes each",
        *(f"note: {note}" for note in found.notes),
        *(f"verified: epsilon {_promise(unit, privacy['accounted'][unit], found)}" for unit in found.recomputed),
        *(f"warning: {line}" for line in found.warnings),
        f"bundle    {folder}",
    ]
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def _promise(unit: str, printed: dict[str, Any], found: Verified) -> str:
    differs = any(note.startswith(f"unit {unit}:") for note in found.notes)
    how = "no more than printed" if differs else "as printed"
    return f"{_number(printed)} at delta {printed['delta']:g} per {unit}, {how}"


def _number(found: dict[str, Any]) -> str:
    from bench.bundle.account import shown

    return shown(found)
