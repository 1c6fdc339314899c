"""Bundles: directories with a released student and its privacy account; `bench export` writes, `bench verify` checks.

A bundle has the student's weights, `privacy.json` (ledger and epsilons), `model.json` (how to load the student), a
model card, SHA-256 sums of all files, and any released generator and synthetic images. Only values on an explicit list
are written (`account`, `network`); other fields of a record, which were measured on private data without noise, are
never read.

Each name is imported on first use: the command line reads the limits of a check without any library, and the files of
an untrusted bundle are checked before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.bundle.checking import Verified, verify
    from bench.bundle.contribution import Checked, check_record
    from bench.bundle.finding import find
    from bench.bundle.limits import Limits
    from bench.bundle.network import load, write_program
    from bench.bundle.schema import Failed
    from bench.bundle.writing import export

_MODULES = {
    "Checked": "contribution",
    "Failed": "schema",
    "Limits": "limits",
    "Verified": "checking",
    "check_record": "contribution",
    "export": "writing",
    "find": "finding",
    "load": "network",
    "verify": "checking",
    "write_program": "network",
}

__all__ = [
    "Checked",
    "Failed",
    "Limits",
    "Verified",
    "check_record",
    "export",
    "find",
    "load",
    "verify",
    "write_program",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
