"""Recompute what a bundle states and compare: the epsilons of its ledger, its card, its student.

Run as a module, it checks one bundle within limits: `python -m bench.bundle.proof DIR MIB SECONDS`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from pydantic import TypeAdapter

from bench.bundle import account, card
from bench.bundle.files import Contents, read_bundle
from bench.bundle.limits import Limits, limited, run_limited
from bench.bundle.schema import CARD, MODEL, PRIVACY, AccountedEpsilon, Failed, Privacy, Strict
from bench.errors import BenchError
from bench.privacy import Unit
from bench.privacy.accountant import VERSION
from bench.privacy.claims import dispute

CLOSE = 1e-6


class Proof(Strict):
    """Results for a valid bundle.

    Attributes:
        recomputed: {unit: epsilon that the installed accountant computes from the ledger}.
        output_shape: shape of the student's logits for two images.
        notes: differences between published and recomputed epsilons, because another version of the accountant is
            installed; no recomputed epsilon is larger.
    """

    recomputed: dict[Unit, AccountedEpsilon]
    output_shape: tuple[int, ...]
    notes: list[str]


class Refusal(Strict):
    """Result for an invalid bundle: `refused` is the reason, in one line."""

    refused: str


_RESULT: TypeAdapter[Proof | Refusal] = TypeAdapter(Proof | Refusal)


def prove(contents: Contents) -> Proof:
    """Recompute everything in this process, without limits on memory and time; raise Failed for a difference."""
    recomputed, notes = check_account(contents.privacy)
    check_card(contents)
    return Proof(recomputed=recomputed, notes=notes, output_shape=_check_student(contents))


def prove_within(folder: Path, limits: Limits) -> Proof:
    """Run `prove` in a process with limits; raise Failed for a difference or an exceeded limit."""
    printed = run_limited([__name__, str(folder), str(limits.mib), str(limits.seconds)], limits)
    found = _RESULT.validate_json(printed)
    if isinstance(found, Refusal):
        raise Failed(found.refused)
    return found


def main(arguments: Sequence[str]) -> None:
    """Check the bundle named on the command line (DIR MIB SECONDS); print a `Proof` or a `Refusal` as JSON."""
    limits, start = Limits(int(arguments[1]), int(arguments[2])), time.process_time()
    try:
        contents = read_bundle(Path(arguments[0]), limits)
        import dp_accounting  # noqa: F401 - trusted libraries are imported outside the limits

        with limited(limits):
            recomputed, notes = check_account(contents.privacy)
            check_card(contents)
        spent = int(time.process_time() - start)
        from bench.bundle.network import import_libraries

        import_libraries(contents.model.architecture)  # they need more memory than a bundle may
        with limited(limits, spent):
            output_shape = _check_student(contents)
    except (BenchError, Failed) as error:
        print(Refusal(refused=str(error)).model_dump_json())
        return
    print(json.dumps(Proof(recomputed=recomputed, notes=notes, output_shape=output_shape).to_json()))


def check_account(privacy: Privacy) -> tuple[dict[Unit, AccountedEpsilon], list[str]]:
    """Recompute the epsilons of the ledger; return them with notes on other accountant versions, or raise Failed."""
    try:
        found = account.recompute(account.ledger_of(privacy.events), privacy.delta)
    except (BenchError, ArithmeticError, ValueError) as error:
        raise Failed(f"{PRIVACY}: {error}") from None
    recomputed = {unit: account.published(each) for unit, each in found.items()}
    if set(recomputed) != set(privacy.accounted):
        raise Failed(
            f"{PRIVACY} has epsilons per {', '.join(sorted(privacy.accounted))}; "
            f"its ledger has entries per {', '.join(recomputed)}"
        )
    notes = [note for unit, ours in recomputed.items() for note in compare(privacy, privacy.accounted[unit], ours)]
    units = {str(unit): each.to_json() for unit, each in recomputed.items()}
    claim, known = privacy.claimed, dispute(privacy.to_json() | {"accounted_units": units})
    if claim is not None and not claim.disputed and known:
        raise Failed(f"{PRIVACY}: the claim of {claim.source!r} is not marked as disputed; expected {known}")
    if privacy.warnings != account.warnings(privacy):
        raise Failed(f"{PRIVACY}: its warnings are not those that follow from its other fields")
    return recomputed, notes


def compare(privacy: Privacy, theirs: AccountedEpsilon, ours: AccountedEpsilon) -> list[str]:
    """Compare a published epsilon with the recomputed one; return [] if they are equal, else one note.

    They may differ only if another version of the accountant published a larger one.

    Raises:
        Failed: the published epsilon is smaller, or it differs although the accountant has the same version.
    """
    if theirs.relation != ours.relation:
        raise Failed(f"unit {ours.unit}: published for {theirs.relation}; accounted for {ours.relation}")
    same = _close(theirs.epsilon, ours.epsilon) and _close(theirs.delta, ours.delta)
    if privacy.accountant == VERSION:
        derived = [(each.accountant, each.version, each.note) for each in (theirs, ours)]
        if same and derived[0] != derived[1]:
            raise Failed(f"unit {ours.unit}: published with {derived[0]}; the ledger gives {derived[1]}")
    if same:
        return []
    both = (
        f"unit {ours.unit}: epsilon {theirs.epsilon:.8g} at delta {theirs.delta:g} is published, the ledger gives "
        f"{ours.epsilon:.8g} at delta {ours.delta:g}"
    )
    if privacy.accountant == VERSION:
        raise Failed(both)
    both += f"; published by accountant {privacy.accountant}, installed is {VERSION}"
    if ours.epsilon <= theirs.epsilon and ours.delta <= theirs.delta:
        return [both]
    raise Failed(both)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=CLOSE)


def check_card(contents: Contents) -> None:
    """Raise Failed unless the card is, byte for byte, the one written from the two JSON files."""
    expected = card.card(contents.privacy, contents.model, contents.extras).encode()
    if contents.card == expected:
        return
    ours, theirs = (text.decode(errors="replace").split("\n") for text in (expected, contents.card))
    line = next((pair for pair in zip_longest(ours, theirs, fillvalue="") if pair[0] != pair[1]), ("", ""))
    both = f"it has {line[1][:300]!r} instead of {line[0][:300]!r}"
    raise Failed(f"{CARD} is not the card of {PRIVACY} and {MODEL}: {both}")


def _check_student(contents: Contents) -> tuple[int, ...]:
    from bench.bundle.network import check_student, student

    try:
        return check_student(student(contents.folder, contents.model), contents.model)
    except BenchError as error:
        if _is_out_of_memory(error):
            raise MemoryError from None
        raise Failed(str(error)) from None


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a chain of errors began with too little memory; torch and safetensors have no class for it."""
    if error is None:
        return False
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or _is_out_of_memory(error.__cause__)


if __name__ == "__main__":
    main(sys.argv[1:])
