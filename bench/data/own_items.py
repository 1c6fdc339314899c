"""A user's own images from data sets of torch and of the library `datasets` (Hugging Face), read item by item.

Nothing is downloaded. Importing this file imports neither NumPy nor torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.data.dataset import Fit
from bench.data.folder import part_of
from bench.data.naming import FILE_SIDE
from bench.data.own import (
    FOLDER,
    OwnDataset,
    PathDataset,
    checked_name,
    checked_reading,
    checked_shape,
    from_arrays,
    write_once,
)
from bench.errors import BadData, BadOption, NotFound

if TYPE_CHECKING:
    import numpy as np
    from torch.utils.data import Dataset

_METADATA = b"huggingface"
_TORCH_PIL_MODES = ("L", "RGB")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


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
    """Make a data set from a map-style torch data set: every item is read once.

    Pass it without random transforms: the augmented images of that one reading would become the records.

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
    train = read_items(dataset, f"data set '{name}': training")
    test = (None, None) if test_dataset is None else read_items(test_dataset, f"data set '{name}': test")
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


def read_items(dataset: Any, problem: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (n, ...) images and (n,) labels of all items. Raises BadData for items of another form."""
    import numpy as np

    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadData(f"{problem} part is a {type(dataset).__name__}, which has no length; give a map-style data set")
    images, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadData(f"{problem} item {number} is a {type(item).__name__}; expected a pair (image, label)")
        images.append(read_pixels(item[0], f"{problem} item {number}"))
        labels.append(item[1].item() if hasattr(item[1], "item") else item[1])
        if images[-1].shape != images[0].shape:
            raise BadData(
                f"{problem} item {number} has shape {images[-1].shape}, item 0 {images[0].shape}; give the data set a "
                "transform that resizes, such as torchvision.transforms.Resize((32, 32))"
            )
    if not images:
        raise BadData(f"{problem} part has no items; expected at least one image")
    return np.stack(images), np.asarray(labels)


def read_pixels(image: Any, problem: str) -> np.ndarray[Any, Any]:
    """Return the values of one image, (h, w), (c, h, w) or (h, w, c)."""
    import numpy as np

    mode = getattr(image, "mode", None)
    if isinstance(mode, str) and mode not in _TORCH_PIL_MODES:
        raise BadData(f"{problem} is an image of mode {mode}; convert it, as in image.convert('RGB')")
    array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    if array.dtype.hasobject or array.ndim not in (2, 3):
        raise BadData(f"{problem} is a {type(image).__name__}; expected a tensor, an array or an image of Pillow")
    return cast("np.ndarray[Any, Any]", array)


@dataclass(frozen=True)
class Rows:
    """The rows of a split: encoded images, one label each, and the names of the classes if declared."""

    images: tuple[bytes, ...]
    labels: tuple[int | str, ...]
    class_names: tuple[str, ...] | None


@dataclass(frozen=True, eq=False, repr=False)
class RowDataset(OwnDataset):
    """Splits of rows in memory; `digest` covers all of them."""

    splits: Mapping[str, Rows]
    digest: str

    def save(self, out: Path) -> str:
        """Write `out/datasets/DIGEST/NAME/SPLIT.parquet` unless it exists; return its name as a data set."""
        folder = out / FOLDER / self.digest / self.name
        for split, rows in self.splits.items():
            write_once(folder / f"{split}.parquet", lambda path, rows=rows: write_rows(path, rows))  # type: ignore[misc]
        return f"hf:{folder}{self.shape_words}"

    def __repr__(self) -> str:
        counts = ", ".join(f"{split} {len(rows.labels)}" for split, rows in self.splits.items())
        return f"{type(self).__name__}({self.name}: {counts})"


def from_huggingface(
    dataset_or_path: Any,
    *,
    name: str | None = None,
    image: str = "image",
    label: str = "label",
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
    value_range: tuple[float, float] | None = None,
) -> OwnDataset:
    """Make a data set from a Hugging Face data set, or from a folder that the library wrote; download nothing.

    Args:
        dataset_or_path: a `DatasetDict` with a split for training and one for the test or for validation; a single
            `Dataset`, of which a sixth is held out; any mapping or iterable of such rows; or a folder with parquet
            files, or one that `save_to_disk` wrote.
        name: name in records; required for rows in memory, for a folder the default is the folder's name.
        image: the column of images: of Pillow, encoded bytes, or {"bytes": ..., "path": ...}.
        label: the column of labels: a ClassLabel, whole numbers or words.
        size, channels, fit, value_range: as in `from_folder`.

    Returns:
        A value for `bench.run(dataset=...)`.

    Raises:
        NotFound: no such folder.
        BadData: rows without these columns, or a value in them that is not an image or a label.
        BadOption: an impossible name, size, fit or range.
    """
    reading, shape_words = checked_reading(fit, value_range), checked_shape(size, channels, FILE_SIDE)
    if isinstance(dataset_or_path, str | os.PathLike):
        folder = Path(os.path.abspath(os.path.expanduser(dataset_or_path)))
        if not folder.is_dir():
            raise NotFound(f"no folder {folder}; expected parquet files, or what save_to_disk writes")
        if name is not None or (image, label) != ("image", "label"):
            raise BadOption("name, image and label are for rows in memory; the files of a folder contain them")
        return PathDataset(folder.name, reading, shape_words, folder, "hf")
    if name is None:
        raise BadOption("name is missing; give the name of this data set in records, as in name='my-x-rays'")
    problem = f"data set '{checked_name(name)}'"
    if isinstance(dataset_or_path, Mapping):
        given = dict(dataset_or_path)
        unread = [split for split in given if not isinstance(split, str) or part_of(split) is None]
        if unread:
            raise BadData(f"{problem} has the split {unread[0]!r}; expected only train, test and validation")
    elif isinstance(dataset_or_path, Iterable):
        given = {"train": dataset_or_path}
    else:
        found = type(dataset_or_path).__name__
        raise BadData(f"{problem} is a {found}; expected rows, a mapping of them, or a path")
    splits = {split: read_rows(rows, image, label, f"{problem}: split {split}") for split, rows in given.items()}
    digest = hashlib.sha256()
    for split, rows in sorted(splits.items()):
        digest.update(json.dumps([split, rows.labels, rows.class_names]).encode())
        for each in rows.images:
            digest.update(hashlib.sha256(each).digest())
    return RowDataset(name, reading, shape_words, splits, digest.hexdigest()[:16])


def read_rows(rows: Iterable[Any], image: str, label: str, problem: str) -> Rows:
    """Read the columns of images and labels. Raises BadData for rows of another form."""
    images, labels = [], []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or image not in row or label not in row:
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"a {type(row).__name__}"
            raise BadData(
                f"{problem}: row {number} has {columns}; expected columns '{image}' and '{label}', or others by "
                "image='...' and label='...'"
            )
        images.append(encode_image(row[image], f"{problem}: row {number}"))
        if isinstance(row[label], bool) or not isinstance(row[label], int | str):
            raise BadData(f"{problem}: row {number} has the label {row[label]!r}; expected a whole number or a word")
        labels.append(row[label])
    if not images:
        raise BadData(f"{problem} has no rows; expected at least one image")
    feature = (getattr(rows, "features", None) or {}).get(label)
    names = getattr(feature, "names", None)
    return Rows(tuple(images), tuple(labels), None if names is None else tuple(map(str, names)))


def encode_image(value: Any, problem: str) -> bytes:
    """Return an image as the bytes of a file; Pillow images become PNG, which is lossless."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        content, path = value.get("bytes"), value.get("path")
        if isinstance(content, bytes):
            return content
        if isinstance(path, str) and os.path.isfile(path):
            return Path(path).read_bytes()
    if getattr(value, "mode", None) in _PNG_MODES and hasattr(value, "save"):
        stream = io.BytesIO()
        value.save(stream, "PNG")
        return stream.getvalue()
    raise BadData(f"{problem} has a {type(value).__name__} for an image; expected one of Pillow, or encoded bytes")


def write_rows(path: Path, rows: Rows) -> None:
    """Write a split as a parquet file in the format of the library `datasets`. Raises BadData without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise BadData("pyarrow is not installed; pip install 'dp-distill-bench[hf]'") from error
    declared = {"_type": "Value"} if rows.class_names is None else {"_type": "ClassLabel", "names": rows.class_names}
    features = {"image": {"_type": "Image"}, "label": declared}
    images = pa.array(
        [{"bytes": each, "path": None} for each in rows.images],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": images, "label": pa.array(rows.labels)})
    described = json.dumps({"info": {"features": features}})
    parquet.write_table(table.replace_schema_metadata({_METADATA: described.encode()}), path)
