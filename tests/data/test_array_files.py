"""A user's arrays in every unambiguous form, and refusals of ambiguous ones: npz, npy and torch files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_made import Evil, refusal, write_evil

from bench import data
from bench.data import ImageData
from bench.data.dataset import Fit, Reading
from bench.errors import BadData, NotFound

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (16, 8, 8), dtype=np.uint8)
LABELS = np.arange(16) % 3
NAMES = ("train_images", "train_labels", "test_images", "test_labels")


def parts(images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, names: tuple[str, ...] = NAMES) -> Arrays:
    """12 training and 4 test images of 3 classes."""
    return dict(zip(names, (images[:12], labels[:12], images[12:], labels[12:]), strict=True))


def save(folder: Path, arrays: Arrays) -> str:
    np.savez(folder / "my.npz", **arrays)
    return f"npz:{folder / 'my.npz'}"


def load(folder: Path, arrays: Arrays, **reading: Any) -> ImageData:
    return data.load(save(folder, arrays), reading=Reading(**reading))


def refused(folder: Path, arrays: Arrays, *values: object) -> None:
    refusal(save(folder, arrays), folder / "my.npz", *values)


def mentions(found: ImageData, *values: object) -> bool:
    """Whether one of the sentences about conversions has all values."""
    return any(all(str(value) in sentence for value in values) for sentence in found.conversions)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    return load(tmp_path_factory.mktemp("usual"), parts())


def test_npz_of_uint8_and_integers_is_unchanged(usual: ImageData) -> None:
    assert (usual.name, usual.shape, usual.class_names) == ("npz-my", (1, 8, 8), ("0", "1", "2"))
    assert np.array_equal(usual.train_images[:, 0].numpy(), IMAGES[:12])
    assert np.array_equal(usual.test_images[:, 0].numpy(), IMAGES[12:])
    assert usual.train_labels.tolist() + usual.test_labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "names",
    ["X_train Y_train X_test Y_test", "train_x train_y test_x test_y", "xtrain ytrain xtest ytest",
     "images_training targets_training images_testing targets_testing",
     "train_data train_labels test_data test_labels", "x_train y_train x_val y_val"],
)  # fmt: skip
def test_npz_accepts_usual_array_names(tmp_path: Path, usual: ImageData, names: str) -> None:
    assert load(tmp_path, parts(names=tuple(names.split()))).fingerprint == usual.fingerprint


def test_npz_storage_order_does_not_matter(tmp_path: Path, usual: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = parts()
    arrays["train_images"] = np.asfortranarray(arrays["train_images"])
    arrays["train_labels"] = arrays["train_labels"].astype(">i4")
    np.savez_compressed(tmp_path / "other.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    assert data.load("npz:other.npz").fingerprint == usual.fingerprint


def test_npz_validation_part_joins_training_part(tmp_path: Path) -> None:
    val = {"val_images": np.full((2, 8, 8), 7, dtype=np.uint8), "val_labels": np.array([2, 3])}
    found = load(tmp_path, parts() | val)
    assert (found.classes, len(found.test_labels)) == (4, 4)
    assert found.train_labels.tolist() == [*LABELS[:12].tolist(), 2, 3] and (found.train_images[-2:] == 7).all()


def test_npz_without_test_part_holds_out_sixth_by_index(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    found = load(tmp_path, {"x": images, "y": np.arange(60) % 3})
    assert (len(found.train_images), len(found.test_images)) == (50, 10)
    images[7] = 255 - images[7]
    again = load(tmp_path, {"x": images, "y": np.arange(60) % 3})
    pairs = ((found.train_images, again.train_images), (found.test_images, again.test_images))
    assert sum(int((a != b).flatten(1).any(1).sum()) for a, b in pairs) == 1


@pytest.mark.parametrize(
    ("images", "pixel_range"),
    [
        (IMAGES / 255, None),
        ((IMAGES / 255).astype(np.float32), None),
        ((IMAGES / 255).astype(np.float16), None),
        (IMAGES.astype(np.int16), None),
        (IMAGES.astype(np.uint16) * 257, None),
        ((IMAGES.astype(np.uint16) * 257).astype(">u2"), None),
        (IMAGES / 127.5 - 1, (-1, 1)),
        (IMAGES * 1.0, (0, 255)),
        (IMAGES.astype(np.uint16), (0, 255)),
        (IMAGES.astype(np.int16) * 10 - 1000, (-1000, 1550)),
    ],
)
def test_pixels_of_each_dtype_are_read(
    tmp_path: Path, usual: ImageData, images: np.ndarray, pixel_range: tuple[float, float] | None
) -> None:
    found = load(tmp_path, parts(images), pixel_range=pixel_range)
    assert found.fingerprint == usual.fingerprint and mentions(found, images.dtype)


def test_boolean_pixels_are_black_and_white(tmp_path: Path) -> None:
    found = load(tmp_path, parts(IMAGES > 100))
    assert np.array_equal(found.train_images[:, 0].numpy(), np.where(IMAGES[:12] > 100, 255, 0))


@pytest.mark.parametrize(
    ("images", "option"),
    [
        (IMAGES / 127.5 - 1, "--pixel-range -1,1"),
        (IMAGES * 1.0, "--pixel-range 0,255"),
        (IMAGES.astype(np.int16) * 16, "--pixel-range 0,4095"),
        (IMAGES.astype(np.int32) - 300, "--pixel-range LOW,HIGH"),
        (IMAGES.astype(np.uint16), "--pixel-range LOW,HIGH"),
        ((IMAGES > 100).astype(np.uint8), "--pixel-range 0,1"),
    ],
)
def test_pixels_of_unclear_range_are_refused_with_option(tmp_path: Path, images: np.ndarray, option: str) -> None:
    refused(tmp_path, parts(images), option)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint16, np.float64, bool])
@pytest.mark.parametrize("value", [0, 255])
def test_replaced_record_changes_no_other_image(tmp_path: Path, dtype: type, value: int) -> None:
    """A range found from the data would change all images when the darkest or brightest one changes."""

    def cast(images: np.ndarray) -> np.ndarray:
        scale = {np.uint16: 257, np.float64: 1 / 255}.get(dtype, 1)
        return images > 100 if dtype is bool else images.astype(dtype) * scale

    before, changed = load(tmp_path, parts(cast(IMAGES))), IMAGES.copy()
    changed[3] = value
    after = load(tmp_path, parts(cast(changed)))
    assert (before.train_images != after.train_images).flatten(1).any(1).nonzero().flatten().tolist() == [3]
    assert torch.equal(before.test_images, after.test_images)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_channel_axis_may_be_first_or_last(tmp_path: Path, channels: int, axis: int) -> None:
    images = RNG.integers(0, 256, (16, 8, 8, channels), dtype=np.uint8)
    found = load(tmp_path, parts(images if axis == 3 else images.transpose(0, 3, 1, 2)))
    assert np.array_equal(found.train_images.numpy(), images[:12].transpose(0, 3, 1, 2))
    assert mentions(found, "(n, c, h, w)") == (axis == 1)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_arrays_become_square(tmp_path: Path, fit: Fit) -> None:
    images = np.zeros((16, 8, 12, 3), np.uint8)
    images[:, :, 2:10] = 200
    images[:, :, 3:9, 0] = RNG.integers(100, 200, (16, 8, 6))
    found = load(tmp_path, parts(images), fit=fit)
    side = 8 if fit == "crop" else 12
    assert found.shape == (3, side, side) and mentions(found, "8x12", fit)
    expected = np.zeros((side, side))
    expected[2 * (fit == "pad") : side - 2 * (fit == "pad"), 0 if fit == "crop" else 2 : 10] = 200
    assert np.array_equal(found.train_images[0, 1].numpy(), expected)


WORDS = np.array(["eel", "cat", "dog"])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (LABELS + 1, ("1", "2", "3")),
        (LABELS * 10 + 5, ("5", "15", "25")),
        (LABELS.astype(np.uint64)[:, None], ("0", "1", "2")),
        (LABELS.astype(np.float32), ("0", "1", "2")),
        (np.eye(3)[LABELS], ("0", "1", "2")),
        (np.eye(3, dtype=bool)[LABELS], ("0", "1", "2")),
        (np.sort(WORDS)[LABELS], ("cat", "dog", "eel")),
        (np.sort(WORDS).astype("S")[LABELS][:, None], ("cat", "dog", "eel")),
    ],
)
def test_labels_of_each_form_are_numbered(
    tmp_path: Path, usual: ImageData, labels: np.ndarray, names: tuple[str, ...]
) -> None:
    found = load(tmp_path, parts(labels=labels))
    assert (found.fingerprint, found.class_names) == (usual.fingerprint, names)
    if names != ("0", "1", "2"):
        assert mentions(found, *(f"{number} = {name}" for number, name in enumerate(names)))


def test_boolean_labels_and_signs_are_two_classes(tmp_path: Path) -> None:
    assert load(tmp_path, parts(labels=LABELS > 0)).class_names == ("False", "True")
    signs = load(tmp_path, parts(labels=np.where(LABELS > 0, 1, -1)))
    assert signs.class_names == ("-1", "1") and signs.train_labels.tolist() == (LABELS[:12] > 0).astype(int).tolist()


def test_class_names_declare_classes_and_order(tmp_path: Path, usual: ImageData) -> None:
    found = load(tmp_path, parts() | {"class_names": WORDS})
    assert (found.fingerprint, found.class_names) == (usual.fingerprint, tuple(WORDS))
    assert load(tmp_path, parts(labels=WORDS[LABELS]) | {"class_names": WORDS}).fingerprint == usual.fingerprint


def uint8(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.uint8)


def floats(value: float) -> np.ndarray:
    array = np.full((12, 8, 8), 0.5)
    array[3, 2, 1] = value
    return array


ONE_HOT = np.eye(3)[LABELS[:12]]
FORMS = ("(n, h, w)", "(n, c, h, w)")
BOTH = ("train_labels", "test_labels")


@pytest.mark.parametrize(
    ("key", "value", "values"),
    [
        ("train_labels", LABELS[:11], (12, "train_images", 11, "train_labels")),
        ("test_images", uint8(5, 8, 8), (5, "test_images", 4, "test_labels")),
        ("train_images", uint8(12, 64), ("(12, 64)", *FORMS)),
        ("train_images", uint8(12, 1, 8, 8, 1), FORMS),
        ("train_images", uint8(12, 8, 8, 2), ("2 channels", *FORMS)),
        ("train_images", uint8(12, 3, 8, 3), ("(12, 3, 8, 3)", *FORMS)),
        ("train_images", uint8(12, 8, 9), ("test_images", "(1, 8, 8)", "(1, 8, 9)")),
        ("train_images", uint8(0, 8, 8), ("(0, 8, 8)",)),
        ("test_images", uint8(4, 0, 0), ("(4, 0, 0)",)),
        ("train_images", np.full((12, 8, 8), 256), ("int64", "256 to 256", "0 to 255")),
        ("train_images", np.full((12, 8, 8), -1, dtype=np.int16), ("int16", "-1 to -1", "0 to 255")),
        ("train_images", uint8(12, 8, 8).astype("U1"), ("<U1",)),
        ("train_images", uint8(12, 8, 8).astype(complex), ("complex128",)),
        ("train_images", floats(1.0001), ("0.5 to 1.0001", "0 to 1")),
        ("train_images", floats(-1e-6), ("-1e-06 to 0.5", "0 to 1")),
        ("train_images", floats(float("nan")), ("NaN", "0 to 1")),
        ("train_images", floats(float("inf")), ("infinite", "0 to 1")),
        ("train_labels", ONE_HOT * 2, ("(12, 3)",)),
        ("train_labels", ONE_HOT, BOTH),
        ("train_labels", np.zeros((12, 1, 1), dtype=np.int64), ("(12, 1, 1)", "(n,)", "(n, 1)")),
        ("train_labels", np.array(3), ("()", "(n,)", "(n, 1)")),
        ("train_labels", LABELS[:12] - 1, ("-1 to 1",)),
        ("train_labels", np.where(LABELS[:12] == 2, -1, LABELS[:12]), ("-1 to 1",)),
        ("train_labels", LABELS[:12] * 1.5, ("float64",)),
        ("train_labels", LABELS[:12] == 0, BOTH),
        ("train_labels", np.array(list("abc") * 4), BOTH),
        ("train_labels", np.full(12, 2**64 - 1, dtype=np.uint64), (2**64 - 1, "2^63")),
        ("train_labels", np.array(["a", ""] * 6), (6,)),
        ("train_labels", np.array([b"\xff", b"a"] * 6), ("UTF-8",)),
        ("train_labels", LABELS[:12] * 1j, ("complex128",)),
        ("train_labels", np.zeros(12, dtype=np.int64), ("1 class", "2 or more")),
        ("train_labels", LABELS[:12] * 10**12, ("test_labels", "class 1")),
        ("train_labels", LABELS[:12] + 1, ("test_labels", "class 0")),
        ("test_labels", np.array([0, 1, 2, 3]), ("class 3",)),
        ("test_images", uint8(4, 9, 9), ("(1, 9, 9)", "(1, 8, 8)")),
        ("test_images", uint8(4, 8, 8, 3), ("(3, 8, 8)", "(1, 8, 8)")),
        ("class_names", np.array(["a", "b"]), ("class 2",)),
        ("class_names", np.array(["a", "b", "c", "d"]), ("class d",)),
        ("class_names", np.array(["a", "a", "b"]), ("(3,)",)),
        ("class_names", np.arange(3), ("int64",)),
        ("x_train", IMAGES[:12], ("train_images",)),
        ("val_images", uint8(4, 8, 8), ("val_labels",)),
        ("val_labels", LABELS[:4], ("val_images",)),
    ],
)
def test_npz_with_unsuitable_array_is_refused(
    tmp_path: Path, key: str, value: np.ndarray, values: tuple[object, ...]
) -> None:
    refused(tmp_path, parts() | {key: value}, key.split("_")[0], *values)


VALIDATION = {"val_images": uint8(2, 9, 9), "val_labels": LABELS[:2]}


@pytest.mark.parametrize(
    ("arrays", "values"),
    [
        (parts() | VALIDATION, ("val_images", "(1, 9, 9)")),
        (parts(labels=np.eye(3)[LABELS]) | {"class_names": WORDS[:2]}, (3, 2)),
        ({"x": IMAGES[:4], "y": np.arange(4)}, ("6",)),
        ({"x": IMAGES[:6], "y": np.arange(6)}, ("class",)),
        *(({"extra" if name == key else name: array for name, array in parts().items()}, (key, "extra"))
          for key in NAMES),
    ],
    ids=["shape", "class names", "too few to hold out", "class with one image", *NAMES],
)  # fmt: skip
def test_npz_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: Arrays, values: tuple[object, ...]) -> None:
    refused(tmp_path, arrays, *values)


def test_path_without_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.npz", tmp_path):
        refusal(f"npz:{path}", path, error=NotFound)
    refusal(f"npy:{tmp_path / 'x_train.npy'}", tmp_path / "x_train.npy")


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage " * 50, b"PK\x03\x04" + b"\0" * 99, b"\x93NUMPY\x01\0v\0"])
def test_npz_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    refusal(f"npz:{tmp_path / 'bad.npz'}", tmp_path / "bad.npz")


def test_npz_of_other_content_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    refusal(f"npz:{tmp_path / 'one.npy'}", tmp_path / "one.npy")
    with zipfile.ZipFile(tmp_path / "foreign.npz", "w") as archive:
        for key in NAMES:
            archive.writestr(key, "text")
    refusal(f"npz:{tmp_path / 'foreign.npz'}", "train_images")


@pytest.mark.parametrize("kind", ["npz", "pt"])
def test_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    name = save(tmp_path, parts())
    torch.save({"x": torch.zeros(30, 8, 8), "y": torch.zeros(30)}, tmp_path / "my.pt")
    content, cut = (tmp_path / f"my.{kind}").read_bytes(), tmp_path / f"cut.{kind}"
    for tenth in range(10):
        cut.write_bytes(content[: len(content) * tenth // 10])
        refusal(f"{kind}:{cut}", cut)
    broken = bytearray((tmp_path / "my.npz").read_bytes())
    broken[300] ^= 0xFF
    (tmp_path / "my.npz").write_bytes(bytes(broken))
    refusal(name, "train_images")


def test_npz_is_never_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    refused(tmp_path, parts() | {"test_labels": np.array([Evil(trap)], dtype=object)}, "test_labels")
    write_evil(tmp_path / "bare.npz", trap)
    refusal(f"npz:{tmp_path / 'bare.npz'}")
    assert not trap.exists()


def test_npy_folder_is_read_as_archive(tmp_path: Path, usual: ImageData) -> None:
    for key, array in parts().items():
        np.save(tmp_path / f"{key}.npy", array)
    found = data.load(f"npy:{tmp_path}")
    assert found.fingerprint == usual.fingerprint and found.name.startswith("npy-")
    np.save(tmp_path / "test_labels.npy", np.array([{}] * 4, dtype=object))
    refusal(f"npy:{tmp_path}", tmp_path / "test_labels.npy")
    np.savez(tmp_path / "test_labels.npz", x=LABELS)
    (tmp_path / "test_labels.npz").rename(tmp_path / "test_labels.npy")
    refusal(f"npy:{tmp_path}", tmp_path / "test_labels.npy")


def test_torch_files_of_each_form_are_read(tmp_path: Path, usual: ImageData) -> None:
    tensors = {key: torch.from_numpy(array.copy()) for key, array in parts().items()}
    torch.save(tensors, tmp_path / "all.pt")
    for folder in ("each", "pairs"):
        (tmp_path / folder).mkdir()
    for key, tensor in tensors.items():
        torch.save(tensor, tmp_path / "each" / f"{key}.pt")
    for part in ("train", "test"):
        torch.save((tensors[f"{part}_images"], tensors[f"{part}_labels"]), tmp_path / "pairs" / f"{part}.pt")
    for name in ("all.pt", "each", "pairs"):
        assert data.load(f"pt:{tmp_path / name}").fingerprint == usual.fingerprint
    assert data.slug(f"pt:{tmp_path / 'all.pt'}") == "pt-all"
    torch.save(tensors | {"train_images": (tensors["train_images"] / 255).bfloat16()}, tmp_path / "all.pt")
    assert data.load(f"pt:{tmp_path / 'all.pt'}").shape == (1, 8, 8)


def test_torch_files_run_no_code(tmp_path: Path) -> None:
    tensors: Arrays = {key: torch.from_numpy(array.copy()) for key, array in parts().items()}
    for other in (Evil(tmp_path / "trap"), np.zeros(3), torch.nn.Linear(2, 2)):
        torch.save(tensors | {"extra": other}, tmp_path / "bad.pt")
        refusal(f"pt:{tmp_path / 'bad.pt'}", tmp_path / "bad.pt", "torch.save", error=BadData)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    "content",
    [
        *(torch.zeros(3), [1, 2, 3], {"x": torch.zeros(3)}, {1: torch.zeros(3)}, 7, {"x": 1, "y": 2}),
        {"x": torch.zeros(3).to_sparse(), "y": torch.zeros(3)},
    ],
)
def test_torch_files_without_images_and_labels_are_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "bad.pt")
    refusal(f"pt:{tmp_path / 'bad.pt'}", tmp_path / "bad.pt")
