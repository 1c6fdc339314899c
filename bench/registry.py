"""Names of plug-ins without importing them; one plug-in's class by importing one module.

A plug-in is a file `NAME.py` in `methods/`, `baselines/` or `attacks/`, or a folder `NAME/` with the file `NAME.py` and
its private parts beside it (`_` is written `-` in names); or an entry point NAME of another distribution in the group
`bench.methods` or `bench.attacks`.

Variants. The file holds the algorithm as its paper prints it, variant `printed`. What we made of it so that it learns,
variant `working`, is either the same class with the options that its `departures` set, or a class of its own in the
file `working.py` of the folder (entry point NAME.working), with `departures` that say in words what it changes. A class
with `own = True` is this project's own algorithm, of which nothing is printed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bench.config import Variant, default_variant
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
    working: str | None = None
    """Where the variant `working` lives, if it has code of its own."""

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
        _entry(kind, folder, path)
        for folder in FOLDERS[kind]
        for path in sorted((ROOT / folder).glob("[a-z]*"))
        if path.suffix == ".py" or (path / f"{path.name}.py").exists()
    ]


def _entry(kind: str, folder: str, path: Path) -> Entry:
    name = path.stem.replace("_", "-")
    if path.suffix == ".py":
        return Entry(name, kind, folder, f"{folder}.{path.stem}", path)
    module = f"{folder}.{path.name}"
    working = f"{module}.working" if (path / "working.py").exists() else None
    return Entry(name, kind, folder, f"{module}.{path.name}", path / f"{path.name}.py", working)


def _entry_points(kind: str) -> list[Entry]:
    points = {point.name: point.value for point in entry_points(group=f"bench.{kind}s")}
    return [
        Entry(name, kind, f"{kind}s", value, None, points.get(f"{name}.working"))
        for name, value in points.items()
        if not name.endswith(".working")
    ]


def find(kind: str, name: str) -> Entry:
    """The entry called `name`. Raises BenchError with suggestions."""
    known = entries(kind)
    if name not in known:
        raise unknown(kind, name, known)
    return known[name]


def variants(kind: str, name: str) -> tuple[Variant, ...]:
    """The variants of a plug-in; the last one is the default. Raises BenchError as `load`."""
    if find(kind, name).working is not None:
        return ("printed", "working")
    default = default_variant(_class(find(kind, name)))
    return ("printed", "working") if default == "working" else (default,)


def settle(kind: str, name: str, variant: str | None) -> Variant:
    """The variant that is meant: the default where none is named. Raises BenchError for one that there is not."""
    known = variants(kind, name)
    for each in known:
        if variant in (each, None) and (variant is not None or each == known[-1]):
            return each
    raise BenchError(f"{name} has no variant '{variant}': it has {' and '.join(known)}")


def load(kind: str, name: str, variant: str | None = None) -> type[Any]:
    """The plug-in's class: the one dataclass defined in its module.

    Args:
        variant: None = the default one.

    Raises:
        BenchError: unknown name or variant; or the module does not define exactly one dataclass.
    """
    entry = find(kind, name)
    if entry.working is not None and settle(kind, name, variant) == "working":
        folder = None if entry.file is None else entry.file.with_name("working.py")
        return _class(replace(entry, module=entry.working, file=folder))
    if variant is not None:
        settle(kind, name, variant)
    return _class(entry)


def _class(entry: Entry) -> type[Any]:
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
