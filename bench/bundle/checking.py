"""Checking a bundle: its files, its epsilon from its ledger, its student. No private data are needed for that.

Nothing of a bundle is run but the network's own layers: `student.pt2` is only held against the manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bench.bundle import account, card, network
from bench.errors import BenchError
from bench.privacy import Ledger
from bench.privacy.accountant import VERSION, Accounted, EmptyLedger
from bench.privacy.budget import epsilon_from_json

MANIFEST = "MANIFEST.json"
CLOSE = 1e-6
NEEDED = (account.FILE, network.FILE, network.WEIGHTS, card.FILE)


class Failed(Exception):
    """A bundle is not what it says it is; one line says in what."""


@dataclass(frozen=True)
class Verified:
    """What was found of a bundle that is what it says.

    Attributes:
        privacy, model: its two JSON files.
        recomputed: unit to what the installed accountant proves from the ledger.
        files: how many the manifest names.
        answered: the shape of the student's answer to two images.
        notes: what the installed accountant, of another version, sees differently; all of it in the user's favour.
        warnings: what a reader must know, derived again from the account.
    """

    privacy: dict[str, Any]
    model: dict[str, Any]
    recomputed: dict[str, Accounted]
    files: int
    answered: tuple[int, ...]
    notes: list[str]
    warnings: list[str]


def verify(folder: Path) -> Verified:
    """Check a bundle.

    Raises:
        BenchError: the directory is no bundle.
        Failed: a file changed, is missing or was added; an epsilon is not what its ledger gives; or the student does
            not load, or does not answer as stated.
    """
    if not (folder / MANIFEST).is_file():
        raise BenchError(f"DIR {folder}: no {MANIFEST}, so no bundle; give a directory that `bench export` wrote")
    files = _check_files(folder)
    privacy, model = _read(folder / account.FILE), _read(folder / network.FILE)
    try:
        recomputed, notes = _check_account(privacy)
        warnings = account.warnings(privacy)
        _expect_text(privacy["method"]["name"], account.FILE, "the method's name")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Failed(f"{account.FILE} is not an account ({type(error).__name__}: {error})") from None
    except (BenchError, EmptyLedger) as error:
        raise Failed(f"{account.FILE}: {error}") from None
    try:
        answered = network.answers(network.load(folder), model)
    except BenchError as error:
        raise Failed(str(error)) from None
    _check_card(folder, privacy, model)
    return Verified(privacy, model, recomputed, files, answered, notes, warnings)


def _check_files(folder: Path) -> int:
    """The number of files, all of which are as the manifest says."""
    try:
        listed: dict[str, str] = dict(_read(folder / MANIFEST)["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(f"{MANIFEST} is no manifest: it has no list of files with their SHA-256") from error
    there = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    del there[MANIFEST]
    changed = [name for name in listed if name in there and _sha256(there[name]) != listed[name]]
    found = {
        "changed": changed,
        "missing": [name for name in {*listed, *NEEDED} if name not in there],
        "added": [name for name in there if name not in listed],
    }
    faults = [f"{kind}: {', '.join(sorted(names))}" for kind, names in found.items() if names]
    if faults:
        raise Failed(f"the files are not those of {MANIFEST}; {'; '.join(faults)}")
    return len(listed)


def _sha256(path: Path) -> str:
    if not path.is_file():  # a pipe would be read for ever
        raise Failed(f"{path} is no file")
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise Failed(f"{path} cannot be read ({error.strerror})") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Failed(f"{path.name} cannot be read ({type(error).__name__}: {error})") from None


def _check_account(privacy: dict[str, Any]) -> tuple[dict[str, Accounted], list[str]]:
    """The epsilons of the ledger, and what another version of the accountant sees differently."""
    if privacy["format"] != account.FORMAT:
        raise Failed(f"{account.FILE} is of format {privacy['format']}; this package reads {account.FORMAT}")
    recomputed = account.recompute(Ledger.from_json(privacy["events"]), privacy["delta"])
    if set(recomputed) != set(privacy["accounted"]) or privacy["unit"] not in recomputed:
        raise Failed(
            f"{account.FILE} prints epsilons per {', '.join(sorted(privacy['accounted']))}; "
            f"its ledger speaks of {', '.join(recomputed)}"
        )
    return recomputed, [note for unit in recomputed for note in _compare(unit, privacy, recomputed[unit])]


def _compare(unit: str, privacy: dict[str, Any], ours: Accounted) -> list[str]:
    """Nothing where the printed number is the recomputed one; a note where another accountant printed a larger one."""
    printed = privacy["accounted"][unit]
    theirs = epsilon_from_json(printed["epsilon"])
    if printed["unit"] != unit or printed["relation"] != ours.relation:
        raise Failed(f"unit {unit}: printed for {printed['unit']}, {printed['relation']}; proved {ours.relation}")
    if _close(theirs, ours.epsilon) and _close(printed["delta"], ours.delta):
        return []
    both = (
        f"unit {unit}: epsilon {theirs:.8g} at delta {printed['delta']:g} is printed, the ledger gives "
        f"{ours.epsilon:.8g} at delta {ours.delta:g}"
    )
    if privacy["accountant"] == VERSION:
        raise Failed(both)
    both += f"; printed by accountant {privacy['accountant']}, installed is {VERSION}"
    if ours.epsilon <= theirs and ours.delta <= printed["delta"]:
        return [both]
    raise Failed(both)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=CLOSE)


def _expect_text(given: Any, file: str, what: str) -> None:
    if not isinstance(given, str):
        raise Failed(f"{file}: {what} is {type(given).__name__}, not text")


def _check_card(folder: Path, privacy: dict[str, Any], model: dict[str, Any]) -> None:
    """The card is a function of the two JSON files, so that the whole of it is compared, what people read above all."""
    extras = [name for name in card.EXTRAS if (folder / name).exists()]
    try:
        derived = privacy | {"warnings": account.warnings(privacy)}  # whatever its own list says
        wanted = card.card(derived, model, extras).splitlines()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Failed(f"{network.FILE} is not a model's ({type(error).__name__}: {error})") from None
    try:
        found = (folder / card.FILE).read_text(encoding="utf-8").splitlines()
    except ValueError:
        raise Failed(f"{card.FILE} is no text in UTF-8") from None
    for ours, theirs in zip_longest(wanted, found, fillvalue=""):
        if ours != theirs:
            both = f"it has {theirs!r} where these give {ours!r}"
            raise Failed(f"{card.FILE} is not the card of {account.FILE} and {network.FILE}: {both}")
