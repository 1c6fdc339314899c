"""Helpers of tests of sweeps: recipes and their plans; modules, environment, ports and end of processes."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, write_toy

import bench
from bench.cli.sweep import SettingsParser
from bench.errors import BudgetError
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import read


def recipe(folder: Path, *grids: str, images: int = 160, **defaults: str) -> Path:
    """A recipe over the toy data set, with datalens as the teacher; grids and defaults are TOML."""
    write_toy(folder, images)
    given = {"teacher": '"datalens"', "dataset": f'"npz:{folder}/toy.npz"', "seeds": "[0]"} | defaults
    head = "".join(f"{name} = {value}\n" for name, value in given.items())
    path = folder / "toy.toml"
    path.write_text(f"[defaults]\n{head}" + "".join(f"[[grid]]\n{grid}\n" for grid in grids), encoding="utf-8")
    return path


def planned(path: Path, out: Path, datasets: Sequence[str] = (), **more: Any) -> list[Cell]:
    common = ["--tier", "smoke", "--out", str(out), "--device", "cpu"]
    return plan(read(path), common, datasets, out, SettingsParser(), **more)


def importable(name: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `name` of a source, in a folder where other processes look."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def environment(**changes: str) -> dict[str, str]:
    """Return the environment with this checkout first on Python's path."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path} | changes


def sweep_in_python(out: Path, **options: Any) -> bench.SweepResult:
    """Run `bench.sweep` on a cluster: two runs, and two whose budget is refused; compare them with their files.

    Args:
        out: an empty folder of runs.
        options: the backend and its options.
    """
    grid = {"method": ["rr"], "epsilon": [2, -1], "seed": [0, 1]}
    seen: list[int] = []
    report = lambda stage, done, total: seen.append(done)  # noqa: E731
    found = bench.sweep(grid, out=out, tier="smoke", teacher="datalens", progress=report, **options)
    assert [cell.state for cell in found.cells] == ["ok", "ok", "refused", "refused"], str(found)
    assert all(isinstance(cell.error, BudgetError) for cell in found.cells[2:]) and seen == [1, 2, 3, 4]
    assert [cell.given["seed"] for cell in found.cells] == [0, 1, 0, 1]
    assert [result.record for result in found.results] == [bench.load(each.path).record for each in found.results]
    assert len(list((out / "records").glob("[0-9a-f]*"))) == 2 and not list((out / "sweeps").glob("cells-*"))
    return found


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def has_ended(process: int) -> bool:
    """Whether a process has ended; an ended process that was not waited for counts too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
