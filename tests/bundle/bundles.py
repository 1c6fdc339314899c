"""Runs of every kind of method at tier smoke, made once, and what a bundle may have."""

from __future__ import annotations

import atexit
import json
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench.bundle import export, find
from bench.bundle.finding import Found
from bench.cli import main

SEED = 73104295
ALONE = ["--method.committee", "1"]
"""A committee would train four students more, of whom a bundle knows nothing."""
ATTACKED = ["--attack", "loss-threshold"]
"""So that the record of a method that asks no teacher has one's accuracy to be kept back."""
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
    """The record's directory of a finished smoke run of a kind, on digits."""
    return make(*KINDS[kind])


def make(method: str, *options: str) -> Path:
    """The record's directory of a smoke run with these options."""
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


def found(kind: str) -> Found:
    """The run of a kind, ready to be exported."""
    return find(str(record_of(kind)), place() / "runs")


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
