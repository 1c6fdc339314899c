"""Read the columns of a CSV file, NumPy archive or Parquet file in blocks, without running any code in the file."""

from __future__ import annotations

import csv
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.errors import BenchError
from bench.escape import visible

BLOCK = 20_000
"""Number of records per block."""
Block: TypeAlias = "dict[str, NDArray[Any]]"
"""Arrays of equally many records, by name."""
_WIDE = {"logits": "logit_*", "probs": "prob_*"}
"""Two-dimensional arrays of an archive, to the pattern of the columns that they replace."""


@dataclass(frozen=True)
class Blocks:
    """The columns of a file.

    Attributes:
        names: names of the columns; "logit_*" or "prob_*" represents `width` of them.
        width: number of columns of such an array; 0 without one.
        start: opens an iterator of blocks. Each maps "logit", "prob" or "loss", "label", "group" and "features" to its
            values, (n, columns) or (n,).
    """

    names: tuple[str, ...]
    width: int
    start: Callable[[], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:
        return self.start()


def blocks_of(path: Path) -> Blocks:
    """Open a file by its suffix. Raises BenchError for another suffix or a file that cannot be read."""
    readers = {".csv": _csv, ".npz": _npz, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise BenchError(f"'{path}' has the suffix '{visible(path.suffix)}'; expected .csv, .npz or .parquet")
    return readers[path.suffix.lower()](path)


def _csv(path: Path) -> Blocks:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            names = tuple(name.strip() for name in next(csv.reader(stream), []))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchError(f"'{path}' cannot be read as CSV ({error}); save it as UTF-8 with commas") from error
    return Blocks(names, 0, lambda: _csv_blocks(path, names))


def _csv_blocks(path: Path, names: Sequence[str]) -> Iterator[Block]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        next(csv.reader(stream))
        line = 2
        while lines := list(islice(stream, BLOCK)):
            yield _gathered(_quick(lines, names) or _one_by_one(lines, names, line, path))
            line += len(lines)


def _quick(lines: Sequence[str], names: Sequence[str]) -> Block | None:
    """Parse lines that contain only numbers, fast; None for any other lines."""
    if "group" in names:
        return None
    try:
        values = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
    except ValueError:
        return None
    return dict(zip(names, values.T, strict=True)) if values.shape == (len(lines), len(names)) else None


def _one_by_one(lines: Sequence[str], names: Sequence[str], line: int, path: Path) -> Block:
    """Parse any lines. Raises BenchError, naming the first wrong line."""
    rows = list(csv.reader(lines))
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise BenchError(f"'{path}' line {line + number} has {len(row)} cells; expected {len(names)}")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return {
        name: np.array(cells) if name == "group" else _floats(cells, name, line, path)
        for name, cells in columns.items()
    }


def _floats(cells: Sequence[str], name: str, line: int, path: Path) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for number, cell in enumerate(cells):
            try:
                float(cell)
            except ValueError:
                raise BenchError(
                    f"'{path}' line {line + number}, column {visible(name)}: '{visible(cell)[:40]}' is not a number"
                ) from None
        raise


def _gathered(values: Block) -> Block:
    """Stack the columns of each kind of output, in the order of their numbers, and the features."""
    found: Block = {name: values[name] for name in ("loss", "label", "group") if name in values}
    for kind in ("logit", "prob"):
        names = [name for name in values if name.startswith(f"{kind}_")]
        if names:
            ordered = sorted(names, key=lambda name: int(name.rpartition("_")[2]))
            found[kind] = np.column_stack([values[name] for name in ordered])
    features = [values[name] for name in values if name.startswith("feature_")]
    if features:
        found["features"] = np.column_stack(features)
    return found


@dataclass(frozen=True)
class _Member:
    """An array of an archive, as its header describes it; `is_by_column` if its columns are stored one by one."""

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_by_column: bool


def _npz(path: Path) -> Blocks:
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        members = [_member_of(archive, file) for file in archive.namelist()]
    names: list[str] = []
    width = 0
    for member in members:
        name, shape = member.name, member.shape
        wide = name in _WIDE or name == "features"
        if len(shape) != (2 if wide else 1) or (member.dtype.kind not in "fiub" and name != "group"):
            form = "(n, columns)" if wide else "(n,)"
            raise BenchError(
                f"'{path}' has '{visible(name)}' of shape {shape} and type {member.dtype}; expected {form} numbers"
            )
        if name == "features":
            names += [f"feature_{place}" for place in range(shape[1])]
        else:
            names.append(_WIDE.get(name, name))
        width = shape[1] if name in _WIDE else width
    counts = sorted({member.shape[0] for member in members})
    if len(counts) > 1:
        raise BenchError(f"'{path}' has arrays of {counts} records; expected as many in each")
    return Blocks(tuple(names), width, lambda: _npz_blocks(path, members))


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Raise the errors of a damaged or unsupported archive as BenchError."""
    try:
        yield
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        why = "an array of Python objects, which is not read" if "pickle" in str(error) else type(error).__name__
        raise BenchError(f"'{path}' cannot be read as an archive ({why}); save arrays by numpy.savez") from error


def _member_of(archive: zipfile.ZipFile, file: str) -> _Member:
    """Read the header of an array. Raises ValueError for another file, or for an array of Python objects."""
    with archive.open(file) as stream:
        shape, is_by_column, dtype = _header(stream)
    if dtype.hasobject:
        raise ValueError("an array of objects needs pickle")
    return _Member(file, file.removesuffix(".npy"), shape, dtype, is_by_column)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array: its shape, whether it is stored column by column, and its type."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the format is for arrays with named fields")


def _npz_blocks(path: Path, members: Sequence[_Member]) -> Iterator[Block]:
    with _archive_errors(path), zipfile.ZipFile(path) as archive, ExitStack() as opened:
        parts = [_rows(opened.enter_context(archive.open(member.file)), member) for member in members]
        for arrays in zip(*parts, strict=True):
            part = dict(zip((member.name for member in members), arrays, strict=True))
            found = _gathered({name: values for name, values in part.items() if name not in _WIDE})
            found |= {_WIDE[name][:-2]: values for name, values in part.items() if name in _WIDE}
            yield found | ({"features": part["features"]} if "features" in part else {})


def _rows(stream: IO[bytes], member: _Member) -> Iterator[NDArray[Any]]:
    """Read an array in blocks of rows; one that is stored column by column is read as a whole.

    Raises:
        EOFError: the array is shorter than its header says.
    """
    _header(stream)
    count, *rest = member.shape
    if member.is_by_column and rest:
        whole = _read(stream, member.shape[::-1], member.dtype).T
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        is_whole = member.is_by_column and rest
        yield whole[start : start + rows] if is_whole else _read(stream, (rows, *rest), member.dtype)
    stream.read(1)  # the checksum is compared at the end of the stream


def _read(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    content = stream.read(size)
    if len(content) != size:
        raise EOFError(f"{len(content)} bytes; expected {size}")
    return np.frombuffer(content, dtype).reshape(shape) if size else np.zeros(shape, dtype)


def _parquet(path: Path) -> Blocks:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BenchError(f"'{path}': Parquet needs pyarrow: pip install 'dp-distill-bench[hf]', or save CSV") from None
    try:
        names = tuple(parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise BenchError(f"'{path}' cannot be read as Parquet ({type(error).__name__}); write it again") from error

    def start() -> Iterator[Block]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BLOCK):
                yield _gathered({name: _column(batch.column(name), name, path) for name in names})

    return Blocks(names, 0, start)


def _column(values: Any, name: str, path: Path) -> Any:
    """Convert a column to an array; empty cells become NaN, which is counted. Raises BenchError for text."""
    array = values.to_numpy(zero_copy_only=False)
    if name == "group":
        return array.astype(np.str_)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise BenchError(f"'{path}', column {visible(name)} holds {values.type}; expected numbers") from None
