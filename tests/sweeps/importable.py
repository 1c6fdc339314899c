"""A module of trivial commands, which the processes of a sweep can import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest


def importable(name: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `name` of a source, in a folder where other processes look."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)
