"""Helpers of tests that start processes: modules that these import, their environment, ports, and their end."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


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


def free_ports(count: int) -> list[int]:
    """Return free ports."""
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
