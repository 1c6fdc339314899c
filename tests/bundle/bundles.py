"""Runs of every kind of method at tier smoke, made once, and what a bundle may have."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file

from bench import nets, teachers
from bench.bundle import card, export, find
from bench.bundle.files import decode
from bench.bundle.finding import FinishedRun, ReleaseResult, StudentInput
from bench.bundle.schema import Model, Privacy
from bench.cli import main
from bench.privacy import Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.events import randomised_response_event
from bench.storage.records import Record
from bench.storage.specs import canonical

Change = Callable[[Path], None]

SEED = 73104295
ALONE = ["--method.committee", "1"]
"""A committee would train four students more, of whom a bundle knows nothing."""
ATTACKED = ["--attack", "loss-threshold"]
"""Adds a teacher's accuracy to the record of a method without teacher, which a bundle must withhold."""
KINDS: dict[str, list[str]] = {
    "dpsd data": ["dpsd", "--attack", "gmi", *ALONE],
    "dpsd label": ["dpsd", "--method.mode", "label", *ALONE],
    "class-moments": ["class-moments", "--method.teachers", "3", "--account", "accounted", "--epsilon", "8"],
    "dp-sgd": ["dp-sgd", "--epsilon", "none", *ATTACKED],
    "pate-gnmax": ["pate-gnmax", "--method.threshold", "0.3", "--method.diagnostic", "--epsilon", "2000"],
    "rr": ["rr", "--unit", "label", "--epsilon", "1", *ATTACKED],
    "lp-2st": ["lp-2st", "--unit", "label", "--epsilon", "1"],
    "dp-merf": ["dp-merf", *ATTACKED],
    "no-defence": ["no-defence", *ATTACKED],
    "resnet18": ["dpsd", "--student", "resnet18", "--noise", "os", *ALONE],
}  # fmt: skip


@cache
def place() -> Path:
    """One output directory for all runs of this process, so that they share teacher and evaluator."""
    made = Path(mkdtemp(prefix="bundles-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def record_of(kind: str) -> Path:
    return make(*KINDS[kind])


def make(method: str, *options: str) -> Path:
    records = place() / "runs" / "records"
    before = set(records.glob("[!.]*"))
    fixed = ["--tier", "smoke", "--teacher", "datalens", "--seeds", str(SEED), "--device", "cpu"]
    back = os.getcwd()
    os.chdir(place())
    try:
        assert main(["run", "--method", method, *fixed, *options]) == 0
    finally:
        os.chdir(back)
    (made,) = set(records.glob("[!.]*")) - before
    return made


@cache
def bundle_of(kind: str) -> Path:
    """The bundle of a run of a kind; copy it before you change it."""
    folder = place() / f"bundle of {kind}"
    export(found(kind), folder, allow_seeded=True)
    return folder


def found(kind: str) -> FinishedRun:
    return find(str(record_of(kind)), place() / "runs")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def untrained(step: Path, arch: str = "relu-cnn") -> FinishedRun:
    """An untrained run: random weights, randomised labels at an epsilon of 1, and two synthetic images.

    Args:
        step: a directory for what the store would hold of its release.
    """
    from dp_accounting import NonPrivateDpEvent

    torch.manual_seed(0)
    teachers.save(step / "model.safetensors", nets.build(arch, (1, 16, 16), 10))
    save_file({"images": torch.zeros(2, 1, 16, 16, dtype=torch.uint8)}, step / "synthetic.safetensors")
    ledger = Ledger()
    ledger.spend(randomised_response_event(1.0, 10), unit=Unit.LABEL, why="randomised response on a label")
    ledger.spend(NonPrivateDpEvent(), unit=Unit.EXAMPLE, why="private images train the student")
    claim = {"epsilon": 1.0, "delta": 0.0, "unit": "label", "source": "Warner 1965"}
    units = {str(unit): account(ledger, unit, 1e-5).to_json() for unit in (Unit.LABEL, Unit.EXAMPLE)}
    privacy = {"events": ledger.to_json(), "claimed": claim, "accounted": units["label"], "noise": "seeded"}
    privacy |= {"accounted_units": units}
    release = {"method": "rr", "version": 2, "budget": {"delta": 1e-5}, "noise": "seeded"}
    release["teacher"] = {"data": {"dataset": "digits", "split": "half"}}
    record = Record("0123456789abcdef", "ok", "", {"release": release, "tier": "smoke", "attack": None})
    record.privacy = privacy | {"noise_version": 2}
    record.metrics = {"accuracy": 0.5, "accuracy.lo": 0.25, "accuracy.hi": 0.75}
    images = StudentInput((1, 16, 16), 10, tuple(str(digit) for digit in range(10)))
    return FinishedRun(record, step, ReleaseResult(arch, accuracy=0.5, tested=100, input=images))


@cache
def untrained_bundle() -> Path:
    """The bundle of `untrained`; copy it before you change it."""
    step, folder = place() / "step of an untrained run", place() / "bundle of an untrained run"
    step.mkdir()
    export(untrained(step), folder, allow_seeded=True)
    return folder


def renew(folder: Path) -> None:
    """Make the manifest fit again, as a forger does."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "MANIFEST.json"]
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    write(folder / "MANIFEST.json", read(folder / "MANIFEST.json") | {"files": sums})


def write(path: Path, content: Any) -> None:
    path.write_text(canonical(content), encoding="utf-8")


def write_card(folder: Path, extras: list[str]) -> None:
    """Write the card that follows from the JSON files, and a manifest that fits."""
    privacy = decode((folder / "privacy.json").read_bytes(), "privacy.json", Privacy)
    made = decode((folder / "model.json").read_bytes(), "model.json", Model)
    (folder / "README.md").write_text(card.card(privacy, made, extras), encoding="utf-8")
    renew(folder)


def edit(file: str, change: Callable[[Any], object]) -> Change:
    """A change of a JSON file, behind a manifest that fits."""

    def apply(folder: Path) -> None:
        content = read(folder / file)
        change(content)
        write(folder / file, content)
        renew(folder)

    return apply


def put(file: str, content: bytes) -> Change:
    """A file with other bytes, behind a manifest that fits."""

    def apply(folder: Path) -> None:
        (folder / file).write_bytes(content)
        renew(folder)

    return apply


def png(width: int, height: int, shade: int = 0) -> bytes:
    import io

    stream = io.BytesIO()
    Image.new("L", (width, height), shade).save(stream, "PNG")
    return stream.getvalue()
