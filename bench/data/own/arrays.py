"""Data sets from arrays of NumPy or tensors of torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data.own.datasets import (
    FOLDER,
    OwnDataset,
    checked_name,
    checked_reading,
    checked_shape,
    python_words,
    write_once,
)
from bench.data.request import Fit
from bench.errors import BadData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class ArrayDataset(OwnDataset):
    """Images and labels in memory.

    Attributes:
        arrays: x_train, y_train and optionally x_test, y_test and class_names, all read-only.
        digest: first 16 hex digits of the SHA-256 over all arrays.
    """

    arrays: Arrays
    digest: str

    def located(self, out: Path) -> str:
        """Write `out/datasets/DIGEST/NAME.npz` unless it exists; return its name as a data set."""
        import numpy as np

        def write(path: Path) -> None:
            with path.open("wb") as stream:
                np.savez(stream, **self.arrays)  # type: ignore[arg-type]

        path = out / FOLDER / self.digest / f"{self.name}.npz"
        write_once(path, write)
        return f"npz:{path}{self.shape_words}"

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key} {array.dtype} {tuple(array.shape)}" for key, array in self.arrays.items())
        return f"{type(self).__name__}({self.name}: {shapes})"


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    name: str,
    class_names: Sequence[str] | None = None,
    value_range: tuple[float, float] | None = None,
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
) -> OwnDataset:
    """Make a data set of arrays or tensors, which are copied and checked in the same way as files.

    The values of the images never decide how they are read: a range computed from the data would reveal information
    about every record.

    Args:
        x: training images, (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3: uint8 and other integers of 0 to
            255, uint16 of 0 to 65535, bool, or floats in [0, 1]; other ranges need `value_range`.
        y: (n,) labels: whole numbers, words or booleans; or one-hot rows (n, classes).
        x_test: test images, in the same form; None = a sixth of the training images is held out, by the hash of their
            indices.
        y_test: labels of the test images.
        name: name in records: small letters, digits, - and _.
        class_names: a name for each class, in the order of the numbers; None = the labels themselves.
        value_range: the values that mean black and white.
        size: side in pixels, 8 to 256, to which images are resized; None = their own.
        channels: 1 = grey, 3 = RGB; None = those of the images.
        fit: how non-square images become square: "crop" keeps the central square, "pad" adds black bars, "stretch"
            changes the aspect ratio.

    Returns:
        A value for `bench.run(dataset=...)`.

    Raises:
        BadData: arrays that do not fit together, or whose meaning is ambiguous.
        BadOption: an impossible name, range, size or fit.
    """
    from bench.data.array_files import as_data
    from bench.data.array_keys import find_keys

    reading, shape_words = checked_reading(fit, value_range), checked_shape(size, channels)
    problem = f"data set '{checked_name(name)}'"
    given = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    given |= {"class_names": None if class_names is None else [str(each) for each in class_names]}
    arrays = {key: _array(value, f"{problem}: {key}") for key, value in given.items() if value is not None}
    try:
        as_data(dict(arrays), find_keys(arrays, problem), name, reading, problem)
    except BadData as error:
        raise BadData(python_words(str(error))) from None
    for array in arrays.values():
        array.flags.writeable = False
    return ArrayDataset(name, reading, shape_words, arrays, _digest(arrays))


def _array(value: Any, problem: str) -> np.ndarray[Any, Any]:
    """Copy an array or a tensor. Raises BadData for anything else."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    try:
        array = np.array(value)
    except ValueError as error:
        raise BadData(
            f"{problem} cannot become an array ({error}); give images of one size, or labels of one kind"
        ) from None
    if array.dtype.hasobject or array.ndim == 0:
        raise BadData(f"{problem} is a {type(value).__name__} of dtype {array.dtype}; expected an array or a tensor")
    return array


def _digest(arrays: Arrays) -> str:
    total = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        total.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()[:16]
