"""Rows of the table of data sets, with the accuracies of teachers and evaluators; and the text of a run."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Trained:
    """Mean accuracy over seeds on the test set, and median minutes of a training; None without any."""

    accuracy: float | None
    minutes: float | None


@dataclass(frozen=True)
class TrainedRow:
    """A row of the table of data sets.

    Attributes:
        teacher, evaluators: networks, with their recipes.
        private, test: numbers of images; None where records do not have them.
        seeds: number of teachers.
    """

    dataset: str
    split: str
    tier: str
    teacher: str
    evaluators: list[str]
    private: int | None
    test: int | None
    seeds: int
    teachers: Trained
    judges: Trained


def demo() -> dict[str, object]:
    """Return the last lines that a run of dpsd and gmi on digits prints, from its record."""
    found = needed("digits", Line("dpsd, attacked by gmi", "dpsd"), attack="gmi")
    record, out, stream = runs(found)[0], Path("runs"), io.StringIO()
    with patch.object(progress, "out", Console(file=stream, width=result.WIDEST, highlight=False)):
        result.show(Outcome(record, out / "records" / record.hash, cached=False), out, result.WIDEST)
    return {"lines": [line.rstrip() for line in stream.getvalue().strip().splitlines()]}


def teachers() -> dict[str, object]:
    """Return the unprotected teachers and the evaluators of every data set on the boards, by split.

    Teachers with other options than recipe and epochs, such as those that memorise their records, are left out.
    """
    found: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records().values():
        chosen = record.options.get("teacher", {}).keys()
        if "teacher_accuracy" in record.metrics and (not chosen or "recipe" in chosen <= {"recipe", "epochs"}):
            spec = next(_specs(record.spec, "teacher"))
            data, recipes = spec["data"], (_recipe(record, network) for network in ("teacher", "evaluator"))
            network = record.options.get("evaluator", {}).get("network", "")
            key = (data["dataset"], data["split"], record.spec["tier"], spec["arch"], *recipes, network)
            found[key].append(record)
    rows = []
    for (dataset, split, tier, teacher, recipe, judge_recipe, _), mine in sorted(found.items()):
        judged = [run for run in mine if any(_specs(run.spec, "evaluator"))]
        judges = sorted({next(_specs(run.spec, "evaluator"))["arch"] for run in judged})
        images = next((run.provenance["images"] for run in mine if "images" in run.provenance), {})
        rows.append(TrainedRow(
            dataset, split, tier, f"`{teacher}`{recipe}", [f"`{judge}`{judge_recipe}" for judge in judges],
            images.get("private"), images.get("test"),
            len({next(_specs(run.spec, "teacher"))["seed"] for run in mine}),
            _trained(mine, "teacher"), _trained(judged, "evaluator"),
        ))  # fmt: skip
    return {"rows": rows}


def _recipe(record: Record, network: str) -> str:
    chosen = record.options.get(network, {})
    recipe = f", recipe `{chosen['recipe']}`" if "recipe" in chosen else ""
    return recipe + (f", {chosen['epochs']} passes" if "epochs" in chosen else "")


def _specs(spec: Any, kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield the specs of a kind of step inside a run's spec."""
    if isinstance(spec, dict) and spec.get("kind") == kind:
        yield spec
    for part in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from _specs(part, kind)


def _trained(mine: list[Record], kind: str) -> Trained:
    """Return what the networks of a kind reached; each training is counted once, however many runs used it.

    Of one seed there may be trainings on several machines.
    """
    found: dict[int, set[tuple[float, float | None]]] = defaultdict(set)
    for run in mine:
        if (accuracy := run.metrics.get(f"{kind}_accuracy")) is not None:
            found[next(_specs(run.spec, kind))["seed"]].add((accuracy, run.provenance["seconds"].get(kind)))
    seconds = [took for trained in found.values() for _, took in trained if took is not None]
    reached = mean(mean(accuracy for accuracy, _ in trained) for trained in found.values()) if found else None
    return Trained(reached, median(seconds) / 60 if seconds else None)
