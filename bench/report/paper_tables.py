"""The papers' tables, number by number beside ours, as plain data and as one chart of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import data
from bench.boards import printed_information, reported
from bench.boards.board_cells import number
from bench.boards.reasons import CLOSE, reason, without_noise
from bench.boards.reported import UNNAMED, Line, Reported
from bench.boards.wide import finished
from bench.report.command import installed, variants_of
from bench.report.files import readable
from bench.report.paper_cells import cells
from bench.report.releases import plain, text
from bench.report.sources import Recipe

Row = Mapping[str, Any]


def tables(
    rows: Iterable[Row], recipes: Mapping[tuple[str, str], Recipe], dataset: str | None = None
) -> list[dict[str, Any]]:
    """Every table and every group of sentences of the papers that prints accuracies, in the file's order.

    Args:
        rows: of boards, with "dataset" in each; each number is compared with the largest tier that it was run at.
        dataset: of the papers' numbers, those of this data set alone.
    """
    kept = reported.of_tier(rows)
    controls = without_noise(kept)
    datasets = set(data.names())
    found = []
    for paper, names in reported.papers().items():
        for name in names:
            entries = [entry for entry in reported.table(paper, name) if dataset in (None, entry.dataset)]
            if entries:
                compared = reported.compare(entries, kept, lambda m, d: m in installed("method") and d in datasets)
                found.append(_table(entries, compared, controls, recipes.get((paper, name))))
    return found


def _table(
    entries: Sequence[Reported], compared: Sequence[Line], controls: Mapping[object, Row], recipe: Recipe | None
) -> dict[str, Any]:
    first, counting = entries[0], {id(line) for line in standing_for(compared).values()}
    return {
        "slug": readable(first.source),
        "paper": first.paper,
        "table": first.table,
        "title": f"{first.source}: {_about(entries)}" if recipe is None else recipe.title,
        "recipe": None if recipe is None else recipe.file,
        **counted(compared),
        "lines": cells([_line(line, entries.index(line.entry), controls, id(line) in counting) for line in compared]),
    }


def _about(entries: Sequence[Reported]) -> str:
    """What a sentence of a paper prints accuracies of."""
    methods, places = dict.fromkeys(e.method for e in entries), dict.fromkeys(e.dataset for e in entries)
    return f"{', '.join(methods)} on {', '.join(places)}".replace(f" on {UNNAMED}", ", no data set named")


def counted(compared: Sequence[Line]) -> dict[str, int]:
    """How many numbers the table prints, how many have one of ours, and how many of these are within two points.

    A number counts as within by the line of ours that `standing_for` takes.
    """
    ours = standing_for(compared)
    within = [line for line in ours.values() if line.difference is not None and line.difference >= -CLOSE]
    return {"cells": len({line.entry for line in compared}), "ours": len(ours), "within": len(within)}


def standing_for(compared: Iterable[Line]) -> dict[Reported, Line]:
    """Of each number that we have, the line that counts: of the variant that is run by default, or of the only one that
    was run; of several, where the number's epsilon is not known, the one that is furthest behind."""
    ours: dict[Reported, Line] = {}
    for line in compared:
        if line.row is not None and (line.entry not in ours or _counts_before(line, ours[line.entry])):
            ours[line.entry] = line
    return ours


def _counts_before(line: Line, other: Line) -> bool:
    usual, behind = _is_usual(line), (line.difference or 0.0) < (other.difference or 0.0)
    return usual > _is_usual(other) or (usual == _is_usual(other) and behind)


def _is_usual(line: Line) -> bool:
    method = str((line.row or {})["method"])
    return method in installed("method") and (line.row or {})["variant"] == variants_of("method", method)[-1]


def _line(line: Line, number_of_entry: int, controls: Mapping[object, Row], counts: bool) -> dict[str, Any]:
    """A printed number, and ours of one variant. `entry` is the same for all lines of one printed number, of which one
    `counts`."""
    entry = line.entry
    return {
        "entry": number_of_entry,
        "dataset": entry.dataset,
        "method": entry.method,
        "ablation": " ".join(part for part in (entry.ablation, entry.teacher) if part),
        "unit": entry.unit,
        "epsilon": entry.epsilon,
        "either": list(reported.beside(entry)) if reported.ONE_OF_TWO in entry.issues else [],
        "printed": entry.value,
        "issues": list(entry.issues),
        "note": entry.note,
        "allows": printed_information.allowed(entry),
        "state": line.state,
        "counts": counts,
        "ours": None if line.row is None else _ours(line, line.row, controls),
    }


def _ours(line: Line, row: Row, controls: Mapping[object, Row]) -> dict[str, Any]:
    why = reason(line, controls)
    return {
        "usual": _is_usual(line),
        "variant": row["variant"],
        "accuracy": number(row["accuracy_mean"]),
        "std": number(row["accuracy_std"]),
        "seeds": finished(row),
        "tier": row["tier"],
        "dataset": row["dataset"],
        "setting": text(row["setting"]),
        "difference": line.difference,
        "claimed": plain(number(row["epsilon_claimed"])),
        "epsilon": plain(number(row["epsilon_accounted"])),
        "unit": row["unit"],
        "information": plain(number(row["information"])),
        "flags": line.flags.split(),
        "run": str(row["runs"]).split()[0],
        "reason": None if why is None else [why.code, why.experiment],
    }
