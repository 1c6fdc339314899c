"""`bench verify`: what it accepts, and that it finds every way in which a bundle is not what it says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import bundle_of, read
from safetensors.torch import load_file, save_file

from bench.bundle import Failed, card, checking, verify
from bench.bundle.account import warnings
from bench.cli import main
from bench.errors import BenchError
from bench.privacy import Relation, Unit
from bench.privacy.accountant import Accounted

Change = Callable[[Path], None]
HUGE = 10**400
"""More than a float takes."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle of one's own: randomised labels, finite per label and infinite per example."""
    return shutil.copytree(bundle_of("rr"), tmp_path / "bundle")


def renew(folder: Path) -> None:
    """Make the manifest fit again, as a forger does."""
    listed = read(folder / "MANIFEST.json")
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in listed["files"]}
    (folder / "MANIFEST.json").write_text(json.dumps(listed | {"files": sums}))


def edit(file: str, change: Callable[[Any], None]) -> Change:
    """A change of a JSON file."""

    def apply(folder: Path) -> None:
        content = read(folder / file)
        change(content)
        (folder / file).write_text(json.dumps(content))

    return apply


def account(change: Callable[[Any], None]) -> Change:
    return edit("privacy.json", change)


def model(change: Callable[[Any], None]) -> Change:
    return edit("model.json", change)


def other_weights(folder: Path) -> None:
    state = load_file(folder / "student.safetensors")
    save_file({name: value + 1 for name, value in state.items()}, folder / "student.safetensors")


def not_finite(folder: Path) -> None:
    state = load_file(folder / "student.safetensors")
    save_file({name: value * torch.nan for name, value in state.items()}, folder / "student.safetensors")


def in_place_of_weights(folder: Path) -> None:
    (folder / "student.safetensors").unlink()
    os.mkfifo(folder / "student.safetensors")


def smaller_in_card(folder: Path) -> None:
    card = folder / "README.md"
    card.write_text(card.read_text().replace("| accounted | 1 |", "| accounted | 0.1 |"))


def in_card(old: str, new: str) -> Change:
    """A change of the card; what is replaced must be there."""

    def apply(folder: Path) -> None:
        card = folder / "README.md"
        text = card.read_text()
        assert old in text
        card.write_text(text.replace(old, new))

    return apply


@pytest.mark.thorough
def test_a_bundle_as_it_was_written_is_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "verified: epsilon 1 at delta 0 per label, as printed" in said
    assert "verified: epsilon infinite at delta 1e-05 per example, as printed" in said
    assert "warning: The noise was drawn from a seed" in said and "warning: For a private record nothing" in said
    assert "answers two 1x16x16 images with 10 classes each" in said and "5 as in the manifest" in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    [
        "class-moments",
        "pate-gnmax",
        "resnet18",
        "no-defence",
        pytest.param("dpsd data", marks=pytest.mark.slow),
        pytest.param("dp-sgd", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_bundle_is_verified(kind: str) -> None:
    found = verify(bundle_of(kind))
    assert found.notes == [] and set(found.recomputed) == set(found.privacy["accounted"])


FILES: dict[str, tuple[Change, list[str]]] = {
    "weights": (other_weights, ["changed: student.safetensors"]),
    "epsilon": (account(lambda p: p["accounted"]["label"].update(epsilon=0.5)), ["changed: privacy.json"]),
    "card": (smaller_in_card, ["changed: README.md"]),
    "missing": (lambda folder: (folder / "student.pt2").unlink(), ["missing: student.pt2"]),
    "added": (lambda folder: (folder / "record.json").write_text("{}"), ["added: record.json"]),  # type: ignore[arg-type, return-value]
    "hidden": (lambda folder: (folder / ".seed").write_text("1"), ["added: .seed"]),  # type: ignore[arg-type, return-value]
    "manifest": (lambda folder: (folder / "MANIFEST.json").write_text("{"), ["MANIFEST.json cannot be read"]),  # type: ignore[arg-type, return-value]
    "no manifest of ours": (
        lambda folder: (folder / "MANIFEST.json").write_text("[1]"),  # type: ignore[arg-type, return-value]
        ["MANIFEST.json is no manifest"],
    ),
    "dangling link": (lambda folder: (folder / "more").symlink_to("nowhere"), ["added: more"]),
    "a pipe": (in_place_of_weights, ["student.safetensors is no file"]),
    "link to a folder": (lambda folder: (folder / "more").symlink_to("/"), ["added: more"]),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_file_that_changed_is_found(folder: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    change, words = FILES[fault]
    change(folder)
    assert main(["verify", str(folder)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("bench: not verified: ") and said.err.count("\n") == 1 and not said.out
    assert all(word in said.err for word in words), said.err


ACCOUNTS: dict[str, tuple[Change, list[str]]] = {
    "smaller epsilon": (
        account(lambda p: p["accounted"]["label"].update(epsilon=0.5)),
        ["unit label: epsilon 0.5", "the ledger gives 1 "],
    ),
    "finite instead of infinite": (
        account(lambda p: p["accounted"]["example"].update(epsilon=1.0)),
        ["unit example: epsilon 1 ", "gives inf"],
    ),
    "no number": (account(lambda p: p["accounted"]["label"].update(epsilon="1")), ["'1' is no epsilon"]),
    "nothing": (account(lambda p: p["accounted"]["example"].update(epsilon=None)), ["None is no epsilon"]),
    "smaller delta": (account(lambda p: p["accounted"]["example"].update(delta=0.0)), ["unit example"]),
    "larger epsilon": (account(lambda p: p["accounted"]["label"].update(epsilon=2.0)), ["unit label"]),
    "other relation": (account(lambda p: p["accounted"]["label"].update(relation="add-or-remove")), ["add-or-remove"]),
    "more noise in the ledger": (
        account(lambda p: p["events"][0]["event"].update(noise_parameter=0.99)),
        ["unit label: epsilon 1 ", "the ledger gives"],
    ),
    "an event less": (account(lambda p: p["events"].pop()), ["prints epsilons per example, label"]),
    "an event more": (account(lambda p: p["events"].append(p["events"][0])), ["the ledger gives 2"]),
    "no events": (account(lambda p: p["events"].clear()), ["its ledger speaks of"]),
    "unknown event": (account(lambda p: p["events"][0]["event"].update(name="NoDpEvent")), ["NoDpEvent"]),
    "impossible count": (account(lambda p: p["events"][0].update(count=0)), ["whole number >= 1"]),
    "no ledger": (account(lambda p: p.pop("events")), ["events"]),
    "not an object": (lambda folder: (folder / "privacy.json").write_text("[]"), ["is not an account"]),  # type: ignore[arg-type, return-value]
    "not JSON": (lambda folder: (folder / "privacy.json").write_text("{"), ["privacy.json cannot be read"]),  # type: ignore[arg-type, return-value]
    "no name": (account(lambda p: p["method"].update(name=None)), ["the method's name is NoneType, not text"]),
    "other format": (account(lambda p: p.update(format=99)), ["format 99"]),
    "card": (smaller_in_card, ["README.md is not the card of privacy.json", "| accounted | 1 |"]),
    "words of the card": (in_card("a factor of at most e^1 ", "a factor of at most e^0.1 "), ["e^0.1", "give", "e^1 "]),
    "noise in the card": (in_card("Noise: seeded", "Noise: os"), ["is not the card", "Noise: os"]),
    "more in the card": (in_card("## Files", "Approved by everybody.\n\n## Files"), ["'Approved by everybody.'"]),
    "accuracy of the model": (
        model(lambda m: m["accuracy"].update(share=0.99)),
        ["is not the card of privacy.json and model.json", "99.00%"],
    ),
    "more classes": (model(lambda m: m.update(classes=11)), ["do not fit"]),
    "other network": (model(lambda m: m.update(architecture="tanh-cnn")), ["do not fit"]),
    "a path as network": (model(lambda m: m.update(architecture="hf-hub:someone/net")), ["not a network name"]),
    "no shape": (model(lambda m: m["input"].update(shape=[1])), ["describes no student"]),
    "not finite": (not_finite, ["not finite"]),
    "no text": (lambda folder: (folder / "README.md").write_bytes(b"\xff"), ["README.md is no text in UTF-8"]),  # type: ignore[arg-type, return-value]
    "too deep": (lambda folder: (folder / "privacy.json").write_text("[" * 100_000), ["privacy.json cannot be read"]),  # type: ignore[arg-type, return-value]
    "a huge share": (model(lambda m: m["accuracy"].update(share=HUGE)), ["model.json is not a model's"]),
    "a huge mean": (model(lambda m: m["normalisation"].update(mean=[HUGE])), ["describes no student"]),
    "huge classes": (model(lambda m: m.update(classes=HUGE)), ["describes no student"]),
}


@pytest.mark.parametrize("fault", ACCOUNTS)
def test_what_does_not_follow_from_the_ledger_is_found_behind_a_fitting_manifest(folder: Path, fault: str) -> None:
    change, words = ACCOUNTS[fault]
    change(folder)
    renew(folder)
    with pytest.raises(Failed) as failed:
        verify(folder)
    said = str(failed.value)
    assert "\n" not in said and all(word in said for word in words), said


def test_a_difference_of_less_than_a_millionth_is_none(folder: Path) -> None:
    printed = read(folder / "privacy.json")["accounted"]["label"]["epsilon"]
    account(lambda p: p["accounted"]["label"].update(epsilon=printed * (1 - 5e-7)))(folder)
    renew(folder)
    assert verify(folder).notes == []
    account(lambda p: p["accounted"]["label"].update(epsilon=printed * (1 - 3e-6)))(folder)
    renew(folder)
    with pytest.raises(Failed):
        verify(folder)


def test_another_accountant_may_have_printed_more_but_not_less(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def print_epsilon(value: float) -> None:
        account(lambda p: p["accounted"]["label"].update(epsilon=value))(folder)
        privacy = read(folder / "privacy.json")
        privacy["warnings"] = warnings(privacy)
        (folder / "README.md").write_text(card.card(privacy, read(folder / "model.json"), []))
        renew(folder)

    account(lambda p: p.update(accountant="0 (of old)"))(folder)
    print_epsilon(1.5)
    assert main(["verify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "note: unit label: epsilon 1.5" in said and "0 (of old)" in said and checking.VERSION in said
    assert "verified: epsilon 1.5 at delta 0 per label, no more than printed" in said
    print_epsilon(0.5)
    assert main(["verify", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "0 (of old)" in said and checking.VERSION in said


def test_another_accountant_may_not_have_printed_a_smaller_delta_however_large_its_epsilon() -> None:
    ours = Accounted(4.0, 1e-5, Unit.EXAMPLE, Relation.ADD_OR_REMOVE_ONE, "pld")

    def compare(delta: float) -> list[str]:
        printed = {"epsilon": 5.0, "delta": delta, "unit": "example", "relation": "add-or-remove"}
        return checking._compare("example", {"accountant": "0 (of old)", "accounted": {"example": printed}}, ours)

    assert len(compare(1e-5)) == len(compare(1e-4)) == 1
    with pytest.raises(Failed, match="epsilon 5 at delta 0 is printed, the ledger gives 4 at delta 1e-05"):
        compare(0.0)


def test_warnings_come_from_the_account_not_from_the_list(folder: Path) -> None:
    account(lambda p: p.update(warnings=[]))(folder)
    renew(folder)
    assert any("drawn from a seed" in line for line in verify(folder).warnings)


@pytest.mark.parametrize("make", ["nothing", "empty", "a record", "a file"])
def test_no_bundle_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: str) -> None:
    given = tmp_path / "given"
    if make != "nothing" and make != "a file":
        given.mkdir()
    if make == "a record":
        (given / "record.json").write_text("{}")
    if make == "a file":
        given.write_text("")
    assert main(["verify", str(given)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no MANIFEST.json" in said and "bench export" in said


def test_the_error_of_no_bundle_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(BenchError):
        verify(tmp_path)
