"""What a recipe asks of this machine: which runs are there already, which can be done, and which cannot yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from bench import data, registry, runner
from bench.errors import BenchError
from bench.job import Loader, load_material
from bench.records import RECORD, Record
from bench.sweeps.estimate import Estimate
from bench.sweeps.recipe import Recipe, Wanted, describe

State = Literal["cached", "ready", "planned", "refused"]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: a cell of the recipe with one seed.

    Attributes:
        name: for people.
        arguments: what `bench run` is given, --out and all.
        seed: of the run.
        state: cached (the record is there), ready (to be run), planned (the bench has no such method, attack or data
            yet, for `reason`), refused (the bench knows all of them and says no, for `reason`).
        record: the directory the record lies in or will lie in; None where there will be none.
        after: what the run shares with others and is best made once before them: the same text, the same steps.
        seconds: how long it may take after the cells before it, of a ready cell; None where nothing alike has run.
    """

    name: str
    arguments: tuple[str, ...]
    seed: int
    state: State
    reason: str = ""
    record: Path | None = None
    after: str = ""
    seconds: float | None = None
    note: str = ""


Settle = Callable[[Sequence[str]], tuple[runner.Settings, list[int]]]
"""What the command line makes of arguments of `bench run`; it is the caller's, as the command is above this room."""


def plan(recipe: Recipe, common: Sequence[str], datasets: Sequence[str], out: Path, settle: Settle) -> list[Cell]:
    """Every run of a recipe, in its order.

    Args:
        common: arguments for all runs, such as --tier quick --out DIR.
        datasets: only cells of these; empty = all.
        settle: parses arguments of `bench run`.
    """
    estimate, load = Estimate(out), lru_cache(maxsize=2)(load_material)
    cells: list[Cell] = []
    for wanted in recipe.cells:
        if datasets and wanted.get("dataset") not in datasets:
            continue
        for seed in wanted.seeds:
            cells.append(_cell(wanted, seed, common, settle, estimate, load))
    return cells


def _cell(wanted: Wanted, seed: int, common: Sequence[str], settle: Settle, estimate: Estimate, load: Loader) -> Cell:
    typed = [part for option, value in wanted.options for part in (f"--{option}", value)]
    arguments = (*typed, *common, "--seeds", str(seed))
    name = f"{describe(wanted.options)} seed={seed}"
    missing = _absent(wanted)
    if missing:
        return Cell(name, arguments, seed, "planned", missing, note=wanted.note)
    try:
        settings, _ = settle(arguments)
        try:
            job = runner.prepare(settings, load)
        except BenchError as error:
            if not _is_there(settings):
                return Cell(name, arguments, seed, "planned", str(error), note=wanted.note)
            raise
    except BenchError as error:
        return Cell(name, arguments, seed, "refused", str(error), note=wanted.note)
    spec = runner.run_spec(job, seed)
    path = job.store.root / "records" / spec.hash
    state: State = "cached" if not settings.fresh and done(path) else "ready"
    shared = f"{spec.release.teacher}{spec.evaluator}"
    goal = None if job.attack is None else job.attack.goal
    seconds = estimate.seconds(job.store, spec, goal) if state == "ready" else None
    return Cell(name, arguments, seed, state, "", path, shared, seconds, wanted.note)


def done(path: Path) -> bool:
    """Whether a finished record lies there, of a run that did not fail."""
    try:
        return Record.read(path / RECORD).status != "failed"
    except (OSError, ValueError):
        return False


def _absent(wanted: Wanted) -> str:
    """Which plug-in or data set of a cell the bench does not have, in a sentence; or ""."""
    for kind in ("method", "attack"):
        name = wanted.get(kind)
        if name and name != "none" and name not in registry.entries(kind):
            return f"no {kind} called '{name}' yet"
    try:
        data.check(wanted.get("dataset") or "digits")
    except BenchError:
        return f"no data set called '{wanted.get('dataset')}' yet"
    return ""


def _is_there(settings: runner.Settings) -> bool:
    """Whether the data set can be read on this machine."""
    try:
        data.load(settings.dataset, settings.data_root, settings.download)
    except BenchError:
        return False
    return True
