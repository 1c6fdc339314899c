"""What a recipe asks of this machine: which runs are there already, which can be done, and which cannot yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

from bench import data, registry
from bench.errors import BenchError
from bench.pipeline import canary_audit
from bench.pipeline.canary_game import CanaryGame, check
from bench.pipeline.job import Job, Loader, load_job
from bench.pipeline.material import kept_in, load_material
from bench.pipeline.run_spec import run_spec
from bench.pipeline.settings import Settings
from bench.storage.records import RECORD, Record
from bench.sweeps.estimate import Estimate
from bench.sweeps.recipe import Recipe, RecipeCell

State = Literal["cached", "ready", "planned", "refused"]


@dataclass(frozen=True)
class Cell:
    """One run or audit of a sweep: a cell of the recipe with one seed.

    Attributes:
        name: for people.
        arguments: what the command is given, --out and all.
        seed: of the run.
        state: cached (the record is there), ready (to be run), planned (the bench has no such method, attack or data
            yet, for `reason`), refused (the bench knows all of them and says no, for `reason`).
        record: the directory the record or the audit lies in or will lie in; None where there will be none.
        after: what the run shares with others and is best made once before them: the same text, the same steps.
        seconds: how long it may take after the cells before it, of a ready cell; None where nothing like it has run.
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
    command: str = "run"


Settle = Callable[[Sequence[str]], tuple[Settings, CanaryGame | None]]
"""What the command line makes of a command, and of its game if it is an audit; the caller's, as that is above here."""


def plan(recipe: Recipe, common: Sequence[str], datasets: Sequence[str], out: Path, settle: Settle) -> list[Cell]:
    """Every run of a recipe, in its order.

    Args:
        common: arguments for all runs, such as --tier quick --out DIR.
        datasets: only cells of these; empty = all.
        settle: parses a command of `bench` and its arguments.
    """
    estimate, load = Estimate(out), lru_cache(maxsize=2)(load_material)
    cells: list[Cell] = []
    for written in recipe.cells:
        if datasets and written.get("dataset") not in datasets:
            continue
        for seed in written.seeds:
            cells.append(_cell(written, seed, common, settle, estimate, load))
    return cells


def _cell(
    written: RecipeCell, seed: int, common: Sequence[str], settle: Settle, estimate: Estimate, load: Loader
) -> Cell:
    arguments = (*written.arguments, *common, "--seeds", str(seed))
    cell = partial(Cell, f"{written.name} seed={seed}", arguments, seed, note=written.note, command=written.command)
    missing = _absent(written)
    if missing:
        return cell("planned", missing)
    try:
        settings, game = settle([*written.command.split(), *arguments])
        try:
            job = load_job(settings, load)
        except BenchError as error:
            if not _is_there(settings):
                return cell("planned", str(error))
            raise
        there = _run(job, seed, estimate) if game is None else _audit(job, game, seed, estimate)
    except BenchError as error:
        return cell("refused", str(error))
    state: State = "cached" if there.done and not settings.fresh else "ready"
    return cell(state, record=there.path, after=there.shared, seconds=there.seconds() if state == "ready" else None)


@dataclass(frozen=True)
class _Place:
    """Where a cell's record goes, whether it is there, what is shared with other cells, and the time it will take."""

    path: Path
    done: bool
    shared: str
    seconds: Callable[[], float | None]


def _run(job: Job, seed: int, estimate: Estimate) -> _Place:
    spec = run_spec(job, seed)
    path = job.store.root / "records" / spec.hash
    goal = None if job.attack is None else job.attack.goal
    shared = f"{spec.release.teacher}{spec.evaluator}"
    return _Place(path, done(path), shared, partial(estimate.seconds, job.store, spec, goal))


def _audit(job: Job, game: CanaryGame, seed: int, estimate: Estimate) -> _Place:
    """Raises BenchError if the game cannot be played."""
    check(job, game)
    spec = canary_audit.audit_spec(job, game, seed)
    path = job.store.root / "audits" / spec.hash
    shared = f"{canary_audit.teachers_of(spec)}"
    return _Place(
        path, canary_audit.published(path) is not None, shared, partial(estimate.audit_seconds, job.store, spec)
    )


def done(path: Path) -> bool:
    """Whether a finished record lies there, of a run that did not fail."""
    try:
        return Record.read(path / RECORD).status != "failed"
    except (OSError, ValueError):
        return False


def _absent(written: RecipeCell) -> str:
    """Which plug-in or data set of a cell the bench does not have, in a sentence; or ""."""
    for kind in ("method", "attack"):
        name = written.get(kind)
        if name and name != "none" and name not in registry.entries(kind):
            return f"no {kind} called '{name}' yet"
    try:
        data.check(written.get("dataset") or "digits")
    except BenchError:
        return f"no data set called '{written.get('dataset')}' yet"
    return ""


def _is_there(settings: Settings) -> bool:
    """Whether the data set can be read on this machine."""
    try:
        s = settings
        data.load(s.dataset, s.data_root, s.download, s.skip_broken, kept_in(s.out))
    except BenchError:
        return False
    return True
