"""The classes of errors, by what they say of themselves."""

from __future__ import annotations

import inspect

from bench.errors import BenchError, kinds
from docs.tables.cells import table


def errors() -> str:
    """Every class with its code, the exit status of the command, and its meaning."""
    rows = []
    for kind in kinds():
        meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append([f"`{kind.code}`", f"`{kind.__name__}`", "2" if issubclass(kind, BenchError) else "1", meaning])
    return table(["code", "class", "exit status", "meaning"], rows)
