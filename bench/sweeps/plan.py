"""Plan a recipe on this machine: which runs exist, which can be run, and which cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bench import data, registry
from bench.boards import flags
from bench.boards.records import readable
from bench.config import DATASET
from bench.data.dataset import Reading
from bench.errors import BenchError, did_you_mean
from bench.pipeline import canary_audit, run
from bench.pipeline.canary_game import CanaryGame, check
from bench.pipeline.components import Components
from bench.pipeline.job import Job, run_spec
from bench.pipeline.material import kept_in
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.storage.records import Audit, Record
from bench.sweeps.estimate import Estimate
from bench.sweeps.recipe import Recipe, RecipeCell

UNFIT = ("--unfit-attack", "record")
"""Options of every run of a sweep: a table of all pairs includes attacks that do not apply or have no power."""
State = Literal["cached", "published", "ready", "planned", "refused"]


@dataclass(frozen=True)
class Cell:
    """One run or audit of a sweep: a cell of the recipe with one seed.

    Attributes:
        name: shown to the user.
        arguments: the arguments of the command, including --out.
        seed: seed of the run.
        state: cached (the record exists), published (it is among the boards' records), ready (to be run), planned
            (the bench does not have the method, attack or data yet, see `reason`), refused (the bench has all of them
            but refuses the run, see `reason`).
        record: the directory of the record or audit, present or future, or its published file; None if there will be
            none.
        after: steps that other cells may share and that are best made before all of them, each by its name and
            its hash.
        seconds: estimated seconds of a ready cell after the cells before it; None without a similar finished run.
    """

    name: str
    arguments: tuple[str, ...]
    seed: int
    state: State
    reason: str = ""
    record: Path | None = None
    after: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    note: str = ""
    command: str = "run"


Settle = Callable[[Sequence[str]], tuple[Settings, CanaryGame | None]]
"""Function of the command line that parses a command, and an audit's game; passed in, as layers import downwards."""


def plan(
    recipe: Recipe,
    common: Sequence[str],
    datasets: Sequence[str],
    out: Path,
    settle: Settle,
    scratch: Path | None = None,
    boards: Path | None = None,
    on_gpu: bool = False,
) -> list[Cell]:
    """Return every run of a recipe, in its order.

    Args:
        common: arguments for all runs, such as --tier quick --out DIR.
        datasets: keep only cells of these; empty = all.
        settle: parses a command of `bench` and its arguments.
        scratch: folder for newly decoded images, so that nothing is written below `out`.
        boards: folder of published records, which count as finished like those below `out`.
        on_gpu: whether the runs will use a GPU; selects the published seconds for the estimate.
    """
    planned = _Plan(settle, out, scratch, boards, on_gpu)
    chosen = (written for written in recipe.cells if not datasets or (written.get("dataset") or DATASET) in datasets)
    return [cell for written in chosen for cell in planned.cells(written, common)]


class _Plan:
    """Looks up, checks and loads the common parts of cells once; their seeds change only hashes."""

    def __init__(self, settle: Settle, out: Path, scratch: Path | None, boards: Path | None, on_gpu: bool) -> None:
        self.settle, self.lookup, self.boards = settle, Components(caches=True, scratch=scratch), boards
        self.estimate, self.made = Estimate(out, self.lookup.spec, boards, on_gpu), cache(_names)
        self.published = cache(_published)
        self.absent, self.is_there = cache(_absent), cache(partial(_is_there, scratch=scratch))

    def cells(self, written: RecipeCell, common: Sequence[str]) -> list[Cell]:
        """Return a cell for each seed of a recipe's cell."""
        name, arguments = written.name, (*written.arguments, *common)

        def cell(seed: int, state: State, reason: str = "", **found: Any) -> Cell:
            unfit = UNFIT if written.command == "run" and written.get("attack") else ()
            typed = (*arguments, *unfit, "--seeds", str(seed))
            note, command = written.note, written.command
            return Cell(f"{name} seed={seed}", typed, seed, state, reason, note=note, command=command, **found)

        missing = self.absent(written.get("method"), written.get("attack"), written.get("dataset"))
        if missing:
            return [cell(seed, "planned", missing) for seed in written.seeds]
        try:
            settings, game = self.settle([*written.command.split(), *arguments])
            try:
                job = load_job(settings, self.lookup)
            except BenchError as error:
                if self.is_there(_Where.of(settings)):
                    raise
                return [cell(seed, "planned", str(error)) for seed in written.seeds]
            if game is not None:
                check(job, game)
        except BenchError as error:
            return [cell(seed, "refused", str(error)) for seed in written.seeds]
        return [self._cell(partial(cell, seed), job, game, seed) for seed in written.seeds]

    def _cell(self, cell: Callable[..., Cell], job: Job, game: CanaryGame | None, seed: int) -> Cell:
        try:
            there = _run(job, seed, self.estimate) if game is None else _audit(job, game, seed, self.estimate)
        except BenchError as error:
            return cell("refused", str(error))
        path = there.folder / there.name
        if not job.settings.fresh:
            if there.name in self.made(there.folder) and there.done(path):
                return cell("cached", record=path)
            if self.boards is not None:
                file = self.published(self.boards).get(there.name)
                if file is not None:
                    return cell("published", record=file)
        return cell("ready", record=path, after=there.shared, seconds=there.seconds())


@dataclass(frozen=True)
class _Place:
    """The path of a cell's record, whether an existing record counts, its shared steps, and its estimated seconds."""

    folder: Path
    name: str
    done: Callable[[Path], bool]
    shared: tuple[tuple[str, str], ...]
    seconds: Callable[[], float | None]


def _run(job: Job, seed: int, estimate: Estimate) -> _Place:
    spec = run_spec(job, seed)
    steps = (("teacher", spec.release.teacher, job.needs_teacher), ("evaluator", spec.evaluator, job.needs_evaluator))
    shared = tuple((name, step.hash) for name, step, needed in steps if needed)
    seconds = partial(estimate.seconds, job.store, spec, job.goal, job.needs_teacher, job.needs_evaluator)
    return _Place(job.store.root / "records", spec.hash, _is_done, shared, seconds)


def _audit(job: Job, game: CanaryGame, seed: int, estimate: Estimate) -> _Place:
    spec = canary_audit.audit_spec(job, game, seed)
    shared = tuple((name, teacher.hash) for name, teacher in canary_audit.teachers_of(spec).items())
    seconds = partial(estimate.audit_seconds, job.store, spec)
    return _Place(job.store.root / "audits", spec.hash, _is_audited, shared, seconds)


def _is_done(path: Path) -> bool:
    return run.published(path) is not None


def _is_audited(path: Path) -> bool:
    return canary_audit.published(path) is not None


def _published(boards: Path) -> dict[str, Path]:
    """Return the files by hash of published audits, and of runs that did not fail and have no float32 noise."""
    kinds: tuple[type[Record] | type[Audit], ...] = (Record, Audit)
    return {kept.hash: path for kind in kinds for path, kept in readable(kind, boards) if _is_good(kept)}


def _is_good(kept: Record | Audit) -> bool:
    return isinstance(kept, Audit) or (kept.status != "failed" and "float32-noise" not in flags(kept))


def _names(folder: Path) -> set[str]:
    """List a folder; cached, as a plan checks thousands of names."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _absent(method: str, attack: str, dataset: str) -> str:
    """Return a sentence about the missing plug-in or data set of a cell; or ""."""
    for kind, name in (("method", method), ("attack", attack)):
        if name and name != "none" and name not in (known := registry.entries(kind)):
            return f"no {kind} called '{name}' yet{did_you_mean(name, known)}"
    try:
        data.check(dataset or DATASET)
    except BenchError:
        return f"no data set called '{dataset}' yet{did_you_mean(dataset, data.names())}"
    return ""


class _Where(NamedTuple):
    """The settings that say where a data set is read from."""

    dataset: str
    data_root: Path | None
    download: bool
    skip_broken: bool
    reading: Reading
    out: Path

    @classmethod
    def of(cls, settings: Settings) -> _Where:
        """Select these fields from the settings."""
        return cls(*(getattr(settings, name) for name in cls._fields))


def _is_there(where: _Where, scratch: Path | None) -> bool:
    """Whether the data set can be read on this machine."""
    try:
        keep = kept_in(where.out, scratch)
        data.load(where.dataset, where.data_root, where.download, where.skip_broken, keep, where.reading)
    except BenchError:
        return False
    return True
