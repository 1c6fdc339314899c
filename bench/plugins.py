"""Where plug-ins are found: one file or folder each in this repository, or an entry point of another distribution.

A plug-in is a file `NAME.py`, or a folder `NAME/` with the file `NAME.py` and its private modules (`_` is written `-`
in names); or an entry point NAME = "MODULE" or "MODULE:CLASS" in the group of its kind. Separate code for the variant
`working` is the file `working.py` of the folder, or the entry point NAME.working. A file of networks may define
several, named in its table NETWORKS.

A user can also pass a class, for example from a notebook. Its name consists of the class's name and a hash of its
source, as `my-method-0123456789ab`, so that another version of the class is another method in steps and records.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from bench.errors import BadPlugin, BenchError, unknown

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Kind:
    """Where the plug-ins of a kind are: folders below `ROOT`, and a group of entry points."""

    folders: tuple[str, ...]
    group: str
    table: str = ""
    """Name of the table, plug-in name -> class name, in a file that has several plug-ins; "" = one plug-in per file."""


KINDS = {
    "method": Kind(("methods", "baselines"), "bench.methods"),
    "attack": Kind(("attacks",), "bench.attacks"),
    "data set": Kind(("bench/data/sets",), "bench.datasets"),
    "network": Kind(("bench/nets/classifiers",), "bench.networks", "NETWORKS"),
    "teacher recipe": Kind(("bench/teachers/recipes",), "bench.teacher_recipes"),
    "prior": Kind(("bench/priors/kinds",), "bench.priors"),
}

HASH = 12
"""Hex digits of the hash in the name of a class that a user passed."""
GIVEN: dict[str, dict[str, Entry]] = {}
"""Kind to name to the plug-ins that the user of this process has passed as classes."""


@dataclass(frozen=True)
class Entry:
    """The location of a plug-in.

    Attributes:
        name: the public name, as a user types it.
        kind: a key of `KINDS`.
        folder: "methods", "baselines" and so on, a column of the boards; the last word of the group for an entry point.
        module: a dotted name; after a colon, the class.
        file: None for an entry point.
        working: the location of the variant `working`, if it has separate code; written as `module`.
        given: the class itself, if a user passed it from Python (`add_class`).
    """

    name: str
    kind: str
    folder: str
    module: str
    file: Path | None
    working: str | None = None
    given: type[Any] | None = None

    def at(self, variant: str) -> Entry:
        """Return the entry of a variant: the module `working` if that variant has separate code."""
        if self.working is None or variant != "working":
            return self
        return replace(self, module=self.working, file=self.file and self.file.with_name("working.py"))

    @property
    def summary(self) -> str:
        """The first line of the module's docstring, read without importing."""
        if self.file is None:
            return f"from {self.module}"
        tree, name = _tree(self.file), self.module.partition(":")[2]
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        doc = ast.get_docstring(classes[name] if name else tree) or ""
        return doc.splitlines()[0] if doc else ""


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def entries(kind: str, folder: str | None = None) -> dict[str, Entry]:
    """Return all plug-ins of a kind, sorted by name; only `find` finds classes that a user passed from Python.

    Raises:
        BenchError: two plug-ins have the same name; both locations are named.
    """
    times: list[tuple[int, ...]] = []
    for name in KINDS[kind].folders:
        try:
            own = os.stat(ROOT / name).st_mtime_ns
            times.append((own, *(os.stat(path).st_mtime_ns for path in _subfolders(ROOT / name, own))))
        except FileNotFoundError:
            times.append(())
    known = _all_entries(kind, ROOT, tuple(times), tuple(sys.path))
    return {name: entry for name, entry in known.items() if folder in (None, entry.folder)}


def find(kind: str, name: str) -> Entry:
    """Return the plug-in called `name`. Raises BenchError with suggestions."""
    known = entries(kind) | GIVEN.get(kind, {})
    if name not in known:
        raise unknown(kind, name, known)
    return known[name]


@lru_cache(maxsize=64)
def _subfolders(folder: Path, changed: int) -> list[str]:
    """List the folders in a folder; cached until its modification time `changed` is another one."""
    return [entry.path for entry in os.scandir(folder) if entry.is_dir()]


@lru_cache(maxsize=64)
def _all_entries(
    kind: str, root: Path, changed: tuple[tuple[int, ...], ...], path: tuple[str, ...]
) -> dict[str, Entry]:
    """Return all plug-ins of a kind, sorted by name; cached until a folder or the search path changes."""
    found: dict[str, Entry] = {}
    group = KINDS[kind].group
    points = sorted({(point.name, point.value) for point in _installed(tuple(sys.path)).select(group=group)})
    working = {name.removesuffix(".working"): value for name, value in points if name.endswith(".working")}
    installed = [
        Entry(name, kind, group.rpartition(".")[2], value, None, working.get(name))
        for name, value in points
        if not name.endswith(".working")
    ]
    for entry in [*_files(kind), *installed]:
        if entry.name in found:
            raise BadPlugin(
                f"two {kind}s are called '{entry.name}': {found[entry.name].module} and {entry.module}; rename one"
            )
        found[entry.name] = entry
    return {name: found[name] for name in sorted(found)}


def _files(kind: str) -> list[Entry]:
    """Return the plug-ins of a kind that are files or folders here; tables of several are read without an import."""
    found: list[Entry] = []
    table = KINDS[kind].table
    for folder in KINDS[kind].folders:
        for path in sorted((ROOT / folder).glob("[a-z]*")):
            module, file, working = f"{folder.replace('/', '.')}.{path.stem}", path, None
            if path.suffix != ".py":
                file = path / f"{path.name}.py"
                if not file.exists():
                    continue
                working = f"{module}.working" if (path / "working.py").exists() else None
                module = f"{module}.{path.name}"
            entry = Entry(path.stem.replace("_", "-"), kind, folder, module, file, working)
            tables: Iterator[dict[str, str]] = (
                ast.literal_eval(node.value)
                for node in (_tree(file).body if table else ())
                if isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and node.targets[0].id == table
            )
            several = [replace(entry, name=name, module=f"{module}:{cls}") for name, cls in next(tables, {}).items()]
            found += several or [entry]
    return found


@lru_cache(maxsize=64)
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of all distributions on a search path; cached, as their files are read."""
    return cast(EntryPoints, entry_points())  # before Python 3.12 another type, which has `select` too


def class_of(entry: Entry, is_one: Callable[[type], bool], expected: str) -> type[Any]:
    """Return the class that an entry names: the only class of its module for which `is_one` holds.

    Args:
        expected: the requirement of `is_one`, for the message, such as "one dataclass".

    Raises:
        BenchError: the module cannot be imported; another package hides it; or it defines no such class, or several.
    """
    if entry.given is not None:
        return entry.given
    module_name, _, attribute = entry.module.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BenchError:
        raise
    except (Exception, SystemExit) as error:  # third-party code may raise anything on import
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadPlugin(
            f"{entry.kind} '{entry.name}' cannot be imported from {module_name} ({reason}); install what it needs, or "
            "uninstall it"
        ) from error
    if entry.file is not None and not _same_file(module.__file__ or "", entry.file):
        raise BadPlugin(
            f"another package called '{entry.folder}' hides ours: {module.__file__}; run from another directory"
        )
    if attribute:
        named = getattr(module, attribute, None)
        if not (isinstance(named, type) and is_one(named)):
            raise BadPlugin(f"{entry.kind} '{entry.name}': {entry.module} does not name {expected}; fix the plug-in")
        return named
    classes = _classes(module, is_one)
    if len(classes) != 1:
        raise BadPlugin(f"{entry.module}: expected {expected}, found {len(classes)}")
    return classes[0]


@lru_cache(maxsize=1024)
def _same_file(loaded: str, file: Path) -> bool:
    return Path(loaded).resolve() == file.resolve()


@lru_cache(maxsize=1024)
def _classes(module: ModuleType, is_one: Callable[[type], bool]) -> list[type[Any]]:
    """Return the classes that a module defines and for which `is_one` holds."""
    own = (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__)
    return [c for c in own if is_one(c)]


def add_class(kind: str, cls: type[Any]) -> tuple[str, str | None]:
    """Register a class in this process, unless it is a plug-in already, and return its name and variant.

    Args:
        kind: "method" or "attack".
        cls: a dataclass with `version` and `tiers` (CONTRIBUTING.md).

    Returns:
        Its name; and "working" if it is the separate code of that variant of a plug-in, else None.

    Raises:
        BadPlugin: the class is not such a dataclass.
    """
    from bench.fingerprint import fingerprint

    if not (dataclasses.is_dataclass(cls) and hasattr(cls, "version") and hasattr(cls, "tiers")):
        raise BadPlugin(
            f"{kind} {cls.__qualname__}: expected a frozen dataclass with `version` and `tiers`; see CONTRIBUTING.md, "
            f"or give the name of one of `bench.{kind}s()`"
        )
    for entry in entries(kind).values():
        if entry.given is None and cls.__module__ == entry.module.partition(":")[0]:
            return entry.name, None
        if entry.working is not None and cls.__module__ == entry.working.partition(":")[0]:
            return entry.name, "working"
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", cls.__name__).lower()
    name = f"{re.sub(r'[^a-z0-9-]', '', words).strip('-')}-{fingerprint(cls)[:HASH]}"
    folder = KINDS[kind].group.rpartition(".")[2]
    GIVEN.setdefault(kind, {})[name] = Entry(
        name, kind, folder, f"{cls.__module__}:{cls.__qualname__}", None, given=cls
    )
    return name, None
