"""What there is to run: methods, attacks and data sets, described without importing torch."""

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
        name: what `bench.run` takes.
        kind: "method", "baseline" or "attack"; of another package's, "method" or "attack".
        summary: a line about it.
        reference: the paper that it is of.
        variants: what `variant` or `attack_variant` may be; the last one is the default.
        options: what `method_options` or `attack_options` may hold, with types, defaults and help.
        unit: of a method, whose privacy its claim covers: "example", "label", "query", "client" or "none"; "" of an
            attack.
        goal: of an attack, "inversion" or "membership"; "" of a method.
        access: of an attack, "label", "scores", "weights", "samples" or "generator" of the student; "" of a method.
        needs: of a method at its default options, such as "teacher" or "private_data".
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
        name: what `bench.run` takes; PATH is the path of your own files.
        summary: a line about it.
        shape: (channels, height, width) of an image; None where only reading tells.
        class_names: in the order of the labels; () where only reading tells.
        counts: training and test images; None where it is not known.
        layout: files that are looked for below the data root.
        licence: what its publisher allows.
        is_public: whether anyone can have it.
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
        kind: "method" for only the papers' methods, "baseline" for only the others; None = both.

    Returns:
        A description of each.
    """
    found = (_described(entry) for entry in plugins.entries("method").values())
    return tuple(each for each in found if kind in (None, each.kind))


def attacks(goal: Literal["inversion", "membership"] | None = None) -> tuple[PluginInfo, ...]:
    """List the attacks, by name.

    Args:
        goal: only "inversion" or only "membership"; None = both.

    Returns:
        A description of each.
    """
    found = (_described(entry) for entry in plugins.entries("attack").values())
    return tuple(each for each in found if goal in (None, each.goal))


def datasets() -> tuple[DatasetInfo, ...]:
    """List the data sets, by name, and the kinds of your own files.

    Returns:
        A description of each; whether its files are there is found out when it is read.
    """
    return tuple(_dataset(name, summary) for name, summary in data.names().items())


def _described(entry: plugins.Entry) -> PluginInfo:
    described = registry.describe(entry.kind, entry.name)
    kind: Literal["method", "baseline", "attack"] = "attack" if entry.kind == "attack" else "method"
    fact = {name: str(described.facts.get(name, "")) for name in ("reference", "unit", "goal", "access")}
    return PluginInfo(
        entry.name,
        "baseline" if entry.folder == "baselines" else kind,
        entry.summary,
        fact["reference"],
        registry.variants(entry.kind, entry.name),
        described.options,
        fact["unit"],
        fact["goal"],
        fact["access"],
        frozenset(described.facts.get("needs", ())),
    )


def _dataset(name: str, summary: str) -> DatasetInfo:
    if name not in plugins.entries(KIND):
        return DatasetInfo(name, summary)
    facts = data.dataset(name).facts
    return DatasetInfo(
        *(name, summary, facts.shape, facts.class_names, facts.counts, facts.layout, facts.licence, facts.is_public)
    )
