"""Boards as tests of `bench papers compare` and `bench choose` write them."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

from wide_boards import write_boards


def cells(method: str, **more: Any) -> dict[str, Any]:
    """A row of a board; fields that are not given are empty, as in a real one."""
    usual = {
        "tier": "quick", "split": "iid", "variant": "printed", "kind": "methods", "teacher": "resnet18",
        "student": "datalens",
        "accuracy_mean": 0.95, "epsilon_claimed": 10.0, "claim_unit": "query", "unit": "example",
        "epsilon_accounted": "inf", "relation": "add-or-remove", "delta": 1e-5, "seeds": "0 1", "failed": 0,
        "seconds": 12.3, "device": "cpu",
    }  # fmt: skip
    return usual | {"method": method} | more


def write(folder: Path, rows: list[dict[str, Any]], name: str = "mnist") -> Path:
    """Write a board of such rows into a folder of boards."""
    return write_boards(folder, rows, name)


def execute(module: ModuleType, *arguments: object) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.add_arguments(parser)
    return int(module.execute(parser.parse_args([str(a) for a in arguments])))
