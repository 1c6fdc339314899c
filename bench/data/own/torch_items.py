"""Data sets from map-style data sets of torch, such as those of torchvision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from bench.data.own.arrays import from_arrays
from bench.data.own.datasets import OwnDataset, checked_name
from bench.data.request import Fit
from bench.errors import BadData

if TYPE_CHECKING:
    import numpy as np
    from torch.utils.data import Dataset

_PIL_MODES = ("L", "RGB")


def from_torch(
    dataset: Dataset[Any],
    test_dataset: Dataset[Any] | None = None,
    *,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    value_range: tuple[float, float] | None = None,
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
) -> OwnDataset:
    """Make a data set of a map-style torch data set: every item is read once.

    Pass it without random transforms: an augmented image would be fixed and count as a record.

    Args:
        dataset: has `__len__` and `__getitem__`; items are (image, label), the image a tensor or an array, (h, w),
            (c, h, w) or (h, w, c), or an image of Pillow, grey or RGB; all of one size.
        test_dataset: the test part; None = a sixth of `dataset` is held out.
        name: name in records; None = the name of the data set's class.
        class_names: a name for each class; None = `dataset.classes` if it exists, else the labels.
        value_range, size, channels, fit: as in `from_arrays`.

    Returns:
        A value for `bench.run(dataset=...)`.

    Raises:
        BadData: a data set without a length, an item of another form, or images of several sizes.
        BadOption: as `from_arrays`.
    """
    label = re.sub(r"[^a-z0-9]+", "-", type(dataset).__name__.lower()).strip("-")
    name = checked_name(label if name is None else name)
    train = _read(dataset, f"data set '{name}': training")
    test = (None, None) if test_dataset is None else _read(test_dataset, f"data set '{name}': test")
    known = getattr(dataset, "classes", None) if class_names is None else class_names
    names = [str(each) for each in known] if isinstance(known, list | tuple) else None
    return from_arrays(
        *(*train, *test),
        name=name,
        class_names=names,
        value_range=value_range,
        size=size,
        channels=channels,
        fit=fit,
    )


def _read(dataset: Any, problem: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (n, ...) images and (n,) labels of all items."""
    import numpy as np

    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadData(f"{problem} part is a {type(dataset).__name__}, which has no length; give a map-style data set")
    images, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadData(f"{problem} item {number} is a {type(item).__name__}; expected a pair (image, label)")
        images.append(_pixels(item[0], f"{problem} item {number}"))
        labels.append(item[1].item() if hasattr(item[1], "item") else item[1])
        if images[-1].shape != images[0].shape:
            raise BadData(
                f"{problem} item {number} has shape {images[-1].shape}, item 0 {images[0].shape}; give the data set a "
                "transform that resizes, such as torchvision.transforms.Resize((32, 32))"
            )
    if not images:
        raise BadData(f"{problem} part has no items; expected at least one image")
    return np.stack(images), np.asarray(labels)


def _pixels(image: Any, problem: str) -> np.ndarray[Any, Any]:
    """Return the values of one image, (h, w), (c, h, w) or (h, w, c)."""
    import numpy as np

    mode = getattr(image, "mode", None)
    if isinstance(mode, str) and mode not in _PIL_MODES:
        raise BadData(f"{problem} is an image of mode {mode}; convert it, as in image.convert('RGB')")
    array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    if array.dtype.hasobject or array.ndim not in (2, 3):
        raise BadData(f"{problem} is a {type(image).__name__}; expected a tensor, an array or an image of Pillow")
    return cast("np.ndarray[Any, Any]", array)
