"""Data sets of the library `datasets` (Hugging Face), in memory or in a folder; nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.folder_parts import part_of
from bench.data.own.datasets import FOLDER, OwnDataset, checked_name, checked_reading, of_files, write_once
from bench.data.request import Fit
from bench.errors import BadData, BadOption, NotFound

_METADATA = b"huggingface"
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
Label = int | str


@dataclass(frozen=True)
class Rows:
    """The rows of a split: encoded images, one label each, and the names of the classes if declared."""

    images: tuple[bytes, ...]
    labels: tuple[Label, ...]
    class_names: tuple[str, ...] | None


@dataclass(frozen=True, eq=False, repr=False)
class RowDataset(OwnDataset):
    """Splits of rows in memory; `digest` covers all of them."""

    splits: Mapping[str, Rows]
    digest: str

    def located(self, out: Path) -> str:
        """Write `out/datasets/DIGEST/NAME/SPLIT.parquet` unless it exists; return its name as a data set."""
        folder = out / FOLDER / self.digest / self.name
        for split, rows in self.splits.items():
            write_once(folder / f"{split}.parquet", lambda path, rows=rows: _write(path, rows))  # type: ignore[misc]
        return f"hf:{folder}{self.shape_words}"

    def __repr__(self) -> str:
        counts = ", ".join(f"{split} {len(rows.labels)}" for split, rows in self.splits.items())
        return f"{type(self).__name__}({self.name}: {counts})"


@dataclass(frozen=True, eq=False)
class TableDataset(OwnDataset):
    """A folder of parquet files or of `save_to_disk`, at an absolute `path`."""

    path: Path

    def located(self, out: Path) -> str:
        """Return its name as a data set; writes nothing."""
        return f"hf:{self.path}{self.shape_words}"


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
    """Make a data set of a Hugging Face data set, or of a folder that the library wrote. Nothing is downloaded.

    Args:
        dataset_or_path: a `DatasetDict` with a split for training and one for the test or for validation; a single
            `Dataset`, of which a sixth is held out; any mapping or iterable of such rows; or a folder with parquet
            files, or one that `save_to_disk` wrote.
        name: name in records; required for rows in memory, for a folder the default is the folder's name.
        image: the column of images: of Pillow, encoded bytes, or {"bytes": ..., "path": ...}.
        label: the column of labels: a ClassLabel, whole numbers or words.
        size: side in pixels, 8 to 256, to which images are resized; None = 32.
        channels: 1 = grey, 3 = RGB; None = grey if all images are, else RGB.
        fit, value_range: as in `from_folder`.

    Returns:
        A value for `bench.run(dataset=...)`.

    Raises:
        NotFound: no such folder.
        BadData: rows without these columns, or a value in them that is not an image or a label.
        BadOption: an impossible name, size, fit or range.
    """
    reading, shape_words = checked_reading(fit, value_range), of_files(size, channels)
    if isinstance(dataset_or_path, str | os.PathLike):
        folder = Path(os.path.abspath(os.path.expanduser(dataset_or_path)))
        if not folder.is_dir():
            raise NotFound(f"no folder {folder}; expected parquet files, or what save_to_disk writes")
        if name is not None or (image, label) != ("image", "label"):
            raise BadOption("name, image and label are for rows in memory; of a folder its files say them")
        return TableDataset(folder.name, reading, shape_words, folder)
    if name is None:
        raise BadOption("name is missing; give what records call this data set, as in name='my-x-rays'")
    splits = {
        split: _rows(rows, image, label, f"data set '{checked_name(name)}': split {split}")
        for split, rows in _splits(dataset_or_path, name).items()
    }
    return RowDataset(name, reading, shape_words, splits, _digest(splits))


def _splits(given: Any, name: str) -> dict[str, Iterable[Any]]:
    """Return the rows of each split; a single part is the split train."""
    if not isinstance(given, Mapping):
        if not isinstance(given, Iterable):
            raise BadData(f"data set '{name}' is a {type(given).__name__}; expected rows, a mapping of them, or a path")
        return {"train": given}
    unread = [split for split in given if not isinstance(split, str) or part_of(split) is None]
    if unread:
        raise BadData(f"data set '{name}' has the split {unread[0]!r}; expected only train, test and validation")
    return dict(given)


def _rows(rows: Iterable[Any], image: str, label: str, problem: str) -> Rows:
    images, labels = [], []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or image not in row or label not in row:
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"a {type(row).__name__}"
            raise BadData(
                f"{problem}: row {number} has {columns}; expected columns '{image}' and '{label}', or others by "
                "image='...' and label='...'"
            )
        images.append(_encoded(row[image], f"{problem}: row {number}"))
        if isinstance(row[label], bool) or not isinstance(row[label], int | str):
            raise BadData(f"{problem}: row {number} has the label {row[label]!r}; expected a whole number or a word")
        labels.append(row[label])
    if not images:
        raise BadData(f"{problem} has no rows; expected at least one image")
    feature = (getattr(rows, "features", None) or {}).get(label)
    names = getattr(feature, "names", None)
    return Rows(tuple(images), tuple(labels), None if names is None else tuple(map(str, names)))


def _encoded(value: Any, problem: str) -> bytes:
    """Return an image as the bytes of a file; Pillow images become PNG, which is lossless."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        held, path = value.get("bytes"), value.get("path")
        if isinstance(held, bytes):
            return held
        if isinstance(path, str) and os.path.isfile(path):
            return Path(path).read_bytes()
    if getattr(value, "mode", None) in _PNG_MODES and hasattr(value, "save"):
        stream = io.BytesIO()
        value.save(stream, "PNG")
        return stream.getvalue()
    raise BadData(f"{problem} has a {type(value).__name__} for an image; expected one of Pillow, or encoded bytes")


def _digest(splits: Mapping[str, Rows]) -> str:
    total = hashlib.sha256()
    for split, rows in sorted(splits.items()):
        total.update(json.dumps([split, rows.labels, rows.class_names]).encode())
        for each in rows.images:
            total.update(hashlib.sha256(each).digest())
    return total.hexdigest()[:16]


def _write(path: Path, rows: Rows) -> None:
    """Write a split in the format of the library `datasets`."""
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
