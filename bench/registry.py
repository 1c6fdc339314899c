"""Methods and attacks: their descriptions, without importing those in the manifest; and their classes.

Variants: the file of a plug-in has the algorithm as its paper publishes it, variant `printed`. The variant `working`
has the changes that make it learn: either the same class with the options that its `departures` set, or another class
in the file `working.py` of the plug-in's folder, with `departures` that describe its changes in words. A class
with `own = True` is an algorithm of this project. `bench.plugins` finds plug-ins.
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

__all__ = ["ROOT", "Entry", "choose_variant", "describe", "effect", "entries", "find", "load", "variants"]


def describe(kind: str, name: str, variant: str | None = None) -> Description:
    """Describe a plug-in at one variant; None = the default one. Raises BenchError as `load`."""
    return _describe(find(kind, name).at(choose_variant(kind, name, variant)))


def variants(kind: str, name: str) -> tuple[Variant, ...]:
    """Return the variants of a plug-in; the last one is the default. Raises BenchError as `load`."""
    entry = find(kind, name)
    if entry.working is not None:
        return ("printed", "working")
    default = _describe(entry).default_variant
    return ("printed", "working") if default == "working" else (default,)


def choose_variant(kind: str, name: str, variant: str | None) -> Variant:
    """Return the given variant, or the default one for None. Raises UnknownName for one that does not exist."""
    known = variants(kind, name)
    if variant is None:
        return known[-1]
    for each in known:
        if variant == each:
            return each
    raise UnknownName(f"{name} has no variant '{variant}': give {' or '.join(known)}")


def load(kind: str, name: str, variant: str | None = None) -> type[Any]:
    """Import the plug-in's class: the one dataclass with `version` and `tiers` that is defined in its module.

    Args:
        variant: None = the default one.

    Raises:
        BenchError: unknown name or variant; or the module does not define exactly one such class.
    """
    return _class(find(kind, name).at(choose_variant(kind, name, variant)))


def effect(name: str, described: Description, departure: Departure) -> str:
    """Return the measured effect of a departure, in words, from the plug-in or else an extension; "" without one.

    Args:
        name: the method or attack that `described` describes.
    """
    measured = (find_effect(name, described, departure) for find_effect in extensions.load("effects").values())
    return departure.worth or next(filter(None, measured), "")


@cache  # boards and sweeps read the same few hundred repeatedly
def _describe(entry: Entry) -> Description:
    """Read a description from the manifest, else by importing the plug-in."""
    found = manifest.read(entry, partial(_class, entry))
    if found is not None:
        return found
    with plugin_errors(f"{entry.kind} '{entry.name}'"):
        return describe_class(_class(entry))


def _class(entry: Entry) -> type[Any]:
    found = plugins.class_of(entry, manifest.is_plugin, "one dataclass with `version` and `tiers`")
    if entry.file is None:  # contract tests check this project's own plug-ins
        read_old_names(entry.kind, found)
        expect(entry.kind, entry.name, found)
    return found
