"""Check a bundle: its files, its epsilon from its ledger, its card, its student. No private data are needed.

A bundle contains no code: only the layers of the network that it names are run. First its files are checked, without
numerical libraries (`files`); then everything is recomputed in another process with limited memory and time (`proof`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.bundle import account
from bench.bundle.files import read_bundle
from bench.bundle.limits import Limits
from bench.bundle.proof import prove, prove_within
from bench.bundle.schema import AccountedEpsilon, Model, Privacy
from bench.privacy import Unit


@dataclass(frozen=True)
class Verified:
    """Results for a valid bundle.

    Attributes:
        privacy, model: the decoded `privacy.json` and `model.json`.
        recomputed: {unit: epsilon that the installed accountant computes from the ledger}.
        files: number of files in the manifest.
        output_shape: shape of the student's logits for two images.
        notes: differences between published and recomputed epsilons, because another version of the accountant is
            installed; no recomputed epsilon is larger.
        warnings: facts that a user of the student must know (`account.warnings`).
    """

    privacy: Privacy
    model: Model
    recomputed: dict[Unit, AccountedEpsilon]
    files: int
    output_shape: tuple[int, ...]
    notes: list[str]
    warnings: list[str]


def verify(folder: Path, limits: Limits | None = Limits()) -> Verified:  # noqa: B008 - a constant
    """Check a bundle: its files, the epsilons of its ledger, its card and its student.

    Args:
        folder: the directory of the bundle.
        limits: memory and time of the computations, which run in another process; None for a trusted bundle that the
            caller made, which is checked in this process.

    Raises:
        BenchError: the directory is not a bundle.
        Failed: a file changed, is missing or was added; an epsilon differs from that of its ledger; the card is not
            that of the bundle; the student does not load, or its output is not as stated; or the check exceeds the
            limits.
    """
    contents = read_bundle(folder, limits)
    proof = prove(contents) if limits is None else prove_within(folder, limits)
    return Verified(
        privacy=contents.privacy,
        model=contents.model,
        recomputed=proof.recomputed,
        files=contents.files,
        output_shape=proof.output_shape,
        notes=proof.notes,
        warnings=account.warnings(contents.privacy),
    )
