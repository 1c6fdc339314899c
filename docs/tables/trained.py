"""Rows of the table of data sets, with what teachers and evaluators reach there; and the text of a run."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

from rich.console import Console

from bench import progress
from bench.cli import result
from bench.pipeline.run import Outcome
from bench.storage.records import Record
from docs.tables.boards import Line, needed, records, runs


def demo() -> dict[str, object]:
    """The lines that a run of dpsd and gmi on digits ends with, by its record."""
    row = needed("digits", Line("dpsd, attacked by gmi", "dpsd"), attack="gmi")
    record, out, stream = runs(row)[0], Path("runs"), io.StringIO()
    with patch.object(progress, "out", Console(file=stream, width=result.WIDEST, highlight=False)):
        result.show(Outcome(record, out / "records" / record.hash, cached=False), out, result.WIDEST)
    return {"lines": [line.rstrip() for line in stream.getvalue().strip().splitlines()]}


def teachers() -> dict[str, object]:
    """Undefended teachers and evaluators of every data set on the boards, by split; minutes are the median training's.

    Teachers with other settings than recipe and passes, such as those that remember their records, are left out.
    """
    found: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records().values():
        chosen = record.options.get("teacher", {}).keys()
        if "teacher_accuracy" in record.metrics and (not chosen or "recipe" in chosen <= {"recipe", "epochs"}):
            teacher = next(_specs(record.spec, "teacher"))
            data, recipes = teacher["data"], (_recipe(record, network) for network in ("teacher", "evaluator"))
            network = record.options.get("evaluator", {}).get("network", "")
            key = (data["dataset"], data["split"], record.spec["tier"], teacher["arch"], *recipes, network)
            found[key].append(record)
    rows = []
    for (dataset, split, tier, teacher, recipe, judge_recipe, _), mine in sorted(found.items()):
        judged = [run for run in mine if any(_specs(run.spec, "evaluator"))]
        judges = sorted({next(_specs(run.spec, "evaluator"))["arch"] for run in judged})
        images = next((run.provenance["images"] for run in mine if "images" in run.provenance), {})
        rows.append({
            "dataset": dataset, "split": split, "tier": tier, "teacher": f"`{teacher}`{recipe}", "images": images,
            "judges": [f"`{judge}`{judge_recipe}" for judge in judges],
            "seeds": len({next(_specs(run.spec, "teacher"))["seed"] for run in mine}),
            "reached": [*_trainings(mine, "teacher"), *_trainings(judged, "evaluator")],
        })  # fmt: skip
    return {"rows": rows}


def _recipe(record: Record, network: str) -> str:
    chosen = record.options.get(network, {})
    recipe = f", recipe `{chosen['recipe']}`" if "recipe" in chosen else ""
    return recipe + (f", {chosen['epochs']} passes" if "epochs" in chosen else "")


def _specs(spec: Any, kind: str) -> Iterator[dict[str, Any]]:
    """The specs of a kind of step inside a run's."""
    if isinstance(spec, dict) and spec.get("kind") == kind:
        yield spec
    for part in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from _specs(part, kind)


def _trainings(mine: list[Record], kind: str) -> tuple[float | None, float | None]:
    """The accuracy, a mean over seeds, and the median minutes of trainings, each counted once however many runs used
    it; of one seed there may be trainings on several machines."""
    found: dict[int, set[tuple[float, float | None]]] = defaultdict(set)
    for run in mine:
        if (accuracy := run.metrics.get(f"{kind}_accuracy")) is not None:
            found[next(_specs(run.spec, kind))["seed"]].add((accuracy, run.provenance["seconds"].get(kind)))
    seconds = [took for trained in found.values() for _, took in trained if took is not None]
    reached = mean(mean(accuracy for accuracy, _ in trained) for trained in found.values()) if found else None
    return reached, median(seconds) / 60 if seconds else None
