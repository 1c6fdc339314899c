"""Plan a recipe on this machine: which runs exist, which can be run, and which cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

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
from bench.storage.specs import AuditSpec
from bench.sweeps.estimate import Estimate
from bench.sweeps.recipe import Recipe, RecipeCell

UNFIT = ("--unfit-attack", "record")
"""Options of every run of a sweep: attacks that do not apply or have no power are recorded, not refused."""
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


ReadSettings = Callable[[Sequence[str]], tuple[Settings, CanaryGame | None]]
"""Function of the command line that parses a command, and an audit's game; passed in, as layers import downwards."""


def plan(
    recipe: Recipe,
    common: Sequence[str],
    datasets: Sequence[str],
    out: Path,
    read_settings: ReadSettings,
    scratch: Path | None = None,
    boards: Path | None = None,
    on_gpu: bool = False,
) -> list[Cell]:
    """Return every run of a recipe, in its order.

    Args:
        common: arguments for all runs, such as --tier quick --out DIR.
        datasets: keep only cells of these; empty = all.
        read_settings: parses a command of `bench` and its arguments.
        scratch: folder for newly decoded images, so that nothing is written below `out`.
        boards: folder of published records, which count as finished like those below `out`.
        on_gpu: whether the runs will use a GPU; selects the published seconds for the estimate.
    """
    planner = Planner(read_settings, out, scratch, boards, on_gpu)
    chosen = (written for written in recipe.cells if not datasets or (written.get("dataset") or DATASET) in datasets)
    return [cell for written in chosen for cell in planner.cells(written, common)]


class Planner:
    """Looks up, checks and loads the common parts of cells once; the seed of a cell changes only hashes."""

    def __init__(
        self, read_settings: ReadSettings, out: Path, scratch: Path | None, boards: Path | None, on_gpu: bool
    ) -> None:
        self.read_settings, self.boards = read_settings, boards
        self.components = Components(caches=True, scratch=scratch)
        self.estimate = Estimate(out, self.components.spec, boards, on_gpu)
        self.names_in, self.published, self.absent_part = cache(names_in), cache(published_files), cache(absent_part)
        self.is_readable = cache(partial(is_readable, scratch=scratch))

    def cells(self, written: RecipeCell, common: Sequence[str]) -> list[Cell]:
        """Return a cell for each seed of a recipe's cell."""
        arguments = (*written.arguments, *common)
        unfit = UNFIT if written.command == "run" and written.get("attack") else ()
        cells = [
            Cell(
                name=f"{written.name} seed={seed}",
                arguments=(*arguments, *unfit, "--seeds", str(seed)),
                seed=seed,
                state="ready",
                note=written.note,
                command=written.command,
            )
            for seed in written.seeds
        ]
        absent = self.absent_part(written.get("method"), written.get("attack"), written.get("dataset"))
        if absent:
            return [replace(cell, state="planned", reason=absent) for cell in cells]
        try:
            settings, game = self.read_settings([*written.command.split(), *arguments])
            try:
                job = load_job(settings, self.components)
            except BenchError as error:
                source = (settings.dataset, settings.data_root, settings.download, settings.skip_broken)
                if self.is_readable(*source, settings.reading, settings.out):
                    raise
                return [replace(cell, state="planned", reason=str(error)) for cell in cells]
            if game is not None:
                check(job, game)
        except BenchError as error:
            return [replace(cell, state="refused", reason=str(error)) for cell in cells]
        return [self.with_state(cell, job, game) for cell in cells]

    def with_state(self, cell: Cell, job: Job, game: CanaryGame | None) -> Cell:
        """Return the cell with its record, its state, its shared steps, and its estimated seconds."""
        try:
            spec = run_spec(job, cell.seed) if game is None else canary_audit.audit_spec(job, game, cell.seed)
        except BenchError as error:
            return replace(cell, state="refused", reason=str(error))
        folder = job.store.root / ("records" if game is None else "audits")
        path = folder / spec.hash
        read_finished = run.published if game is None else canary_audit.published
        if not job.settings.fresh:
            if spec.hash in self.names_in(folder) and read_finished(path) is not None:
                return replace(cell, state="cached", record=path)
            file = None if self.boards is None else self.published(self.boards).get(spec.hash)
            if file is not None:
                return replace(cell, state="published", record=file)
        if isinstance(spec, AuditSpec):
            shared = tuple((name, teacher.hash) for name, teacher in canary_audit.teachers_of(spec).items())
            return replace(cell, record=path, after=shared, seconds=self.estimate.audit_seconds(job.store, spec))
        seconds = self.estimate.seconds(job.store, spec, job.goal, job.needs_teacher, job.needs_evaluator)
        teacher = (("teacher", spec.release.teacher.hash),) if job.needs_teacher else ()
        evaluator = (("evaluator", spec.evaluator.hash),) if job.needs_evaluator else ()
        return replace(cell, record=path, after=teacher + evaluator, seconds=seconds)


def published_files(boards: Path) -> dict[str, Path]:
    """Return the files by hash of published audits, and of runs that did not fail and have no float32 noise."""
    kinds: tuple[type[Record] | type[Audit], ...] = (Record, Audit)
    return {
        record.hash: path
        for kind in kinds
        for path, record in readable(kind, boards)
        if isinstance(record, Audit) or (record.status != "failed" and "float32-noise" not in flags(record))
    }


def names_in(folder: Path) -> set[str]:
    """List a folder; cached, as a plan checks thousands of names."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def absent_part(method: str, attack: str, dataset: str) -> str:
    """Return a sentence about a plug-in or data set of a cell that does not exist; "" if all exist."""
    for kind, name in (("method", method), ("attack", attack)):
        if name and name != "none" and name not in (known := registry.entries(kind)):
            return f"no {kind} called '{name}' yet{did_you_mean(name, known)}"
    try:
        data.check(dataset or DATASET)
    except BenchError:
        return f"no data set called '{dataset}' yet{did_you_mean(dataset, data.names())}"
    return ""


def is_readable(
    dataset: str,
    data_root: Path | None,
    download: bool,
    skip_broken: bool,
    reading: Reading,
    out: Path,
    scratch: Path | None,
) -> bool:
    """Whether the data set can be read on this machine."""
    try:
        data.load(dataset, data_root, download, skip_broken, kept_in(out, scratch), reading)
    except BenchError:
        return False
    return True
