"""What a cell of a paper's table shows: which lines of ours, and what must be said of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.papers.matching import ONE_OF_TWO

Cell = Mapping[str, Any]
Size = tuple[str, str]
"""Variant and tier."""


def cells(lines: Sequence[Cell]) -> list[dict[str, Any]]:
    """The lines of a table, each with `shown`, whether a cell has it, and `told`, what stands beside it in small.

    A cell has the line that counts. Where the printed number belongs to one of two epsilons it has ours of the other
    one, too, and each says its epsilon. The number that ablations are held against is also shown in their variant;
    where a table has ablations, and a method is there in more than one variant or tier, each line says which it is of.
    """
    counting = {line["entry"]: line for line in lines if line["counts"]}
    variants = _of_ablations(counting.values())
    shown = [_is_shown(line, counting, variants) for line in lines]
    mixed = _mixed(line for line, keep in zip(lines, shown, strict=True) if keep) if variants else frozenset()
    return [
        {**line, "shown": keep, "told": _told(line, line["method"] in mixed) if keep and line["ours"] else ""}
        for line, keep in zip(lines, shown, strict=True)
    ]


def _of_ablations(counting: Iterable[Cell]) -> dict[str, set[str]]:
    """Method to the variants of ours that its ablations were run in."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in counting:
        if line["ablation"]:
            found[line["method"]].add(line["ours"]["variant"])
    return dict(found)


def _is_shown(line: Cell, counting: Mapping[int, Cell], variants: Mapping[str, set[str]]) -> bool:
    if line["ours"] is None or line["counts"]:
        return True
    first, variant = counting[line["entry"]], line["ours"]["variant"]
    if variant == first["ours"]["variant"]:
        return ONE_OF_TWO in line["issues"]
    return not line["ablation"] and variant in variants.get(line["method"], ())


def _mixed(shown: Iterable[Cell]) -> frozenset[str]:
    """The methods of which a table shows more than one variant or tier."""
    found: dict[str, set[Size]] = defaultdict(set)
    for line in shown:
        if line["ours"]:
            found[line["method"]].add((line["ours"]["variant"], line["ours"]["tier"]))
    return frozenset(method for method, sizes in found.items() if len(sizes) > 1)


def _told(line: Cell, is_mixed: bool) -> str:
    ours, claimed = line["ours"], line["ours"]["claimed"]
    of_two = ONE_OF_TWO in line["issues"] and isinstance(claimed, float)
    words = [f"ε {claimed:.3g}" if of_two else "", *((ours["variant"], ours["tier"]) if is_mixed else ())]
    return ", ".join(word for word in words if word)
