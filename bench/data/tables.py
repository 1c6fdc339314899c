"""Folders of the library `datasets` (Hugging Face): parquet files as on its hub, or the output of `save_to_disk`.

Only pyarrow is needed. Rows contain encoded images, which are decoded like image files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.data.arrays import as_labels
from bench.data.dataset import Decoding, Listing, Part, Request
from bench.data.folder import part_of
from bench.data.image_files import read_listing
from bench.data.images import ONE_IN, ImageData, hold_out
from bench.data.naming import FILE_SIDE
from bench.errors import BadData, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA = b"huggingface"
_IMAGE_NAMES, _LABEL_NAMES = ("image", "img"), ("label", "labels", "class", "target")
_NO_LABEL = -1
"""The ClassLabel value of a row without a label."""


@dataclass(frozen=True, eq=False)
class Row:
    """The image of a row, as a `bench.data.dataset.StoredImage`."""

    column: pa.ChunkedArray
    number: int
    split: str
    file_version: str
    folder: Path

    @property
    def name(self) -> str:
        """Name in records, such as "train[7]"."""
        return f"{self.split}[{self.number}]"

    @property
    def version(self) -> str:
        """Text that changes whenever the files of the split change."""
        return f"{self.file_version} {self.number}"

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
class TableSplit:
    """The rows of a split.

    Attributes:
        name: the split's name.
        images: the column of encoded images.
        label_key: name of the column of labels.
        labels: (n,) labels as they are in the table.
        class_names: those of the ClassLabel; None if the labels are of another type.
        file_version: names, sizes and times of the split's files.
    """

    name: str
    images: pa.ChunkedArray
    label_key: str
    labels: np.ndarray
    class_names: tuple[str, ...] | None
    file_version: str

    def part(self, labels: Sequence[int], folder: Path, chosen: Sequence[int] | None = None) -> Part:
        """Return the chosen rows, or all rows, with their class numbers."""
        numbers = range(len(labels)) if chosen is None else chosen
        rows = [Row(self.images, number, self.name, self.file_version, folder) for number in numbers]
        return Part(rows, [labels[number] for number in numbers])


def load_tables(path: Path, name: str, request: Request) -> ImageData:
    """Read the training and test splits; validation is the test part without a test split.

    Without both, the n // 6 rows whose indices have the smallest SHA-256 are the test set.

    Raises:
        BenchError: pyarrow is not installed, no such folder, or columns whose meaning is ambiguous.
    """
    problem = f"data set '{name}': {path}"
    splits, notes = choose_splits(read_splits(path, problem), problem)
    names = splits[0].class_names
    declared = None if names is None else np.array(names)
    labels = as_labels([(f"{one.name}[{one.label_key}]", one.labels) for one in splits], 1, declared, problem)
    notes += labels.notes
    numbers = [found.tolist() for found in labels.numbers]
    if len(splits) == 2:
        train, test = (one.part(found, path) for one, found in zip(splits, numbers, strict=True))
    else:
        count = len(numbers[0])
        if count < ONE_IN:
            raise BadData(f"{problem} has {count} rows and no split for the test; add one, or {ONE_IN} rows")
        is_test = hold_out(count)
        train, test = (
            splits[0].part(numbers[0], path, rows.nonzero().flatten().tolist()) for rows in (~is_test, is_test)
        )
        notes.append("no split for the test: a sixth of the rows is held out, by the hash of their numbers")
    reading = request.reading
    decoding = Decoding(FILE_SIDE, channels=None, fit=reading.fit, pixel_range=reading.pixel_range)
    return read_listing(Listing(name, path, labels.class_names, train, test, decoding, notes=tuple(notes)), request)


def choose_splits(splits: list[TableSplit], problem: str) -> tuple[list[TableSplit], list[str]]:
    """Return the training split and, if there is one, the test split; and sentences on splits that are not read."""
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


def read_splits(path: Path, problem: str) -> list[TableSplit]:
    """Read the tables of all splits. Raises BenchError if pyarrow or the files are missing, or cannot be read."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise BadData(f"{problem}: pyarrow is not installed; pip install 'dp-distill-bench[hf]'") from error
    if not path.is_dir():
        raise NotFound(f"{problem} is not a folder; expected one with parquet files, or one that save_to_disk wrote")

    def read_table(file: Path) -> pa.Table:
        if file.suffix == ".parquet":
            return parquet.read_table(file)
        with pa.memory_map(str(file)) as source:  # an Arrow stream as written by `datasets`
            return pa.ipc.open_stream(source).read_all()

    found = []
    for split, files in files_of_splits(path, problem).items():
        try:
            table = pa.concat_tables([read_table(file) for file in files])
        except (pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())[:300]
            raise BadData(f"{problem}: the files of split {split} cannot be read ({text}); save them again") from error
        version = " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
        found.append(find_columns(split, table, read_features(table, files[0]), version, f"{problem}: split {split}"))
    return found


def files_of_splits(path: Path, problem: str) -> dict[str, list[Path]]:
    """Return the files of each split, in order.

    The split is the first word of the file's name, as in train-00000-of-00001.parquet; else its folder's name.
    """
    found: dict[str, list[Path]] = {}
    for file in sorted(file for suffix in ("parquet", "arrow") for file in path.rglob(f"*.{suffix}")):
        if any(word.startswith((".", "cache-")) for word in file.relative_to(path).parts):
            continue
        split, folder = file.stem.split("-")[0], file.parent.name
        if part_of(split) is None and file.parent != path and folder != "data":
            split = folder
        found.setdefault(split, []).append(file)
    if not found:
        raise BadData(f"{problem} has neither parquet nor arrow files; give the folder above them")
    for split, files in found.items():
        folders = sorted({file.parent for file in files})
        if len(folders) > 1:
            named = " and ".join(folder.relative_to(path).as_posix() for folder in folders[:2])
            raise BadData(f"{problem} has files of split {split} in {named}: two configurations; give one of them")
    return found


def read_features(table: pa.Table, file: Path) -> Mapping[str, Mapping[str, object]]:
    """Return the features that `datasets` stores about the columns, in the table or next to it; {} without any."""
    metadata = (table.schema.metadata or {}).get(_METADATA)
    info = file.with_name("dataset_info.json")
    features: object = {}
    try:
        if metadata is not None:
            features = json.loads(metadata)["info"]["features"]
        elif info.is_file():
            features = json.loads(info.read_text(encoding="utf-8"))["features"]
    except (ValueError, KeyError, TypeError):  # then the columns' types decide
        return {}
    if not isinstance(features, dict):
        return {}
    return {key: feature for key, feature in features.items() if isinstance(feature, dict)}


def find_columns(
    split: str, table: pa.Table, features: Mapping[str, Mapping[str, object]], version: str, problem: str
) -> TableSplit:
    """Find the columns of images and labels. Raises BenchError if they are ambiguous."""
    import pyarrow as pa

    def has_images(key: str) -> bool:
        kind = table.schema.field(key).type  # `datasets` stores encoded images as a struct
        return pa.types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}

    kinds = {key: feature.get("_type") for key, feature in features.items()}
    columns = table.column_names
    images = [key for key in columns if kinds.get(key) == "Image" or has_images(key)]
    labels = [key for key in columns if kinds.get(key) == "ClassLabel"]
    labels = labels or [key for key in columns if key in _LABEL_NAMES]
    image_key = only_column(images, _IMAGE_NAMES, "images", columns, problem)
    label_key = only_column(labels, _LABEL_NAMES, "labels", columns, problem)
    column = table.column(label_key)
    if column.null_count:
        raise BadData(
            f"{problem}: column {label_key} has {column.null_count} rows without a label; leave these rows out"
        )
    names = features[label_key].get("names") if kinds.get(label_key) == "ClassLabel" else None
    class_names = tuple(map(str, names)) if isinstance(names, list) else None
    values = column.to_numpy()
    values = values.astype(str) if values.dtype == object else values
    return TableSplit(split, table.column(image_key), label_key, values, class_names, version)


def only_column(found: Sequence[str], usual: Sequence[str], role: str, columns: Sequence[str], problem: str) -> str:
    """Return the only column found or, of several, the one with a usual name. Raises BadData if it is ambiguous."""
    chosen = found if len(found) == 1 else [key for key in found if key in usual]
    if len(chosen) != 1:
        which = f"{len(found)} columns of {role} ({', '.join(found)})" if found else f"no column of {role}"
        raise BadData(
            f"{problem} has {which} among {', '.join(columns)}; keep or name one '{usual[0]}', with `datasets`: "
            "remove_columns or rename_column"
        )
    return chosen[0]
