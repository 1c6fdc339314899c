"""`bench verify`: it accepts valid bundles, and finds every kind of invalid one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import Change, bundle_of, edit, png, put, read, renew, untrained_bundle, write, write_card
from safetensors.torch import load_file, save_file

from bench.bundle import Failed, proof, verify
from bench.bundle.account import warnings
from bench.bundle.files import decode
from bench.bundle.schema import WITHHELD, AccountedEpsilon, Privacy
from bench.cli import main
from bench.privacy import Relation, Unit

HUGE = 10**400
"""More than a float takes."""
IMPORT = "import torch, os; os.system('touch /tmp/run')"
"""A line of Python that must not be on a card."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A separate bundle: randomised labels, finite per label and infinite per example."""
    return shutil.copytree(untrained_bundle(), tmp_path / "bundle")


def field(file: str, path: str, value: object) -> Change:
    """A changed field of a JSON file, such as `accounted.label.epsilon`; a function computes it from the old value."""
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]

    def change(content: Any) -> None:
        for key in parents:
            content = content[key]
        content[last] = value(content[last]) if callable(value) else value

    return edit(file, change)


privacy, model = partial(field, "privacy.json"), partial(field, "model.json")


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other weights in the same file, behind a manifest that fits."""

    def apply(folder: Path) -> None:
        state = load_file(folder / "student.safetensors")
        save_file({name: change(value) for name, value in state.items()}, folder / "student.safetensors")
        renew(folder)

    return apply


def without_manifest(change: Change) -> Change:

    def apply(folder: Path) -> None:
        manifest = (folder / "MANIFEST.json").read_bytes()
        change(folder)
        (folder / "MANIFEST.json").write_bytes(manifest)

    return apply


def in_place_of_weights(make: Callable[[Path], object]) -> Change:

    def apply(folder: Path) -> None:
        (folder / "student.safetensors").rename(folder.parent / "weights")
        make(folder / "student.safetensors")

    return apply


def in_text(file: str, old: str, new: str) -> Change:
    """A change of a file's text, in which the old words must be."""

    def apply(folder: Path) -> None:
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new), encoding="utf-8")
        renew(folder)

    return apply


def with_card(change: Change) -> Change:
    """A change of the JSON files, with the card that follows from them."""

    def apply(folder: Path) -> None:
        change(folder)
        write_card(folder, ["synthetic"])

    return apply


@pytest.mark.thorough
def test_verify_accepts_a_bundle_as_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "verified: epsilon 1 at delta 0 per label, as published" in said
    assert "verified: epsilon infinite at delta 1e-05 per example, as published" in said
    assert "warning: The noise was drawn from a seed" in said and "warning: For a private record nothing" in said
    assert "1x16x16" in said and "10 class scores" in said and "files     6 " in said


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
def test_verify_accepts_every_kind_of_bundle(kind: str) -> None:
    found = verify(bundle_of(kind))
    assert found.notes == [] and set(found.recomputed) == set(found.privacy.accounted)


FILES: dict[str, tuple[Change, list[str]]] = {
    "weights": (without_manifest(weights(lambda value: value + 1)), ["changed: student.safetensors"]),
    "epsilon": (without_manifest(privacy("accounted.label.epsilon", 0.5)),
        ["changed: privacy.json"]),
    "missing": (lambda folder: (folder / "student.safetensors").unlink(), ["missing: student.safetensors"]),
    "missing and unlisted": (lambda folder: _leave_out(folder, "README.md"), ["missing: README.md"]),
    "added": (put("record.json", b"{}"), ["added: record.json"]),
    "hidden": (put(".seed", b"1"), ["added: .seed"]),
    "program": (put("student.pt2", b"PK"), ["added: student.pt2"]),
    "added image": (without_manifest(put("synthetic/002.png", png(16, 16))), ["added: synthetic/002.png"]),
    "no image": (put("synthetic/note.txt", b"hello"), ["added: synthetic/note.txt"]),
    "folder": (lambda folder: (folder / "more").mkdir(), ["added: more"]),
    "folder of images": (lambda folder: (folder / "synthetic" / "000").mkdir(), ["added: synthetic/000"]),
    "line break in a name": (put("a\nverified: epsilon 0", b""), ["added: a\\nverified: epsilon 0"]),
    "manifest": (lambda folder: put_manifest(folder, b"{"), ["MANIFEST.json cannot be read"]),
    "manifest of a list": (lambda folder: put_manifest(folder, b"[1]\n"), ["MANIFEST.json: "]),
    "dangling link": (lambda folder: (folder / "more").symlink_to("nowhere"), ["added: more"]),
    "link to a folder": (lambda folder: (folder / "more").symlink_to("/"), ["added: more"]),
    "symbolic link": (in_place_of_weights(lambda path: path.symlink_to("../weights")),
        ["student.safetensors is a symbolic link"]),
    "hard link": (in_place_of_weights(lambda path: path.hardlink_to(path.parent.parent / "weights")),
        ["student.safetensors is a hard link"]),
    "pipe": (in_place_of_weights(os.mkfifo), ["student.safetensors is not a file"]),
    "folder as weights": (in_place_of_weights(Path.mkdir), ["student.safetensors is not a file"]),
    "format 1": (edit("MANIFEST.json", lambda m: m.update(format=1)), ["format 1", "export the run again"]),
}  # fmt: skip


def _leave_out(folder: Path, name: str) -> None:
    (folder / name).unlink()
    renew(folder)


def put_manifest(folder: Path, content: bytes) -> None:
    (folder / "MANIFEST.json").write_bytes(content)


@pytest.mark.parametrize("fault", FILES)
def test_verify_refuses_other_files(folder: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    change, words = FILES[fault]
    change(folder)
    assert main(["verify", str(folder)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("bench: not verified: ") and said.err.count("\n") == 1 and not said.out
    assert all(word in said.err for word in words), said.err


ACCOUNTS: dict[str, tuple[Change, str]] = {
    "smaller epsilon": (privacy("accounted.label.epsilon", 0.5), "unit label: epsilon 0.5"),
    "finite instead of infinite": (privacy("accounted.example.epsilon", 1.0), "unit example: epsilon 1 "),
    "epsilon as text": (privacy("accounted.label.epsilon", "1"), "accounted.label.epsilon"),
    "no epsilon": (privacy("accounted.example.epsilon", None), "accounted.example.epsilon"),
    "negative epsilon": (privacy("accounted.label.epsilon", -1.0), "accounted.label.epsilon"),
    "smaller delta": (privacy("accounted.example.delta", 0.0), "unit example"),
    "larger epsilon": (privacy("accounted.label.epsilon", 2.0), "unit label"),
    "other relation": (privacy("accounted.label.relation", "add-or-remove"), "add-or-remove"),
    "other accountant": (privacy("accounted.label.accountant", "pld"), "'pld'"),
    "other note": (privacy("accounted.example.note", "all is well"), "all is well"),
    "other unit": (privacy("accounted.label.unit", "example"), "unit example"),
    "more noise in the ledger": (privacy("events.0.event.noise_parameter", 0.99), "unit label: epsilon 1 "),
    "an event less": (privacy("events", lambda events: events[:-1]), "example, label"),
    "an event more": (privacy("events", lambda events: [*events, events[0]]), "unit label"),
    "no events": (privacy("events", []), "privacy.json: events"),
    "unknown event": (privacy("events.0.event.name", "NoDpEvent"), "NoDpEvent"),
    "count of 0": (privacy("events.0.count", 0), "events.0.count"),
    "no ledger": (edit("privacy.json", lambda p: p.pop("events")), "privacy.json: events"),
    "solved": (edit("privacy.json", lambda p: p.update(solved={"sigma": 99.0})), "privacy.json: solved"),
    "unknown field within": (edit("privacy.json", lambda p: p["method"].update(approved=True)), "method.approved"),
    "other warnings": (privacy("warnings", []), "privacy.json"),
    "undisputed claim": (privacy("claimed.source", "DPSD, Theorem 1"), "DPSD, Theorem 1"),
    "not an object": (put("privacy.json", b"[]\n"), "privacy.json: "),
    "not JSON": (put("privacy.json", b"{"), "privacy.json"),
    "key twice": (in_text("privacy.json", ' "delta": 1e-05,\n', ' "delta": 1e-05,\n "delta": 1e-05,\n'), "'delta'"),
    "key twice within": (in_text("model.json", '"high": 0.75', '"high": 0.75,\n  "high": 0.75'), "'high'"),
    "key twice in the manifest": (lambda folder: put_manifest(folder, b'{"files": {}, "files": {}}'), "'files'"),
    "other spaces": (in_text("privacy.json", "\n", " \n"), "privacy.json"),
    "not a number": (in_text("model.json", '"high": 0.75', '"high": NaN'), "NaN"),
    "beyond a float": (in_text("model.json", '"high": 0.75', '"high": 1e999'), "1e999"),
    "no name": (privacy("method.name", None), "method.name"),
    "other format": (privacy("format", 99), "format 99"),
    "card": (in_text("README.md", "| accounted | 1 |", "| accounted | 0.1 |"), "README.md"),
    "words of the card": (in_text("README.md", "at most e^1 ", "at most e^0.1 "), "e^0.1"),
    "noise in the card": (in_text("README.md", "Noise: seeded", "Noise: os"), "Noise: os"),
    "more in the card": (in_text("README.md", "## Files", "Approved.\n\n## Files"), "'Approved.'"),
    "line ends of the card": (in_text("README.md", "\n", "\r\n"), "README.md"),
    "code on the card": (in_text("README.md", "import torch\n", f"{IMPORT}\n"), "os.system"),
    "card in no UTF-8": (put("README.md", b"\xff"), "README.md"),
    "accuracy": (model("accuracy.share", 0.6), "60.00%"),
    "accuracy out of its interval": (model("accuracy.share", 0.9), "model.json: accuracy"),
    "accuracy of withheld data": (
        edit("model.json", lambda m: m.update(data=WITHHELD, class_names=None)), "model.json: the whole"),
    "more classes": (with_card(edit("model.json", lambda m: m.update(classes=11, class_names=None))), "11"),
    "other class names": (model("class_names", lambda names: names[::-1]), "digits"),
    "fewer class names": (model("class_names", lambda names: names[:-1]), "9 names"),
    "other network": (with_card(model("architecture", "datalens")), "student.safetensors"),
    "a path as network": (model("architecture", "hf-hub:someone/net"), "model.json: architecture"),
    "other parameters": (with_card(model("parameters", 5)), "(5 and"),
    "other buffers": (with_card(model("buffers", ["bn.running_mean"])), "and 1)"),
    "no shape": (model("input.shape", [1]), "input.shape"),
    "no spread": (model("normalisation.std", [0.0]), "normalisation.std"),
    "weights that are not finite": (weights(lambda value: value * torch.nan), "(2, 10)"),
    "a huge share": (model("accuracy.share", HUGE), "accuracy.share"),
    "a huge mean": (model("normalisation.mean", [HUGE]), "normalisation.mean"),
    "huge classes": (model("classes", HUGE), "model.json: classes"),
}  # fmt: skip
"""Forged content, and a value in the message: the file, the field or the number."""


@pytest.mark.parametrize("fault", ACCOUNTS)
def test_verify_refuses_forged_content(folder: Path, fault: str) -> None:
    change, value = ACCOUNTS[fault]
    change(folder)
    with pytest.raises(Failed) as failed:
        verify(folder, limits=None)
    assert "\n" not in str(failed.value) and value in str(failed.value)


CALL = {"function": "timm.create_model", "name": "relu-cnn", "arguments": {"num_classes": 10}}
BLOCK = f"a\n```python\n{IMPORT}\n```"
CODE: dict[str, Change] = {
    "function": model("library", CALL | {"function": "os.system"}),
    "module": model("library", CALL | {"function": "timm.models.os.system"}),
    "name": model("library", CALL | {"name": '"); import os; ("'}),
    "argument": model("library", CALL | {"arguments": {"num_classes": "print(1)"}}),
    "argument's name": model("library", CALL | {"arguments": {"checkpoint_path": "x.pt"}}),
    "program": edit("model.json", lambda m: m.update(program='x").module(); import os; ("')),
    "torch": model("torch", BLOCK),
    "side": model("input.shape", [1, "16); import os", 16]),
    "mean": model("normalisation.mean", ["__import__('os')"]),
    "architecture": model("architecture", BLOCK),
    "data": model("data", BLOCK),
    "buffer": model("buffers", [BLOCK]),
    "class": model("class_names.0", BLOCK),
    "method": privacy("method.name", BLOCK),
    "use": privacy("events.0.why", BLOCK),
    "event": privacy("events.0.event.name", f"a`\n{IMPORT}"),
    "source": privacy("claimed.source", BLOCK),
    "warning": privacy("warnings", lambda warnings: [*warnings, BLOCK]),
    "accountant": privacy("accountant", BLOCK),
    "tier": privacy("tier", IMPORT),
    "noise": privacy("noise", BLOCK),
    "overriding letter": privacy("events.0.why", "a\u202eb"),
    "zero-width letter": privacy("claimed.source", "a\u200bb"),
}
"""Fields that reach the card, and what a forger would write into them."""


@pytest.mark.parametrize("name", CODE)
def test_verify_refuses_code_in_a_field_of_the_card(folder: Path, name: str) -> None:
    CODE[name](folder)
    with pytest.raises(Failed, match=r"(model|privacy)\.json"):
        verify(folder, limits=None)


def test_card_escapes_sentences_of_the_ledger(folder: Path) -> None:
    said = "a | b <script>x</script> [c](http://d) `e`"
    privacy("claimed.source", said)(folder)
    with_card(privacy("events.0.why", said))(folder)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "<script>" not in text and "[c](" not in text and text.count(r"a \| b &lt;script&gt;") == 2
    assert verify(folder, limits=None).privacy.claimed is not None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (model("library", CALL), r"timm\.create_model"),
        pytest.param(model("architecture", "no-net"), "no-net", marks=pytest.mark.thorough),
    ],
    ids=["another", "unknown"],
)
def test_verify_refuses_another_network(folder: Path, change: Change, named: str) -> None:
    """The card's lines must build the student; a call of the right kind is not enough. timm looks for close names."""
    with_card(change)(folder)
    with pytest.raises(Failed, match=named):
        verify(folder, limits=None)


def test_verify_ignores_a_difference_below_a_millionth(folder: Path) -> None:
    epsilon = read(folder / "privacy.json")["accounted"]["label"]["epsilon"]
    privacy("accounted.label.epsilon", epsilon * (1 - 5e-7))(folder)
    assert verify(folder, limits=None).notes == []
    privacy("accounted.label.epsilon", epsilon * (1 - 3e-6))(folder)
    with pytest.raises(Failed):
        verify(folder, limits=None)


@pytest.mark.parametrize(("epsilon", "accepted"), [(1.5, True), (0.5, False)])
def test_verify_accepts_only_more_of_an_older_accountant(folder: Path, epsilon: float, accepted: bool) -> None:
    def publish(content: Any) -> None:
        content["accountant"] = "0 (of old)"
        content["accounted"]["label"]["epsilon"] = epsilon
        content["warnings"] = warnings(Privacy.model_validate_json(json.dumps(content)))

    with_card(edit("privacy.json", publish))(folder)
    if accepted:
        (note,) = verify(folder, limits=None).notes
        assert "epsilon 1.5" in note and "0 (of old)" in note and proof.VERSION in note
    else:
        with pytest.raises(Failed, match=r"0 \(of old\)"):
            verify(folder, limits=None)


def test_compare_refuses_a_smaller_delta_of_an_old_version(folder: Path) -> None:
    privacy = decode((folder / "privacy.json").read_bytes(), "privacy.json", Privacy)
    old = privacy.model_copy(update={"accountant": "0 (of old)"})

    def made(epsilon: float, delta: float) -> AccountedEpsilon:
        relation = Relation.ADD_OR_REMOVE_ONE
        return AccountedEpsilon(
            epsilon=epsilon, delta=delta, unit=Unit.EXAMPLE, relation=relation, accountant="pld", version=proof.VERSION
        )

    ours = made(4.0, 1e-5)
    assert len(proof.compare(old, made(5.0, 1e-5), ours)) == len(proof.compare(old, made(5.0, 1e-4), ours)) == 1
    with pytest.raises(Failed, match=r"5 at delta 0 .* 4 at delta 1e-05"):
        proof.compare(old, made(5.0, 0.0), ours)


@pytest.mark.parametrize("make", ["nothing", "empty", "a record", "a file"])
def test_verify_of_another_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: str) -> None:
    given = tmp_path / "given"
    if make != "nothing" and make != "a file":
        given.mkdir()
    if make == "a record":
        write(given / "record.json", {})
    if make == "a file":
        given.write_text("")
    assert main(["verify", str(given)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no MANIFEST.json" in said and "bench export" in said


@pytest.mark.parametrize("option", [["--mib", "0"], ["--mib", "much"], ["--seconds", "-1"], ["--seconds", "9" * 50]])
def test_verify_refuses_invalid_limits(folder: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main(["verify", str(folder), *option]) == 2
    assert capsys.readouterr().err.count("\n") == 1
