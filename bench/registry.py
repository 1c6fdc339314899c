"""Methods and attacks: what each says of itself, without importing it where its source tells; and its class.

Variants. The file of a plug-in holds the algorithm as its paper prints it, variant `printed`. What we made of it so
that it learns, variant `working`, is either the same class with the options that its `departures` set, or a class of
its own in the file `working.py` of the plug-in's folder, with `departures` that say in words what it changes. A class
with `own = True` is this project's own algorithm, of which nothing is printed. `bench.plugins.discovery` says where
plug-ins are found.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bench import extensions, plugins
from bench.config import Departure, Description, Variant, default_variant_by_source, describe_source
from bench.config import describe as describe_class
from bench.declared import expect, read_old_names
from bench.errors import UnknownName, plugin_errors
from bench.plugins import ROOT, Entry, Unreadable, entries, find

__all__ = ["ROOT", "Entry", "describe", "effect", "entries", "find", "load", "settle", "variants", "version"]


def describe(kind: str, name: str, variant: str | None = None) -> Description:
    """What a plug-in says of itself, at one variant; None = the default one. Raises BenchError as `load`."""
    return _describe(_of_variant(find(kind, name), settle(kind, name, variant)))


@cache
def version(kind: str, name: str, variant: str) -> int:
    """The version of a plug-in's variant; of its source as little as possible is read. Raises BenchError as `load`."""
    entry = find(kind, name)
    try:
        if entry.file is not None:
            return _version_by_source(entry, entry.file, variant)
    except Unreadable:
        pass  # a form that only Python can evaluate, or no such variant
    return int(describe(kind, name, variant).facts["version"])


def _version_by_source(entry: Entry, file: Path, variant: str) -> int:
    source = plugins.read(file, entry.module, "version", "tiers")
    usual = "working" if entry.working is not None else default_variant_by_source(source)
    if variant != usual and (variant, usual) != ("printed", "working"):
        raise Unreadable(f"{entry.name} has no variant {variant}")
    if variant == "working" and entry.working is not None:
        source = plugins.read(file.with_name("working.py"), entry.working, "version", "tiers")
    return int(source.value("version"))


def variants(kind: str, name: str) -> tuple[Variant, ...]:
    """The variants of a plug-in; the last one is the default. Raises BenchError as `load`."""
    entry = find(kind, name)
    if entry.working is not None:
        return ("printed", "working")
    default = _describe(entry).default_variant
    return ("printed", "working") if default == "working" else (default,)


def settle(kind: str, name: str, variant: str | None) -> Variant:
    """The variant that is meant: the default where none is named. Raises BenchError for one that there is not."""
    known = variants(kind, name)
    if variant is None:
        return known[-1]
    for each in known:
        if variant == each:
            return each
    raise UnknownName(f"{name} has no variant '{variant}': it has {' and '.join(known)}")


def load(kind: str, name: str, variant: str | None = None) -> type[Any]:
    """The plug-in's class: the one dataclass with `version` and `tiers` that is defined in its module.

    Args:
        variant: None = the default one.

    Raises:
        BenchError: unknown name or variant; or the module does not define exactly one such class.
    """
    return _class(_of_variant(find(kind, name), settle(kind, name, variant)))


def effect(name: str, described: Description, departure: Departure) -> str:
    """The measured effect of a departure, in words: as the plug-in or else an extension states it; "" if neither does.

    Args:
        name: of the method or attack that `described` is about.
    """
    measured = (find_effect(name, described, departure) for find_effect in extensions.load("effects").values())
    return departure.worth or next(filter(None, measured), "")


def _of_variant(entry: Entry, variant: Variant) -> Entry:
    """The entry, of the module `working` where that is another one."""
    if entry.working is None or variant != "working":
        return entry
    return replace(entry, module=entry.working, file=entry.file and entry.file.with_name("working.py"))


def _describe(entry: Entry) -> Description:
    """From the source where there is one in this repository; else by importing."""
    if entry.file is not None:
        try:
            return _of_source(entry.file, entry.module)
        except Unreadable:
            pass  # a form that only Python can evaluate; ours have none, as tests/test_plugin_source.py checks
    with plugin_errors(f"{entry.kind} '{entry.name}'"):
        return describe_class(_class(entry))


@cache  # boards and sweeps ask the same few hundred again and again
def _of_source(file: Path, module: str) -> Description:
    return describe_source(plugins.read(file, module, "version", "tiers"))


def _class(entry: Entry) -> type[Any]:
    found = plugins.class_of(entry, _is_plugin, "one dataclass with `version` and `tiers`")
    if entry.file is None:  # of ours the contract tests check that, and more
        read_old_names(entry.kind, found)
        expect(entry.kind, entry.name, found)
    return found


def _is_plugin(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and hasattr(cls, "version") and hasattr(cls, "tiers")
