"""Sweeps: all combinations of a grid's values, one run each."""

from __future__ import annotations

import argparse
import inspect
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import BadOption, BenchError, RunFailed, unknown
from bench.interface.backends import BACKENDS, Backend
from bench.interface.process import Progress
from bench.interface.result import RunResult, html_table, load, text_table
from bench.interface.running import run

if TYPE_CHECKING:
    import pandas as pd

SHARED = ("out", "progress")
"""Arguments of `run` that a sweep sets for all cells."""

Cell = Mapping[str, Any]
"""Arguments of `run` by name."""


@dataclass(frozen=True)
class CellResult:
    """The outcome of a cell.

    Attributes:
        given: the grid's values of this cell, by argument of `bench.run`.
        result: the finished run; None if there is none.
        error: the reason for a missing run: bad input, or a step that failed.
    """

    given: Cell
    result: RunResult | None = None
    error: BenchError | RunFailed | None = None

    @property
    def state(self) -> str:
        """The status of its record, such as "ok" or "skipped"; "refused" for bad input; "failed" for a failed step."""
        if self.result is not None:
            return self.result.record.status
        return "failed" if isinstance(self.error, RunFailed) else "refused"

    @property
    def name(self) -> str:
        """The grid's values as a line of text."""
        return " ".join(f"{key}={_name_of(value)}" for key, value in self.given.items())

    def to_row(self) -> dict[str, object]:
        """Return the grid's values, the state, and the numbers or the error, by column of a table."""
        given = {**{name: _name_of(value) for name, value in self.given.items()}, "state": self.state}
        if self.result is None:
            return {**given, "error": str(self.error)}
        privacy, attack = self.result.privacy, self.result.attack
        claimed = {} if privacy.claimed is None else {"epsilon_claimed": privacy.claimed.epsilon}
        attacked: dict[str, object] = {}
        if attack is not None:
            accuracy, auc = attack.accuracy and attack.accuracy.value, attack.auc and attack.auc.value
            attacked = {"attack_accuracy": accuracy, "auc": auc, "has_power": attack.has_power}
        return {
            **given,
            "accuracy": self.result.accuracy,
            "epsilon_accounted": privacy.accounted.epsilon,
            "unit": privacy.accounted.unit,
            **claimed,
            **attacked,
            "path": str(self.result.path),
        }


def _name_of(value: Any) -> str | int | float | None:
    """Return a value for a table: numbers and text unchanged, other values by their name."""
    if isinstance(value, int | float | str | None):
        return value
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


@dataclass(frozen=True, repr=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        cells: the outcomes of the cells, in the order of the grid; its last argument varies fastest.
    """

    cells: tuple[CellResult, ...]

    @property
    def results(self) -> tuple[RunResult, ...]:
        """The finished runs, in the order of the grid."""
        return tuple(cell.result for cell in self.cells if cell.result is not None)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each cell: the grid's values, state, accuracy, epsilons, the attack's result, and the error.

        Shares are in [0, 1]; an epsilon without a finite bound is `math.inf`; missing values are NaN.
        """
        import pandas as pd

        return pd.DataFrame([cell.to_row() for cell in self.cells])

    def rows(self) -> list[tuple[str, str]]:
        """Return a name and a line for each cell."""
        return [
            (cell.name, f"{cell.state}, accuracy {cell.result.accuracy:.3f}" if cell.result else str(cell.error))
            for cell in self.cells
        ]

    def __repr__(self) -> str:
        return text_table(f"{len(self.cells)} cells", self.rows())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table(f"{len(self.cells)} cells", self.rows())


def sweep(
    grid: Mapping[str, Sequence[Any]],
    *,
    out: str | os.PathLike[str] = "runs",
    workers: int | None = None,
    backend: Literal["local", "slurm", "ray"] = "local",
    cpus: float = 1,
    gpus: float = 0,
    slurm: Mapping[str, str] | None = None,
    address: str = "",
    progress: Progress | None = None,
    **fixed: Any,
) -> SweepResult:
    """Run every combination of a grid's values. A cell that fails does not stop the others.

        bench.sweep({"method": ["dpsd", "rr"], "epsilon": [1, 10], "seed": [0, 1, 2]}, dataset="mnist", attack="gmi")
        bench.sweep(grid, backend="slurm", gpus=1, slurm={"partition": "gpu", "time": "120"})

    Runs that are in `out` already are read from there, and cells share their teachers. `bench sweep` runs recipes in
    the same way.

    Args:
        grid: argument of `bench.run` to its values, such as "method", "epsilon" and "seed"; at least "method", here or
            in `fixed`.
        out: folder of runs and cached steps; all nodes of a cluster share it.
        workers: number of runs at once. None = one after the other in this process, or without a limit on a cluster.
            Other processes take names, data sets and modules, not classes; a script that starts them on this machine
            needs `if __name__ == "__main__":`, as always with processes.
        backend: "local" for this machine; "slurm" for jobs of a Slurm cluster, submitted from its login node; "ray" for
            tasks of a Ray cluster.
        cpus, gpus: cores and GPUs that a cluster reserves for each run.
        slurm: options of sbatch without dashes.
        address: address of a running Ray cluster; "auto" finds one, "" starts one on this machine.
        progress: called with ("cells", cells done, cells in all).
        **fixed: other arguments of `bench.run`, for all cells.

    Returns:
        The cells with their results; `to_frame()` returns them as a table.

    Raises:
        BadOption: an argument that `bench.run` does not have, an empty list, workers below 1, or an option that the
            backend does not use.
        UnknownName: another backend.
        BenchError: the cluster's commands or libraries are missing.
        KeyboardInterrupt: interrupted; finished runs are kept, and the same call resumes the sweep.
    """
    if backend not in BACKENDS:
        raise unknown("backend", str(backend), BACKENDS)
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise BadOption(f"workers is {workers!r}; expected a whole number of at least 1")
    where = Backend(backend, workers, cpus=cpus, gpus=gpus, slurm=slurm or {}, address=address)
    where.check()
    known = set(inspect.signature(run).parameters) - set(SHARED)
    for name in (*grid, *fixed):
        if name not in known:
            raise unknown("argument of bench.run for a sweep", name, known)
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise BadOption(f"grid[{name!r}] is {values!r}; expected a list with at least one value")
        if name in fixed:
            raise BadOption(f"{name} is in the grid and fixed; give one of them")
    if "method" not in {*grid, *fixed}:
        raise BadOption("the grid has no method; add one, as in {'method': ['dpsd', 'rr']}")
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    arguments = {**fixed, "out": Path(out)}
    is_here = backend == "local" and workers in (None, 1)
    made = _run_here(cells, arguments) if is_here else _run_elsewhere(cells, arguments, where)
    found: dict[int, CellResult] = {}
    for index, cell in made:
        found[index] = cell
        if progress is not None:
            progress("cells", len(found), len(cells))
    return SweepResult(tuple(cell for _, cell in sorted(found.items(), key=lambda item: item[0])))


def _run_here(cells: Sequence[Cell], fixed: Cell) -> Iterator[tuple[int, CellResult]]:
    """Run the cells in this process, one after the other."""
    for index, cell in enumerate(cells):
        try:
            yield index, CellResult(cell, run(**cell, **fixed))
        except (BenchError, RunFailed) as error:
            yield index, CellResult(cell, error=error)


def _run_elsewhere(cells: Sequence[Cell], fixed: Cell, where: Backend) -> Iterator[tuple[int, CellResult]]:
    """Run the cells in other processes, and yield each when it ends. Arguments and results are passed in files."""
    from bench.sweeps.executors import Task

    for name in ("method", "attack"):
        for cell in (*cells, fixed):
            if not isinstance(value := cell.get(name), str | None):
                raise BadOption(f"{name} {value!r} exists only in this process; use workers=1, or install it")
    for name in ("device", "devices"):
        if where.name != "local" and any(name in cell for cell in (*cells, fixed)):
            raise BadOption(f"{name} is given, but a cluster assigns the devices; give gpus instead")
    folder: Path = fixed["out"] / "sweeps"
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="cells-", dir=folder.resolve()) as scratch:
        files = [Path(scratch) / f"{index}.cell" for index in range(len(cells))]
        for file, cell in zip(files, cells, strict=True):
            file.write_bytes(pickle.dumps({**fixed, **cell}))
        tasks = [Task(index, (str(file),)) for index, file in enumerate(files)]
        for done in where.executor(run_cell, fixed["out"]).run(tasks):
            file = files[done.index].with_suffix(".result")
            if done.status == 0 and file.exists():
                ended = pickle.loads(file.read_bytes())
            else:
                ended = RunFailed((done.tail.strip() or f"exit status {done.status}").splitlines()[-1])
            cell = cells[done.index]
            is_path = isinstance(ended, Path)
            yield done.index, CellResult(cell, load(ended)) if is_path else CellResult(cell, error=ended)


def run_cell(words: Sequence[str]) -> int:
    """Run a cell in another process, and write the path of its record or its error. Returns the exit status.

    Args:
        words: the file of the pickled arguments of `run`, and the options `--device` and `--devices` of the executor.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    given = parser.parse_args(words)
    arguments = {"device": given.device, "devices": given.devices} | pickle.loads(given.file.read_bytes())
    try:
        ended: Path | BenchError | RunFailed = run(**arguments).path.absolute()
    except (BenchError, RunFailed) as error:
        ended = error
    given.file.with_suffix(".result").write_bytes(pickle.dumps(ended))
    return 0
