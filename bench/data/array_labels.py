"""Convert arrays of labels to class numbers from 0, with the names of the classes.

The list of classes is public: it is the array `class_names`, the columns of one-hot rows, or the set of all training
labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.errors import BadData

Array = NDArray[np.generic]
Kind = Literal["whole numbers", "words", "booleans", "one-hot rows"]
_SHOWN = 20
"""Number of classes that a message names."""


@dataclass(frozen=True)
class Labels:
    """(n,) int64 class numbers of each array; a name for each class; and sentences on how they were read."""

    numbers: list[Tensor]
    class_names: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True)
class _Column:
    """The labels of one part: (n,) integers or words; for one-hot rows, the number of columns."""

    kind: Kind
    values: Array
    width: int = 0
    said: str = ""


def as_labels(arrays: Sequence[tuple[str, Array]], training: int, names: Array | None, problem: str) -> Labels:
    """Convert the labels of all parts with one list of classes.

    Args:
        arrays: each array with its name.
        training: number of training arrays, which come first.
        names: the array `class_names`, if any.
        problem: beginning of error messages: the data set and its file.

    Raises:
        BenchError: labels whose meaning is ambiguous, fewer than two classes, or classes without training images.
    """
    columns = [_column(array, f"{problem}: {key}") for key, array in arrays]
    (where, _), first = arrays[0], columns[0]
    for (key, _), column in zip(arrays, columns, strict=True):
        if (column.kind, column.width) != (first.kind, first.width):
            raise BadData(
                f"{problem}: {where} are {_described(first)}, {key} {_described(column)}; write them in one way"
            )
    taught = replace(first, values=np.concatenate([column.values for column in columns[:training]]))
    known, class_names = _classes(taught, names, f"{problem}: {where}")
    _check_classes(_numbered(taught.values, known, f"{problem}: {where} hold class", "class_names"), class_names,
                   f"{problem}: {where}")  # fmt: skip
    numbers = [
        _numbered(column.values, known, f"{problem}: {key} hold class", where)
        for (key, _), column in zip(arrays, columns, strict=True)
    ]
    said = [first.said] if first.said else []
    if class_names != tuple(str(number) for number in range(len(class_names))):
        shown = ", ".join(f"{number} = {name}" for number, name in enumerate(class_names[:_SHOWN]))
        more = f" and {len(class_names) - _SHOWN} more" if len(class_names) > _SHOWN else ""
        said.append(f"classes by number: {shown}{more}")
    return Labels(numbers, class_names, tuple(said))


def _column(array: Array, problem: str) -> _Column:
    """Return one label per image. Raises BenchError."""
    if array.ndim == 2 and array.shape[1] > 1:
        return _one_hot(array, problem)
    if array.ndim not in (1, 2):
        raise BadData(f"{problem} have shape {array.shape}, expected (n,) or (n, 1), or one-hot rows (n, classes)")
    flat = array.reshape(-1)
    if flat.dtype.kind == "b":
        return _Column("booleans", flat.astype(np.int64))
    if flat.dtype.kind in "US":
        return _Column("words", _words(flat, problem))
    if flat.dtype.kind == "f":
        if not (np.isfinite(flat).all() and (flat == np.rint(flat)).all() and (abs(flat) < 2**53).all()):
            raise BadData(f"{problem} are {flat.dtype} that are not whole numbers; expected one class per image")
        return _Column("whole numbers", flat.astype(np.int64), said=f"{flat.dtype} labels are whole numbers")
    if flat.dtype.kind not in "iu":
        raise BadData(f"{problem} have dtype {array.dtype}, expected whole numbers, words, booleans or one-hot rows")
    if flat.size and int(flat.max()) > np.iinfo(np.int64).max:
        raise BadData(f"{problem} run to {flat.max()}, expected whole numbers below 2^63")
    return _Column("whole numbers", flat.astype(np.int64))


def _one_hot(array: Array, problem: str) -> _Column:
    if array.dtype.kind not in "biuf" or not bool(((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all()):
        raise BadData(
            f"{problem} have shape {array.shape}, several per image and not one-hot (a single 1, else 0); expected one "
            "class per image"
        )
    width = array.shape[1]
    said = f"labels are one-hot rows of {width} classes"
    return _Column("one-hot rows", array.argmax(1).astype(np.int64), width, said)


def _words(flat: Array, problem: str) -> Array:
    try:
        words = np.char.decode(flat.astype(np.bytes_), "utf-8") if flat.dtype.kind == "S" else flat
    except UnicodeDecodeError as error:
        raise BadData(f"{problem} are bytes that are not UTF-8; save them as str") from error
    if (words == "").any():
        raise BadData(f"{problem} hold {int((words == '').sum())} empty words; name a class for every image")
    return words


def _described(column: _Column) -> str:
    return f"{column.kind} of {column.width} classes" if column.width else column.kind


def _classes(train: _Column, names: Array | None, problem: str) -> tuple[list[int] | list[str], tuple[str, ...]]:
    """Return the values of the labels in class order, and the class names."""
    if names is not None:
        return _declared(train, names, problem)
    if train.kind == "one-hot rows":
        return list(range(train.width)), tuple(str(number) for number in range(train.width))
    if train.kind == "booleans":
        return [0, 1], ("False", "True")
    found = np.unique(train.values).tolist()
    if train.kind == "whole numbers" and found and found[0] < 0 and found != [-1, 1]:
        raise BadData(
            f"{problem} run from {found[0]} to {found[-1]}: a negative number may mean a missing label; "
            "expected numbers from 0, or the two classes -1 and 1"
        )
    return found, tuple(str(value) for value in found)


def _declared(train: _Column, names: Array, problem: str) -> tuple[list[int] | list[str], tuple[str, ...]]:
    """Return the same from the array `class_names`."""
    if names.ndim != 1 or names.dtype.kind not in "US" or len(np.unique(names)) != len(names):
        raise BadData(
            f"{problem}: class_names have shape {names.shape} and dtype {names.dtype}; expected different words, one "
            "a class"
        )
    words = tuple(_words(names, f"{problem}: class_names").tolist())
    if train.width not in (0, len(words)):
        raise BadData(f"{problem} are one-hot rows of {train.width} classes and class_names are {len(words)}")
    return (list(words) if train.kind == "words" else list(range(len(words)))), words


def _numbered(values: Array, known: list[int] | list[str], problem: str, where: str) -> Tensor:
    numbers = {value: number for number, value in enumerate(known)}
    found = [numbers.get(value, -1) for value in values.tolist()]
    if -1 in found:
        raise BadData(f"{problem} {values[found.index(-1)]}, which is not in {where}; remove it")
    return torch.tensor(found, dtype=torch.int64)


def _check_classes(train: Tensor, class_names: tuple[str, ...], problem: str) -> None:
    present = set(train.tolist())
    if len(present) < 2:
        raise BadData(f"{problem} hold {len(present)} class; expected 2 or more")
    absent = [name for number, name in enumerate(class_names) if number not in present]
    if absent:
        raise BadData(f"{problem} have no class {absent[0]}; remove it from the list of classes, or add images of it")
