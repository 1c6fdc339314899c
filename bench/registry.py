"""Names of plug-ins without importing them; one plug-in's class by importing one module.

A plug-in is a file in `methods/`, `baselines/` or `attacks/` (the name is the file's, `_` written `-`; files that start
with `_` are helpers), or an entry point of another distribution in the group `bench.methods` or `bench.attacks`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bench.errors import BenchError, unknown

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"method": ("methods", "baselines"), "attack": ("attacks",)}


@dataclass(frozen=True)
class Entry:
    """Where a plug-in lives: its public name, its folder (a column of the boards) and its module."""

    name: str
    kind: str
    folder: str
    module: str
    file: Path | None

    @property
    def summary(self) -> str:
        """The first line of the module's docstring, read without importing."""
        if self.file is None:
            return f"from {self.module}"
        doc = ast.get_docstring(ast.parse(self.file.read_text(encoding="utf-8"))) or ""
        return doc.splitlines()[0] if doc else ""


def entries(kind: str, folder: str | None = None) -> dict[str, Entry]:
    """All plug-ins of a kind ("method" or "attack"), sorted by name.

    Raises:
        BenchError: two plug-ins have the same name; both places are named.
    """
    found: dict[str, Entry] = {}
    for entry in [*_files(kind), *_entry_points(kind)]:
        if entry.name in found:
            raise BenchError(
                f"two {kind}s are called '{entry.name}': {found[entry.name].module} and {entry.module}; rename one"
            )
        found[entry.name] = entry
    return {name: found[name] for name in sorted(found) if folder in (None, found[name].folder)}


def _files(kind: str) -> list[Entry]:
    return [
        Entry(path.stem.replace("_", "-"), kind, folder, f"{folder}.{path.stem}", path)
        for folder in FOLDERS[kind]
        for path in sorted((ROOT / folder).glob("[a-z]*.py"))
    ]


def _entry_points(kind: str) -> list[Entry]:
    return [Entry(point.name, kind, f"{kind}s", point.value, None) for point in entry_points(group=f"bench.{kind}s")]


def find(kind: str, name: str) -> Entry:
    """The entry called `name`. Raises BenchError with suggestions."""
    known = entries(kind)
    if name not in known:
        raise unknown(kind, name, known)
    return known[name]


def load(kind: str, name: str) -> type[Any]:
    """The plug-in's class: the one dataclass defined in its module.

    Raises:
        BenchError: unknown name; or the module does not define exactly one dataclass.
    """
    entry = find(kind, name)
    module_name, _, attribute = entry.module.partition(":")
    module = importlib.import_module(module_name)
    if entry.file is not None and Path(module.__file__ or "").resolve() != entry.file.resolve():
        raise BenchError(
            f"another package called '{entry.folder}' hides ours: {module.__file__}; run from another directory"
        )
    if attribute:
        return getattr(module, attribute)
    classes = [
        c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module_name and _is_plugin(c)
    ]
    if len(classes) != 1:
        raise BenchError(f"{entry.module}: expected one dataclass with `version` and `tiers`, found {len(classes)}")
    return classes[0]


def _is_plugin(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and hasattr(cls, "version") and hasattr(cls, "tiers")
