"""Sweeps: all combinations of a grid's values, one run each."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import BadOption, BenchError, RunFailed, unknown
from bench.interface.process import Progress
from bench.interface.result import RunResult, html_table, load, text_table
from bench.interface.running import run

if TYPE_CHECKING:
    import pandas as pd

BACKENDS = ("local",)
SHARED = ("out", "progress")
"""Arguments of `run` that a sweep decides for all of its cells."""

Cell = dict[str, Any]


@dataclass(frozen=True)
class CellResult:
    """The outcome of a cell.

    Attributes:
        given: the grid's values of this cell, by the names of `bench.run`.
        result: the finished run; None where there is none.
        error: why there is none: bad input, or a step that failed.
    """

    given: Mapping[str, Any]
    result: RunResult | None = None
    error: BenchError | RunFailed | None = None

    @property
    def state(self) -> str:
        """The status of its record, "ok" or "skipped"; "refused" for bad input; "failed" for a step that failed."""
        if self.result is not None:
            return self.result.record.status
        return "failed" if isinstance(self.error, RunFailed) else "refused"


@dataclass(frozen=True, repr=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        cells: in the order of the grid; the last value varies fastest.
    """

    cells: tuple[CellResult, ...]

    @property
    def results(self) -> tuple[RunResult, ...]:
        """The finished runs, in the order of the grid."""
        return tuple(cell.result for cell in self.cells if cell.result is not None)

    def to_frame(self) -> pd.DataFrame:
        """A row for each cell: the grid's values, state, accuracies, epsilons, the attack's result, and the error.

        Shares are in [0, 1]; an epsilon without a finite bound is `math.inf`; missing values are NaN.
        """
        import pandas as pd

        return pd.DataFrame([_row(cell) for cell in self.cells])

    def __repr__(self) -> str:
        return text_table(f"{len(self.cells)} cells", _lines(self.cells))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table(f"{len(self.cells)} cells", _lines(self.cells))


def sweep(
    grid: Mapping[str, Sequence[Any]],
    *,
    out: str | os.PathLike[str] = "runs",
    workers: int = 1,
    backend: Literal["local"] = "local",
    progress: Progress | None = None,
    **fixed: Any,
) -> SweepResult:
    """Run every combination of a grid's values. A cell that fails does not stop the others.

        bench.sweep({"method": ["dpsd", "rr"], "epsilon": [1, 10], "seed": [0, 1, 2]}, dataset="mnist", attack="gmi")

    Runs that are in `out` already are read from there, and cells share their teachers. `bench sweep` runs recipes, on
    GPUs and clusters too.

    Args:
        grid: argument of `bench.run` to its values, such as "method", "epsilon" and "seed"; at least "method", here or
            in `fixed`.
        out: folder of runs and cached steps.
        workers: processes side by side, which share the cores; 1 = this process. More than one take names, data sets
            and modules, not classes; a script needs `if __name__ == "__main__":`, as always with processes.
        backend: "local".
        progress: called with ("cells", cells done, cells in all).
        **fixed: other arguments of `bench.run`, for all cells.

    Returns:
        The cells with their results, and all of them as a table by `to_frame()`.

    Raises:
        BadOption: an argument that `bench.run` does not have, an empty list, or workers below 1.
        UnknownName: another backend.
        KeyboardInterrupt: interrupted; finished runs are kept, and the same call goes on.
    """
    if backend not in BACKENDS:
        raise unknown("backend", str(backend), BACKENDS)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise BadOption(f"workers is {workers!r}; expected a whole number of at least 1")
    cells = _cells(grid, fixed)
    found: list[CellResult | None] = [None] * len(cells)
    each = _here if workers == 1 else _in_processes
    for done, (place, made) in enumerate(each(cells, fixed | {"out": Path(out)}, workers), start=1):
        found[place] = made
        if progress is not None:
            progress("cells", done, len(cells))
    return SweepResult(tuple(cell for cell in found if cell is not None))


def _cells(grid: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any]) -> list[Cell]:
    """Every combination, in order. Raises BadOption."""
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
        raise BadOption("the grid names no method; add one, as in {'method': ['dpsd', 'rr']}")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _here(cells: Sequence[Cell], fixed: Cell, workers: int) -> Iterator[tuple[int, CellResult]]:
    """Run the cells in this process, one after the other."""
    for place, cell in enumerate(cells):
        yield place, _finished(cell, lambda cell=cell: run(**cell, **fixed))  # type: ignore[misc]


def _in_processes(cells: Sequence[Cell], fixed: Cell, workers: int) -> Iterator[tuple[int, CellResult]]:
    """Run the cells in new processes; every one has its share of the cores."""
    from bench.pipeline.devices import cores

    _refuse_classes([*cells, fixed])
    threads = max(1, cores() // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_threads, initargs=(threads,)) as pool:
        begun = {pool.submit(_path_of, cell, fixed): place for place, cell in enumerate(cells)}
        try:
            for ended in as_completed(begun):
                place = begun[ended]
                yield place, _finished(cells[place], lambda ended=ended: load(ended.result()))  # type: ignore[misc]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finished(cell: Cell, result: Callable[[], RunResult]) -> CellResult:
    try:
        return CellResult(cell, result())
    except (BenchError, RunFailed) as error:
        return CellResult(cell, error=error)


def _refuse_classes(arguments: Sequence[Cell]) -> None:
    """Raise BadOption for a method or an attack that another process could not import."""
    for cell in arguments:
        for name in ("method", "attack"):
            if not isinstance(given := cell.get(name), str | None):
                raise BadOption(
                    f"{name} {given!r} is a value of this process; use workers=1, or install it as a plug-in"
                )


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _path_of(cell: Cell, fixed: Cell) -> Path:
    return run(**cell, **fixed).path


def _row(cell: CellResult) -> Cell:
    """A cell as a row of a table."""
    row: Cell = {name: _short(value) for name, value in cell.given.items()} | {"state": cell.state}
    if cell.result is None:
        return row | {"error": str(cell.error)}
    result = cell.result
    row |= {"accuracy": result.accuracy, "epsilon_accounted": result.privacy.accounted.epsilon}
    row |= {"unit": result.privacy.accounted.unit}
    if result.privacy.claimed is not None:
        row["epsilon_claimed"] = result.privacy.claimed.epsilon
    if (attack := result.attack) is not None:
        row |= {"attack_accuracy": attack.accuracy and attack.accuracy.value, "auc": attack.auc and attack.auc.value}
        row["has_power"] = attack.has_power
    return row | {"path": str(result.path)}


def _short(value: Any) -> Any:
    """A value as a cell of a table: numbers and text as they are, others by their names."""
    if isinstance(value, int | float | str | None):
        return value
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def _lines(cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """A name and a value for each cell."""
    lines = []
    for cell in cells:
        name = " ".join(f"{key}={_short(value)}" for key, value in cell.given.items())
        said = str(cell.error) if cell.result is None else f"{cell.state}, accuracy {cell.result.accuracy:.3f}"
        lines.append((name, said))
    return lines
