"""Checking a bundle: its files, its epsilon from its ledger, its card, its student. No private data are needed.

Nothing of a bundle is run but the network's own layers. First its files are checked, with the standard library only
(`files`); then everything is computed again in another process, which has a limit of memory and time (`proof`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.bundle import account
from bench.bundle.files import read_bundle
from bench.bundle.limits import Limits
from bench.bundle.proof import prove, prove_within
from bench.bundle.schema import Model, Privacy, Proved
from bench.privacy import Unit


@dataclass(frozen=True)
class Verified:
    """What was found of a bundle that is what it says.

    Attributes:
        privacy, model: its two JSON files.
        recomputed: unit to what the installed accountant proves from the ledger.
        files: how many the manifest names.
        answered: the shape of the student's answer to two images.
        notes: numbers of the installed accountant, of another version, that differ; all in the user's favour.
        warnings: facts that a reader must know.
    """

    privacy: Privacy
    model: Model
    recomputed: dict[Unit, Proved]
    files: int
    answered: tuple[int, ...]
    notes: list[str]
    warnings: list[str]


def verify(folder: Path, limits: Limits | None = Limits()) -> Verified:  # noqa: B008 - a constant
    """Check a bundle.

    Args:
        limits: memory and time of the computations, which run in another process; None for a bundle that the caller
            made, which is checked in this process.

    Raises:
        BenchError: the directory is not a bundle.
        Failed: a file changed, is missing or was added; an epsilon is not what its ledger gives; the card is not that
            of the bundle; the student does not load, or does not answer as stated; or the check takes more than the
            limits.
    """
    contents = read_bundle(folder, limits)
    proof = prove(contents) if limits is None else prove_within(folder, limits)
    said = account.warnings(contents.privacy)
    return Verified(
        contents.privacy, contents.model, proof.recomputed, contents.files, proof.answered, proof.notes, said
    )
