"""Data sets by name, their common form, and data sets of other packages that break the contract."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refuses
from distributions import install

from bench import data
from bench.data import ImageData
from bench.errors import BadData, BadOption, BadPlugin, BenchError, UnknownName

Odd = Callable[..., str]

HEAVY = "print([m for m in ('torch', 'torchvision', 'sklearn', 'numpy', 'PIL', 'pandas') if m in sys.modules])"


def loaded_libraries(code: str) -> str:
    """Run code in a new process and return which large libraries it has imported."""
    code = f"import sys, bench.data as d; {code}; {HEAVY}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_names_need_no_large_library() -> None:
    assert loaded_libraries("d.names(); d.check('mnist'); d.slug('imagefolder:/x@64'); d.split_names()") == "[]"


@pytest.mark.parametrize("name", [name for name in data.names() if ":" not in name])
def test_facts_need_no_large_library(name: str) -> None:
    assert loaded_libraries(f"d.facts({name!r}); d.dataset({name!r}).missing(d.root_folder(None))") == "[]"


def test_names_have_one_line_each() -> None:
    found = data.names()
    assert {"digits", "celeba-g", "medmnist", "imagefolder:PATH", "npz:PATH"} < set(found)
    assert all(line and "\n" not in line for line in found.values())


@pytest.mark.parametrize(
    ("name", "error", "values"),
    [
        ("mnits", UnknownName, ("'mnits'", "'mnist'")),
        *((name, UnknownName, (f"'{name}'",)) for name in ("", "MNIST", "npz", "mnist:", "zip:x")),
        ("npz:", BadOption, ("npz:PATH",)),
        ("imagefolder:", BadOption, ("imagefolder:PATH",)),
        ("imagefolder:@32", BadOption, ("imagefolder:PATH",)),
        ("imagefolder:x@7", BadOption, ("7", "8 to 256")),
        ("imagefolder:x@257", BadOption, ("257", "8 to 256")),
        ("mnist@7", BadOption, ("7", "8 to 256")),
        ("mnist:x", BadOption, ("--dataset mnist",)),
        ("lfw:four", BadOption, ("'four'", "5")),
        ("celeba-id:4", BadOption, ("'4'", "5")),
        ("medmnist", BadOption, ("medmnist:ARGUMENT", "pathmnist")),
        ("medmnist:path", BadOption, ("'path'", "pathmnist")),
    ],
)
@pytest.mark.parametrize("use", [data.check, data.slug, data.load])
def test_bad_name_is_refused(use: Any, name: str, error: type[BenchError], values: tuple[str, ...]) -> None:
    with refuses(error, *values):
        use(name)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("digits", "digits"),
        ("npz:/a/pathmnist.npz", "npz-pathmnist"),
        ("npz:/a/Ünser Bestes (2).npz", "npz-nser-bestes-2"),
        ("npz:/a/path@64.npz", "npz-path-64"),
        ("imagefolder:/a/chest_xray/", "imagefolder-chest_xray"),
        ("imagefolder:/a/chest_xray@32", "imagefolder-chest_xray"),
        ("imagefolder:/a/chest_xray@64", "imagefolder-chest_xray-64px"),
        ("imagefolder:/a/me@home", "imagefolder-me-home"),
        ("imagefolder:/a/b/..", "imagefolder-a"),
        ("npz:/a/path.npz@32", "npz-path-32px"),
        ("mnist@32", "mnist-32px"),
        ("mnist@rgb", "mnist-rgb"),
        ("mnist@grey", "mnist"),
        ("mnist@28", "mnist"),
        ("mnist@32@rgb", "mnist-rgb-32px"),
        ("cifar10@grey", "cifar10-grey"),
        ("celeba-id:20", "celeba-id"),
        ("celeba-id:25@32@grey", "celeba-id-25-grey-32px"),
        ("npz:/a/path.npz@rgb", "npz-path-rgb"),
        ("imagefolder:/a/x@64@grey", "imagefolder-x-grey-64px"),
        ("pt:/a/all.pt@16", "pt-all-16px"),
        ("pt:/a/b", "pt-b"),
        ("npy:/a/b@rgb", "npy-b-rgb"),
        ("hf:/a/b@32", "hf-b"),
        ("medmnist:pathmnist", "medmnist-pathmnist"),
    ],
)
def test_slug_is_label_of_name(name: str, label: str) -> None:
    assert data.slug(name) == label


@pytest.mark.parametrize(
    "label", ["mnist-rgb", "cifar10-grey-16px", "celeba-id-25-grey-32px", "lfw-10-32px", "usps-rgb", "digits"]
)
def test_typed_is_inverse_of_slug(label: str) -> None:
    assert data.slug(data.typed(label)) == label


@pytest.mark.parametrize(
    "name", ["imagefolder:/", "npz:/数据.npz", "imagefolder:/../..", "npz:" + "x" * 300, f"imagefolder:{'y' * 300}@64"]
)
def test_slug_is_a_safe_file_name(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]{1,63}[a-z0-9_]", data.slug(name))
    assert data.slug(name).endswith("-64px") == name.endswith("@64")
    assert data.slug("npz:数据.npz") != data.slug("npz:图像.npz")


def test_slug_resolves_working_directory(here: Path) -> None:
    assert data.slug("imagefolder:.") == f"imagefolder-{here.name}"


@pytest.mark.parametrize(("name", "channels"), [("digits@rgb", 3), ("digits@24@rgb", 3), ("digits@grey", 1)])
def test_load_changes_channels(name: str, channels: int) -> None:
    found, own = data.load(name), data.load("digits")
    assert found.shape[0] == channels and found.name == data.slug(name)
    assert bool((found.train_images == found.train_images[:, :1]).all())
    assert (found.fingerprint == own.fingerprint) == (name == "digits@grey")


def test_to_float_accepts_uint8_only() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    found = data.to_float(images)
    assert found.dtype == torch.float32 and torch.equal(found, torch.arange(256).view(1, 1, 16, 16) / 255)
    with pytest.raises(TypeError):
        data.to_float(found)


def tiny(name: str = "tiny", **changes: object) -> ImageData:
    images, labels = torch.arange(16, dtype=torch.uint8).view(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
    parts = {"train_images": images, "train_labels": labels, "test_images": images[:2], "test_labels": labels[:2]}
    clones = {key: value.clone() for key, value in parts.items()}
    return ImageData(name, class_names=("a", "b"), **(clones | changes))  # type: ignore[arg-type]


def test_fingerprint_covers_each_part_but_not_the_name() -> None:
    seen = {tiny().fingerprint}
    assert re.fullmatch("[0-9a-f]{16}", tiny().fingerprint) and tiny("other").fingerprint in seen
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = tiny()
        values = getattr(changed, part).view(-1)
        values[1] = 1 - int(values[1])
        assert changed.fingerprint not in seen
        seen.add(changed.fingerprint)
    reshaped = {part: getattr(tiny(), part).reshape(-1, 1, 1, 4) for part in ("train_images", "test_images")}
    assert tiny(**reshaped).fingerprint not in seen


def test_fingerprint_ignores_memory_layout_and_is_cached() -> None:
    first = tiny()
    strided = first.train_images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    expected = first.fingerprint
    assert tiny(train_images=strided).fingerprint == expected
    first.train_images.zero_()
    assert first.fingerprint == expected and (first.shape, first.classes) == ((1, 2, 2), 2)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("train_images", torch.zeros(4, 1, 2, 2)),
        ("train_images", torch.zeros(4, 2, 2, dtype=torch.uint8)),
        ("test_images", torch.zeros(2, 3, 2, 2, dtype=torch.uint8)),
        ("train_labels", torch.zeros(3, dtype=torch.int64)),
        ("train_labels", torch.zeros(4, dtype=torch.int32)),
        ("test_labels", torch.tensor([0, 2])),
        ("test_labels", torch.tensor([0, -1])),
    ],
)
def test_image_data_inconsistent_parts_are_a_defect(part: str, value: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=part.replace("_", " ")):
        tiny(**{part: value})


SOURCE = """
from bench.data import Dataset, DatasetFacts, ImageData

class Odd(Dataset):
    facts = DatasetFacts(shape=(1, 16, 16), class_names=("a", "b"))

    def load(self, root, download):
        import torch

        images, labels = torch.zeros(12, 1, 16, 16, dtype=torch.uint8), torch.arange(12) % 2
        name, names = "{name}", ("a", "b")
        {fault}
        return ImageData(name, images, labels, images, labels, names)

class Abstract(Dataset):
    pass

class Bare(Odd):
    facts = None
"""
MODULES = iter(f"odd{number}" for number in range(100))
"""Modules stay imported, so that each needs another name."""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Odd:
    """Function that installs a data set of another distribution with a fault, and returns its name."""

    def made(fault: str = "pass", cls: str = "Odd") -> str:
        name = next(MODULES)
        install(tmp_path, f"[bench.datasets]\n{name} = {name}:{cls}\n", **{name: SOURCE.format(name=name, fault=fault)})
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return made


def test_foreign_data_set_is_read(odd: Odd) -> None:
    name = odd()
    assert data.load(name).shape == (1, 16, 16) and data.load(f"{name}@32").name == f"{name}-32px"


@pytest.mark.parametrize(
    ("fault", "error", "value"),
    [
        ("raise ValueError('no such year')", BadPlugin, "ValueError: no such year at "),
        ("raise KeyError('year')", BadPlugin, "KeyError: 'year' at "),
        ("open('/nowhere/at/all')", BadPlugin, "'/nowhere/at/all'"),
        ("images = images / 255", BadPlugin, "train images are torch.float32"),
        ("labels = labels + 1", BadPlugin, "0 to 1"),
        ("return None", BadData, "NoneType"),
        ("name = '../Odd'", BadData, "'../Odd'"),
        ("name = name + '-../x'", BadData, "-../x'"),
        ("name = 'mnist'", BadData, "'mnist'"),
        ("images = images[:, :, :8]", BadData, "1x8x16"),
        ("images = images.repeat(1, 4, 1, 1)", BadData, "4x16x16"),
        ("images = images.repeat(1, 3, 1, 1)", BadData, "1x16x16"),
        ("names = ('a', 'c')", BadData, "a, b"),
    ],
)
def test_foreign_data_set_with_fault_is_refused(odd: Odd, fault: str, error: type[BenchError], value: str) -> None:
    name = odd(fault)
    with refuses(error, f"'{name}'", value):
        data.load(name)


@pytest.mark.parametrize("cls", ["Abstract", "Nothing", "ImageData", "Bare"])
def test_foreign_class_that_is_not_a_data_set_is_refused(odd: Odd, cls: str) -> None:
    name = odd(cls=cls)
    with refuses(BadPlugin, f"'{name}'"):
        data.check(name)
