"""Methods and attacks: the description of each, without importing it where the manifest has it; and its class.

Variants. The file of a plug-in holds the algorithm as its paper prints it, variant `printed`. What we made of it so
that it learns, variant `working`, is either the same class with the options that its `departures` set, or a class of
its own in the file `working.py` of the plug-in's folder, with `departures` that say in words what it changes. A class
with `own = True` is this project's own algorithm, of which nothing is printed. `bench.plugins.discovery` says where
plug-ins are found.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from bench import extensions, manifest, plugins
from bench.config import Departure, Description, Variant
from bench.config import describe as describe_class
from bench.declared import expect, read_old_names
from bench.errors import UnknownName, plugin_errors
from bench.plugins import ROOT, Entry, entries, find

__all__ = ["ROOT", "Entry", "describe", "effect", "entries", "find", "load", "settle", "variants"]


def describe(kind: str, name: str, variant: str | None = None) -> Description:
    """What a plug-in says of itself, at one variant; None = the default one. Raises BenchError as `load`."""
    return _describe(find(kind, name).at(settle(kind, name, variant)))


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
    return _class(find(kind, name).at(settle(kind, name, variant)))


def effect(name: str, described: Description, departure: Departure) -> str:
    """The measured effect of a departure, in words: as the plug-in or else an extension states it; "" if neither does.

    Args:
        name: of the method or attack that `described` is about.
    """
    measured = (find_effect(name, described, departure) for find_effect in extensions.load("effects").values())
    return departure.worth or next(filter(None, measured), "")


@cache  # boards and sweeps read the same few hundred again and again
def _describe(entry: Entry) -> Description:
    """From the manifest, else by importing."""
    found = manifest.read(entry, partial(_class, entry))
    if found is not None:
        return found
    with plugin_errors(f"{entry.kind} '{entry.name}'"):
        return describe_class(_class(entry))


def _class(entry: Entry) -> type[Any]:
    found = plugins.class_of(entry, manifest.is_plugin, "one dataclass with `version` and `tiers`")
    if entry.file is None:  # of ours the contract tests check that, and more
        read_old_names(entry.kind, found)
        expect(entry.kind, entry.name, found)
    return found
