"""What a recipe asks of this machine: which runs are there already, which can be done, and which cannot yet."""

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
from bench.data.request import Reading
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
"""Given to every run of a sweep: a table of all pairs has cells in which an attack says nothing, and shows that."""
State = Literal["cached", "published", "ready", "planned", "refused"]


@dataclass(frozen=True)
class Cell:
    """One run or audit of a sweep: a cell of the recipe with one seed.

    Attributes:
        name: for people.
        arguments: what the command is given, --out and all.
        seed: of the run.
        state: cached (the record is there), published (it is among the boards' records), ready (to be run), planned
            (the bench has no such method, attack or data yet, for `reason`), refused (the bench knows all of them and
            says no, for `reason`).
        record: the directory the record or the audit lies in or will lie in, or its published file; None where there
            will be none.
        after: the steps that others may have too and that are best made once before all of them, each by its name and
            its hash.
        seconds: how long it may take after the cells before it, of a ready cell; None where nothing like it has run.
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
"""What the command line makes of a command, and of its game if it is an audit; the caller's, as that is above here."""


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
    """Every run of a recipe, in its order.

    Args:
        common: arguments for all runs, such as --tier quick --out DIR.
        datasets: only cells of these; empty = all.
        settle: parses a command of `bench` and its arguments.
        scratch: where images are decoded that were not before, so that nothing is written below `out`.
        boards: whose published records will do as well as those below `out`.
        on_gpu: what will run them; whose published seconds say how long they may take.
    """
    planned = _Plan(settle, out, scratch, boards, on_gpu)
    chosen = (written for written in recipe.cells if not datasets or (written.get("dataset") or DATASET) in datasets)
    return [cell for written in chosen for cell in planned.cells(written, common)]


class _Plan:
    """What cells have in common is looked up, checked and loaded once; their seeds differ in hashes alone."""

    def __init__(self, settle: Settle, out: Path, scratch: Path | None, boards: Path | None, on_gpu: bool) -> None:
        self.settle, self.lookup, self.boards = settle, Components(caches=True, scratch=scratch), boards
        self.estimate, self.made = Estimate(out, self.lookup.spec, boards, on_gpu), cache(_names)
        self.published = cache(_published)
        self.absent, self.is_there = cache(_absent), cache(partial(_is_there, scratch=scratch))

    def cells(self, written: RecipeCell, common: Sequence[str]) -> list[Cell]:
        """A cell for each seed of one of the recipe."""
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
    """Where a cell's record goes, whether one there will do, what is shared with others, and the time it will take."""

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
    """Hash to file of the published audits, and of the runs that did not fail and that no flag marks as outdated."""
    kinds: tuple[type[Record] | type[Audit], ...] = (Record, Audit)
    return {kept.hash: path for kind in kinds for path, kept in readable(kind, boards) if _is_good(kept)}


def _is_good(kept: Record | Audit) -> bool:
    return isinstance(kept, Audit) or (kept.status != "failed" and "float32-noise" not in flags(kept))


def _names(folder: Path) -> set[str]:
    """What lies in a folder; it is listed once, as a plan asks for thousands."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _absent(method: str, attack: str, dataset: str) -> str:
    """Which plug-in or data set of a cell the bench does not have, in a sentence; or ""."""
    for kind, name in (("method", method), ("attack", attack)):
        if name and name != "none" and name not in (known := registry.entries(kind)):
            return f"no {kind} called '{name}' yet{did_you_mean(name, known)}"
    try:
        data.check(dataset or DATASET)
    except BenchError:
        return f"no data set called '{dataset}' yet{did_you_mean(dataset, data.names())}"
    return ""


class _Where(NamedTuple):
    """What says where a data set is read from."""

    dataset: str
    data_root: Path | None
    download: bool
    skip_broken: bool
    reading: Reading
    out: Path

    @classmethod
    def of(cls, settings: Settings) -> _Where:
        """The settings' part of it."""
        return cls(*(getattr(settings, name) for name in cls._fields))


def _is_there(where: _Where, scratch: Path | None) -> bool:
    """Whether the data set can be read on this machine."""
    try:
        keep = kept_in(where.out, scratch)
        data.load(where.dataset, where.data_root, where.download, where.skip_broken, keep, where.reading)
    except BenchError:
        return False
    return True
