"""Errors have classes with stable codes, raised where users meet them, and a page that lists them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bench
from bench import errors
from bench.cli import main
from docs.tables.__main__ import ROOT, rewritten

CODES = {
    "BenchError": "bad-input",
    "UnknownName": "unknown-name",
    "BadOption": "bad-option",
    "BadData": "bad-data",
    "BadWeights": "bad-weights",
    "BadPlugin": "bad-plugin",
    "BudgetError": "budget",
    "Incompatible": "incompatible",
    "OutOfMemory": "memory",
    "NotFound": "not-found",
    "RunFailed": "run-failed",
}
"""Codes that scripts match: a change here breaks them."""


def test_codes_are_stable() -> None:
    assert {kind.__name__: kind.code for kind in errors.kinds()} == CODES


def test_page_of_errors_is_current() -> None:
    page = ROOT / "docs" / "errors.md"
    assert rewritten(page) == page.read_text(encoding="utf-8"), "python -m docs.tables"


def arrays(folder: Path) -> None:
    (folder / "broken.npz").write_bytes(b"no archive")
    bench.run("rr", dataset=f"npz:{folder / 'broken.npz'}", out=folder)


def weights(folder: Path) -> None:
    (folder / "w.safetensors").write_bytes(b"no weights")
    bench.run("no-defence", tier="smoke", teacher_weights=folder / "w.safetensors", out=folder)


RAISED: list[tuple[str, Callable[[Path], object]]] = [
    ("unknown-name", lambda folder: bench.run("dpds", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", attack="gmii", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", dataset="mnits", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", unit="person", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", tier="huge", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", noise="none", out=folder)),  # type: ignore[arg-type]
    ("unknown-name", lambda folder: bench.run("rr", account="guessed", out=folder)),  # type: ignore[arg-type]
    ("unknown-name", lambda folder: bench.run("rr", variant="best", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", teacher="resnet19", out=folder)),
    ("unknown-name", lambda folder: bench.run("rr", memory_check="no", out=folder)),  # type: ignore[arg-type]
    ("unknown-name", lambda folder: bench.run("rr", method_options={"rat": 1}, out=folder)),
    ("bad-option", lambda folder: bench.run("dpsd", method_options={"sigma": "many"}, out=folder)),
    ("bad-option", lambda folder: bench.run("rr", seed=-1, out=folder)),
    ("bad-option", lambda folder: bench.run("rr", method_options={"rate": [1]}, out=folder)),  # type: ignore[dict-item]
    ("bad-option", lambda folder: bench.run("rr", device="tpu", out=folder)),
    ("bad-data", arrays),
    ("bad-weights", weights),
    ("bad-plugin", lambda folder: bench.run(dict, out=folder)),
    ("budget", lambda folder: bench.run("rr", epsilon=-1, out=folder)),
    ("budget", lambda folder: bench.run("rr", delta=1, out=folder)),
    ("budget", lambda folder: bench.run("no-defence", account="accounted", tier="smoke", out=folder)),
    ("incompatible", lambda folder: bench.run("rr", attack="gan-leaks", tier="smoke", out=folder)),
    ("not-found", lambda folder: bench.run("rr", dataset="npz:missing.npz", out=folder)),
    ("not-found", lambda folder: bench.run("rr", dataset="mnist", data_root=folder, out=folder)),
    ("not-found", lambda folder: bench.load(folder)),
]


@pytest.mark.parametrize(("code", "raising"), RAISED, ids=[f"{code}-{k}" for k, (code, _) in enumerate(RAISED)])
def test_bad_input_has_the_code_of_its_kind(code: str, raising: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(errors.BenchError) as raised:
        raising(tmp_path)
    assert raised.value.code == code and len(str(raised.value).splitlines()) == 1
    assert not list(tmp_path.rglob("record.json"))


def test_command_prints_the_same_error_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.UnknownName) as raised:
        bench.run("dpds", out=tmp_path)
    assert main(["run", "--method", "dpds", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"bench: error: {raised.value}\n"
