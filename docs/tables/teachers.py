"""The table of data sets: how many images, and what teachers and evaluators reach in how many minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import mean, median
from typing import Any

from bench.storage.records import Record
from docs.tables.boards import records
from docs.tables.cells import table

Trained = tuple[str, str, str, str, str, str, str]
"""Data set, split, tier, the teacher's network; its recipe and passes where asked for, those of the evaluator, and its
network where one was asked for."""


def teachers() -> str:
    """Undefended teachers and evaluators of every data set on the boards, by split; minutes are the median training's.

    Teachers with settings of their own, such as those that remember their records, are left out.
    """
    found: dict[Trained, list[Record]] = defaultdict(list)
    for record in records().values():
        given = record.options.get("teacher", {}).keys()
        if "teacher_accuracy" in record.metrics and (not given or "recipe" in given <= {"recipe", "epochs"}):
            found[_trained(record)].append(record)
    rows = []
    for (dataset, split, tier, teacher, recipe, judge_recipe, _), runs in sorted(found.items()):
        judged = [run for run in runs if _specs(run.spec, "evaluator")]
        judges = sorted({_specs(run.spec, "evaluator")[0]["arch"] for run in judged})
        rows.append([
            dataset, split, _count(runs, "private"), _count(runs, "test"),
            f"`{teacher}`{recipe}", tier,
            str(len({_specs(run.spec, "teacher")[0]["seed"] for run in runs})),
            _percent(runs, "teacher"), _minutes(runs, "teacher"),
            ", ".join(f"`{judge}`{judge_recipe}" for judge in judges), _percent(judged, "evaluator"),
            _minutes(judged, "evaluator"),
        ])  # fmt: skip
    columns = ["data set", "split", "private", "test", "teacher", "tier", "seeds", "accuracy", "minutes"]
    return table([*columns, "evaluator", "its accuracy", "its minutes"], rows)


def _trained(record: Record) -> Trained:
    teacher = _specs(record.spec, "teacher")[0]
    data, asked = teacher["data"], (_asked(record.options.get(network, {})) for network in ("teacher", "evaluator"))
    network = record.options.get("evaluator", {}).get("network", "")
    return data["dataset"], data["split"], record.spec["tier"], teacher["arch"], *asked, network


def _asked(given: dict[str, Any]) -> str:
    recipe = f", recipe `{given['recipe']}`" if "recipe" in given else ""
    return recipe + (f", {given['epochs']} passes" if "epochs" in given else "")


def _specs(spec: Any, kind: str) -> list[dict[str, Any]]:
    """The specs of a kind of step inside a run's."""
    parts: Iterable[Any] = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    own = [spec] if isinstance(spec, dict) and spec.get("kind") == kind else []
    return own + [each for part in parts for each in _specs(part, kind)]


def _count(runs: list[Record], part: str) -> str:
    found = [run.provenance["images"][part] for run in runs if "images" in run.provenance]
    return f"{found[0]:,}" if found else ""


def _trainings(runs: list[Record], kind: str) -> dict[int, set[tuple[float, float | None]]]:
    """Seed to (accuracy, seconds) of every training, once however many runs used it."""
    found: dict[int, set[tuple[float, float | None]]] = defaultdict(set)
    for run in runs:
        if (accuracy := run.metrics.get(f"{kind}_accuracy")) is not None:
            found[_specs(run.spec, kind)[0]["seed"]].add((accuracy, run.provenance["seconds"].get(kind)))
    return found


def _percent(runs: list[Record], kind: str) -> str:
    """Mean over seeds, of each of which there may be trainings on several machines."""
    seeds = [mean(accuracy for accuracy, _ in trained) for trained in _trainings(runs, kind).values()]
    return f"{100 * mean(seeds):.1f} %" if seeds else ""


def _minutes(runs: list[Record], kind: str) -> str:
    values = [seconds for trained in _trainings(runs, kind).values() for _, seconds in trained if seconds is not None]
    return f"{median(values) / 60:.1f}" if values else ""
