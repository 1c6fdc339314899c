"""Folders of the library `datasets`, in the formats of its files."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_made import refusal
from PIL import Image

from bench import data
from bench.data import ImageData
from bench.errors import BadData, BenchError, NotFound

pa = pytest.importorskip("pyarrow", reason="needs the extra hf")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra hf")

IMAGES = np.random.default_rng(0).integers(0, 256, (30, 16, 16), dtype=np.uint8)
LABELS = np.arange(30) % 3
NAMES = ["cat", "dog", "eel"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def encoded(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def table(rows: slice, features: dict[str, Any] | None = FEATURES, **columns: Any) -> Any:
    """Some of the rows, with the features that `datasets` stores about their columns."""
    images = [{"bytes": encoded(one), "path": f"{k}.png"} for k, one in enumerate(IMAGES[rows])]
    made = pa.table({"image": pa.array(images, IMAGE), "label": pa.array(LABELS[rows]), **columns})
    said = {} if features is None else {"huggingface": json.dumps({"info": {"features": features}})}
    return made.replace_schema_metadata(said)


def write(file: Path, content: Any) -> None:
    """A parquet file, or an Arrow stream as save_to_disk writes it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(content, file)
        return
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as stream:
        stream.write_table(content)


def hub(path: Path, **splits: Any) -> Path:
    """File names as on the hub."""
    for split, content in (splits or {"train": table(slice(24)), "test": table(slice(24, 30))}).items():
        write(path / "data" / f"{split}-00000-of-00001.parquet", content)
    return path


def load(path: Path, **how: bool) -> ImageData:
    return data.load(f"hf:{path}@16", **how)  # type: ignore[arg-type]


def refused(path: Path, *values: object, error: type[BenchError] = BadData) -> None:
    refusal(f"hf:{path}@16", path, *values, error=error)


def test_parquet_files_are_read(tmp_path: Path) -> None:
    found = load(hub(tmp_path))
    assert (found.name, found.class_names) == (data.slug(f"hf:{tmp_path}@16"), tuple(NAMES))
    assert np.array_equal(found.train_images[:, 0].numpy(), IMAGES[:24])
    assert np.array_equal(found.test_images[:, 0].numpy(), IMAGES[24:])
    assert found.train_labels.tolist() == LABELS[:24].tolist() and found.test_labels.tolist() == LABELS[24:].tolist()


def test_shards_are_joined_in_order(tmp_path: Path) -> None:
    whole = load(hub(tmp_path / "whole")).fingerprint
    for shard in range(3):
        write(tmp_path / "cut" / f"train-0000{shard}-of-00003.parquet", table(slice(8 * shard, 8 * shard + 8)))
    write(tmp_path / "cut" / "test.parquet", table(slice(24, 30)))
    assert load(tmp_path / "cut").fingerprint == whole


def test_save_to_disk_output_is_read(tmp_path: Path) -> None:
    whole = load(hub(tmp_path / "hub")).fingerprint
    for split, rows in (("train", slice(24)), ("test", slice(24, 30))):
        write(tmp_path / "disk" / split / "data-00000-of-00001.arrow", table(rows, features=None))
        (tmp_path / "disk" / split / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    (tmp_path / "disk" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    found = load(tmp_path / "disk")
    assert (found.fingerprint, found.class_names) == (whole, tuple(NAMES))


def test_single_split_holds_out_sixth(tmp_path: Path) -> None:
    write(tmp_path / "data-00000-of-00001.arrow", table(slice(30)))
    found = load(tmp_path)
    assert (len(found.train_images), len(found.test_images)) == (25, 5)
    assert any("held out" in said for said in found.conversions)


def test_validation_replaces_test_without_labels(tmp_path: Path) -> None:
    unlabelled = table(slice(24, 30)).set_column(1, "label", pa.array([-1] * 6))
    path = hub(tmp_path, train=table(slice(18)), validation=table(slice(18, 24)), test=unlabelled)
    found = load(path)
    assert np.array_equal(found.test_images[:, 0].numpy(), IMAGES[18:24])
    assert any("no labels" in said for said in found.conversions)


def test_columns_are_found_by_type_and_name(tmp_path: Path) -> None:
    named = [
        table(rows, None, note=pa.array(["x"] * (rows.stop - rows.start))) for rows in (slice(0, 24), slice(24, 30))
    ]
    assert load(hub(tmp_path, train=named[0], test=named[1])).class_names == ("0", "1", "2")
    words = [each.set_column(1, "label", pa.array([NAMES[k] for k in each["label"].to_pylist()])) for each in named]
    assert load(hub(tmp_path, train=words[0], test=words[1])).class_names == tuple(NAMES)


def test_broken_images_are_named_or_left_out(tmp_path: Path) -> None:
    images = [{"bytes": encoded(one), "path": None} for one in IMAGES[:24]]
    images[3]["bytes"], images[4]["bytes"], images[5] = images[3]["bytes"][:50], None, None  # type: ignore[call-overload]
    images[4]["path"] = "elsewhere.png"
    train = table(slice(24)).set_column(0, "image", pa.array(images, IMAGE))
    path = hub(tmp_path, train=train, test=table(slice(24, 30)))
    refused(path, "row 3 of split train", "elsewhere.png", "3 of 30")
    found = load(path, skip_broken=True)
    assert found.left_out == ("train[3]", "train[4]", "train[5]") and len(found.train_images) == 21


TWO = FEATURES | {"coarse": {"names": ["x"], "_type": "ClassLabel"}, "fine": FEATURES["label"]}


@pytest.mark.parametrize(
    ("train", "values"),
    [
        (table(slice(24)).rename_columns(["image", "kind"]), ("image, kind", "'label'")),
        (table(slice(24)).rename_columns(["image", "fine"]).append_column("coarse", pa.array([0] * 24))
         .replace_schema_metadata({"huggingface": json.dumps({"info": {"features": TWO}})}), ("fine, coarse", "2")),
        (table(slice(24), None).drop_columns(["image"]), ("'image'",)),
        (table(slice(24), None, left=pa.array([None] * 24, IMAGE)).rename_columns(["a", "label", "b"]), ("2", "a, b")),
        (table(slice(24)).set_column(1, "label", pa.array([None, *LABELS[1:24].tolist()])), ("label", "1 rows")),
        (table(slice(24)).set_column(1, "label", pa.array([-1, *LABELS[1:24].tolist()])), ("class -1",)),
    ],
)  # fmt: skip
def test_unclear_columns_are_refused(tmp_path: Path, train: Any, values: tuple[str, ...]) -> None:
    refused(hub(tmp_path, train=train, test=table(slice(24, 30))), *values)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    refused(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 nothing")
    refused(tmp_path, "train")
    for name in ("one", "two"):
        hub(tmp_path / "both" / name)
    refused(tmp_path / "both", "one/data and two/data")
    refused(hub(tmp_path / "odd", first=table(slice(12)), second=table(slice(12, 24))), "first, second")
    refused(hub(tmp_path / "small", train=table(slice(5))), "5 rows", "6 rows")
    refused(tmp_path / "absent", error=NotFound)


def test_missing_pyarrow_names_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(tmp_path, "dp-distill-bench[hf]")
