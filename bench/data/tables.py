"""Folders of the library `datasets` (Hugging Face): parquet files as on its hub, or the output of `save_to_disk`.

Only pyarrow is needed. Rows contain encoded images, which are decoded like image files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.data.array_labels import Labels, as_labels
from bench.data.decoded import Look
from bench.data.folder_parts import part_of
from bench.data.images import ImageData
from bench.data.listing import Listing, Part, read
from bench.data.naming import FILE_SIDE
from bench.data.request import Request
from bench.data.subset import ONE_IN, held_out
from bench.errors import BadData, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA = b"huggingface"
_IMAGE_NAMES, _LABEL_NAMES = ("image", "img"), ("label", "labels", "class", "target")
_NO_LABEL = -1
"""The ClassLabel value of a row without a label."""


@dataclass(frozen=True, eq=False)
class Row:
    """The image of a row, as a `bench.data.opening.StoredImage`."""

    column: pa.ChunkedArray
    number: int
    split: str
    of: str
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.split}[{self.number}]"

    @property
    def version(self) -> str:
        return f"{self.of} {self.number}"

    def __str__(self) -> str:
        return f"{self.folder}: the image of row {self.number} of split {self.split}"

    def read(self) -> bytes:
        """Return the encoded bytes. Raises ValueError if there are none."""
        value = self.column[self.number].as_py()
        found = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(found, bytes):
            where = value.get("path") if isinstance(value, dict) else None
            raise ValueError(f"its bytes are in the file {where}, not in the table" if where else "it is empty")
        return found


@dataclass(frozen=True, eq=False)
class _Split:
    """The rows of a split: images and labels, the classes of its ClassLabel, and its files' sizes and times."""

    name: str
    images: pa.ChunkedArray
    label_key: str
    labels: np.ndarray
    class_names: tuple[str, ...] | None
    of: str

    def rows(self, path: Path) -> list[Row]:
        return [Row(self.images, number, self.name, self.of, path) for number in range(len(self.labels))]


def load_tables(path: Path, name: str, request: Request) -> ImageData:
    """Read the training and test splits; validation serves as test if there is no test split.

    Without both, the n // 6 rows whose indices have the smallest SHA-256 are the test set.

    Raises:
        BenchError: pyarrow is not installed, no such folder, or columns whose meaning is ambiguous.
    """
    problem = f"data set '{name}': {path}"
    splits, notes = _wanted(_read_splits(path, problem), problem)
    names = splits[0].class_names
    declared = None if names is None else np.array(names)
    labels = as_labels([(f"{one.name}[{one.label_key}]", one.labels) for one in splits], 1, declared, problem)
    train, test, held = _parts(splits, labels, path, problem)
    reading = request.reading
    look = Look(FILE_SIDE, channels=None, fit=reading.fit, pixel_range=reading.pixel_range)
    said = (*notes, *labels.said, *held)
    return read(Listing(name, path, labels.class_names, train, test, look, notes=said), request)


def _parts(splits: list[_Split], labels: Labels, path: Path, problem: str) -> tuple[Part, Part, list[str]]:
    """Return training and test part, and a sentence if the test part is held out."""
    rows, numbers = [one.rows(path) for one in splits], [found.tolist() for found in labels.numbers]
    if len(splits) == 2:
        return Part(rows[0], numbers[0]), Part(rows[1], numbers[1]), []
    if len(rows[0]) < ONE_IN:
        raise BadData(f"{problem} has {len(rows[0])} rows and no split for the test; add one, or {ONE_IN} rows")
    is_test = held_out(len(rows[0])).tolist()
    train, test = ([k for k, held in enumerate(is_test) if held == wanted] for wanted in (False, True))
    parts = [Part([rows[0][k] for k in part], [numbers[0][k] for k in part]) for part in (train, test)]
    return *parts, ["no split for the test: a sixth of the rows is held out, by the hash of their numbers"]  # type: ignore[return-value]


def _wanted(splits: list[_Split], problem: str) -> tuple[list[_Split], list[str]]:
    """Return the training split, the test split if there is one, and the splits that are not read."""
    labelled = [one for one in splits if not (one.labels == _NO_LABEL).all()]
    notes = [f"split {one.name} has no labels (all are -1) and is not read" for one in splits if one not in labelled]
    by_part = {part_of(one.name): one for one in labelled}
    train = by_part.get("train") or (labelled[0] if len(labelled) == 1 else None)
    if train is None:
        raise BadData(f"{problem} has the splits {', '.join(one.name for one in splits)}; expected train and test")
    test = next((by_part[part] for part in ("test", "val") if part in by_part and by_part[part] is not train), None)
    used = [train] if test is None else [train, test]
    notes += [f"split {one.name} is not read" for one in labelled if one not in used]
    if test is not None and part_of(test.name) == "val":
        notes.append(f"split {test.name} is the test part")
    return used, notes


def _read_splits(path: Path, problem: str) -> list[_Split]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise BadData(f"{problem}: pyarrow is not installed; pip install 'dp-distill-bench[hf]'") from error
    if not path.is_dir():
        raise NotFound(f"{problem} is not a folder; expected one with parquet files, or one that save_to_disk wrote")
    found = []
    for split, files in _files_of_splits(path, problem).items():
        try:
            tables = [_read_table(file) for file in files]
            table = pa.concat_tables(tables)
        except (pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())[:300]
            raise BadData(f"{problem}: the files of split {split} cannot be read ({text}); save them again") from error
        of = " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
        found.append(_split(split, table, _features(table, files[0]), of, f"{problem}: split {split}"))
    return found


def _read_table(file: Path) -> pa.Table:
    """Map a parquet file, or an Arrow stream as written by `datasets`, into memory."""
    import pyarrow as pa
    from pyarrow import parquet

    if file.suffix == ".parquet":
        return parquet.read_table(file)
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_stream(source).read_all()


def _files_of_splits(path: Path, problem: str) -> dict[str, list[Path]]:
    """Return the files of each split, in order."""
    found: dict[str, list[Path]] = {}
    files = sorted(file for suffix in ("parquet", "arrow") for file in path.rglob(f"*.{suffix}"))
    for file in files:
        if not any(word.startswith((".", "cache-")) for word in file.relative_to(path).parts):
            found.setdefault(_split_of(file, path), []).append(file)
    if not found:
        raise BadData(f"{problem} has neither parquet nor arrow files; give the folder above them")
    for split, several in found.items():
        folders = sorted({file.parent for file in several})
        if len(folders) > 1:
            named = " and ".join(folder.relative_to(path).as_posix() for folder in folders[:2])
            raise BadData(f"{problem} has files of split {split} in {named}: two configurations; give one of them")
    return found


def _split_of(file: Path, path: Path) -> str:
    """Return the first word of the file's name, as in train-00000-of-00001.parquet; else its folder's name."""
    word = file.stem.split("-")[0]
    if part_of(word) is not None or (file.parent == path and word != "data"):
        return word
    return file.parent.name if file.parent != path and file.parent.name != "data" else word


def _features(table: pa.Table, file: Path) -> dict[str, Any]:
    """Return the features that `datasets` stores about the columns, in the table or next to it; {} without any."""
    metadata = (table.schema.metadata or {}).get(_METADATA)
    info = file.with_name("dataset_info.json")
    try:
        if metadata is not None:
            return json.loads(metadata)["info"]["features"] or {}
        if info.is_file():
            return json.loads(info.read_text(encoding="utf-8"))["features"] or {}
    except (ValueError, KeyError, TypeError):  # then the columns' types decide
        return {}
    return {}


def _split(split: str, table: pa.Table, features: dict[str, Any], of: str, problem: str) -> _Split:
    """Find the columns of images and labels. Raises BenchError if they are ambiguous."""
    kinds = {key: feature.get("_type") for key, feature in features.items() if isinstance(feature, dict)}
    images = [key for key in table.column_names if kinds.get(key) == "Image" or _holds_bytes(table.schema.field(key))]
    labels = [key for key in table.column_names if kinds.get(key) == "ClassLabel"]
    labels = labels or [key for key in table.column_names if key in _LABEL_NAMES]
    image_key = _one(images, _IMAGE_NAMES, "images", table.column_names, problem)
    label_key = _one(labels, _LABEL_NAMES, "labels", table.column_names, problem)
    column = table.column(label_key)
    if column.null_count:
        raise BadData(
            f"{problem}: column {label_key} has {column.null_count} rows without a label; leave these rows out"
        )
    names = features[label_key].get("names") if kinds.get(label_key) == "ClassLabel" else None
    values = column.to_numpy()
    return _Split(
        *(split, table.column(image_key), label_key, values.astype(str) if values.dtype == object else values),
        *(None if names is None else tuple(map(str, names)), of),
    )


def _holds_bytes(field: pa.Field) -> bool:
    """Whether a column has the type that `datasets` uses for encoded images."""
    import pyarrow as pa

    return pa.types.is_struct(field.type) and {part.name for part in field.type} == {"bytes", "path"}


def _one(found: Sequence[str], usual: Sequence[str], what: str, columns: Sequence[str], problem: str) -> str:
    chosen = found if len(found) == 1 else [key for key in found if key in usual]
    if len(chosen) != 1:
        which = f"{len(found)} columns of {what} ({', '.join(found)})" if found else f"no column of {what}"
        raise BadData(
            f"{problem} has {which} among {', '.join(columns)}; keep or name one '{usual[0]}', with `datasets`: "
            "remove_columns or rename_column"
        )
    return chosen[0]
