"""Lists of methods, attacks and data sets, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench import data, plugins, registry
from bench.config import Option, Variant
from bench.data.naming import KIND


@dataclass(frozen=True)
class PluginInfo:
    """A method or an attack.

    Attributes:
        name: the name that `bench.run` takes.
        kind: "method", "baseline" or "attack"; "method" or "attack" for a plug-in of another package.
        summary: a line about it.
        reference: its paper.
        variants: allowed values of `variant` or `attack_variant`; the last one is the default.
        options: entries of `method_options` or `attack_options`, with types, defaults and help.
        unit: the unit that a method's claim protects: "example", "label", "query", "client", "group" or "none"; "" for
            an attack.
        goal: "inversion" or "membership" for an attack; "" for a method.
        access: the part of the student that an attack reads: "label", "scores", "weights", "samples" or "generator";
            "" for a method.
        needs: inputs of a method at its default options, such as "teacher" or "private_data".
    """

    name: str
    kind: Literal["method", "baseline", "attack"]
    summary: str
    reference: str
    variants: tuple[Variant, ...]
    options: tuple[Option, ...]
    unit: str = ""
    goal: str = ""
    access: str = ""
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DatasetInfo:
    """A data set.

    Attributes:
        name: the name that `bench.run` takes; PATH is the path of your own files.
        summary: a line about it.
        shape: (channels, height, width) of an image; None if unknown before reading.
        class_names: names of the classes, in the order of the labels; () if unknown before reading.
        counts: numbers of training and test images; None if unknown before reading.
        layout: the expected files below the data root.
        licence: its licence.
        is_public: whether it can be downloaded by anyone.
    """

    name: str
    summary: str
    shape: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()
    counts: tuple[int, int] | None = None
    layout: str = ""
    licence: str = ""
    is_public: bool = False


def methods(kind: Literal["method", "baseline"] | None = None) -> tuple[PluginInfo, ...]:
    """List the methods, by name.

    Args:
        kind: "method" for the methods of the four papers, "baseline" for the others; None = both.

    Returns:
        A description of each.
    """
    found = (_describe(entry) for entry in plugins.entries("method").values())
    return tuple(each for each in found if kind in (None, each.kind))


def attacks(goal: Literal["inversion", "membership"] | None = None) -> tuple[PluginInfo, ...]:
    """List the attacks, by name.

    Args:
        goal: only "inversion" or only "membership"; None = both.

    Returns:
        A description of each.
    """
    found = (_describe(entry) for entry in plugins.entries("attack").values())
    return tuple(each for each in found if goal in (None, each.goal))


def datasets() -> tuple[DatasetInfo, ...]:
    """List the data sets, by name, and the kinds of your own files.

    Returns:
        A description of each. Whether the files exist is checked only when a data set is read.
    """
    found = []
    for name, summary in data.names().items():
        if name not in plugins.entries(KIND):  # a kind of your own files, such as npz:PATH
            found.append(DatasetInfo(name, summary))
            continue
        facts = data.dataset(name).facts
        found.append(
            DatasetInfo(
                name=name,
                summary=summary,
                shape=facts.shape,
                class_names=facts.class_names,
                counts=facts.counts,
                layout=facts.layout,
                licence=facts.licence,
                is_public=facts.is_public,
            )
        )
    return tuple(found)


def _describe(entry: plugins.Entry) -> PluginInfo:
    described = registry.describe(entry.kind, entry.name)
    kind: Literal["method", "baseline", "attack"] = "attack" if entry.kind == "attack" else "method"
    return PluginInfo(
        name=entry.name,
        kind="baseline" if entry.folder == "baselines" else kind,
        summary=entry.summary,
        reference=described.facts.get("reference", ""),
        variants=registry.variants(entry.kind, entry.name),
        options=described.options,
        unit=str(described.facts.get("unit", "")),
        goal=described.facts.get("goal", ""),
        access=described.facts.get("access", ""),
        needs=frozenset(described.facts.get("needs", ())),
    )
