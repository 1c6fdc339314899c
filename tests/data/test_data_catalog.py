from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import data
from bench.errors import BenchError


def test_import_and_names_load_no_heavy_library() -> None:
    code = (
        "import sys, bench.data as d; d.names(); d.check('mnist'); d.slug('imagefolder:/x@64'); d.split_names();"
        "print([m for m in ('torch', 'torchvision', 'sklearn', 'numpy', 'PIL', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_described_in_one_line_each() -> None:
    found = data.names()
    assert {"digits", "celeba-g", "medmnist", "imagefolder:PATH", "npz:PATH"} < set(found)
    assert all(line and "\n" not in line for line in found.values())


@pytest.mark.parametrize(
    "name", ["digits", "mnist", "fmnist", "cifar10", "npz:a.npz", "imagefolder:b", "imagefolder:b@8"]
)
def test_check_accepts(name: str) -> None:
    data.check(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnits", "no data set called 'mnits'. Did you mean 'mnist'?"),
        ("", "no data set called ''"),
        ("MNIST", "no data set called 'MNIST'"),
        ("npz", "no data set called 'npz'"),
        ("npz:", "names no path: write npz:PATH"),
        ("imagefolder:", "names no path: write imagefolder:PATH"),
        ("imagefolder:@32", "names no path: write imagefolder:PATH"),
        ("imagefolder:x@7", "asks for size 7: expected 8 to 256"),
        ("imagefolder:x@257", "asks for size 257"),
        ("mnist:x", "mnist takes no argument; write --dataset mnist"),
        ("mnist:", "no data set called 'mnist:'"),
        ("mnist@7", "asks for size 7: expected 8 to 256"),
        ("lfw:four", "N is 'four'; expected a whole number of at least 5"),
        ("celeba-id:4", "N is '4'; expected a whole number of at least 5"),
        ("medmnist", "lacks its argument: write medmnist:ARGUMENT, which one, such as pathmnist"),
        ("medmnist:path", "no set called 'path'; expected one of pathmnist"),
        ("zip:x", "no data set called 'zip:x'"),
    ],
)
def test_bad_names_are_refused_by_check_slug_and_load(name: str, says: str) -> None:
    for use in (data.check, data.slug, data.load):
        with pytest.raises(BenchError) as caught:
            use(name)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("digits", "digits"),
        ("npz:/a/pathmnist.npz", "npz-pathmnist"),
        ("npz:/a/Ünser Bestes (2).npz", "npz-nser-bestes-2"),
        ("npz:/a/path@64.npz", "npz-path-64"),
        ("imagefolder:/a/chest_xray", "imagefolder-chest_xray"),
        ("imagefolder:/a/chest_xray/", "imagefolder-chest_xray"),
        ("imagefolder:/a/chest_xray@32", "imagefolder-chest_xray"),
        ("imagefolder:/a/chest_xray@64", "imagefolder-chest_xray-64px"),
        ("imagefolder:/a/me@home", "imagefolder-me-home"),
        ("imagefolder:/a/b/..", "imagefolder-a"),
        ("npz:/a/path.npz@32", "npz-path-32px"),
        ("mnist@32", "mnist-32px"),
        ("mnist@rgb", "mnist-rgb"),
        ("mnist@grey", "mnist"),
        ("mnist@32@rgb", "mnist-rgb-32px"),
        ("cifar10@grey", "cifar10-grey"),
        ("celeba-id:25@32@grey", "celeba-id-25-grey-32px"),
        ("npz:/a/path.npz@rgb", "npz-path-rgb"),
        ("imagefolder:/a/x@64@grey", "imagefolder-x-grey-64px"),
        ("pt:/a/all.pt@16", "pt-all-16px"),
        ("pt:/a/b", "pt-b"),
        ("npy:/a/b@rgb", "npy-b-rgb"),
        ("hf:/a/b@32", "hf-b"),
        ("mnist@28", "mnist"),
        ("celeba-id:20", "celeba-id"),
        ("celeba-id:25@32", "celeba-id-25-32px"),
        ("medmnist:pathmnist", "medmnist-pathmnist"),
    ],
)
def test_slug(name: str, label: str) -> None:
    assert data.slug(name) == label


@pytest.mark.parametrize(
    "label", ["mnist-rgb", "cifar10-grey-16px", "celeba-id-25-grey-32px", "lfw-10-32px", "usps-rgb", "digits"]
)
def test_typed_is_the_name_that_has_the_label(label: str) -> None:
    assert data.slug(data.typed(label)) == label


def test_facts_of_other_channels_have_that_shape() -> None:
    assert data.facts("mnist-rgb").shape == (3, 28, 28) and data.facts("cifar10-grey-16px").shape == (1, 16, 16)


@pytest.mark.parametrize(("name", "channels"), [("digits@rgb", 3), ("digits@24@rgb", 3), ("digits@grey", 1)])
def test_channels_of_published_images(name: str, channels: int) -> None:
    found, own = data.load(name), data.load("digits")
    assert found.shape[0] == channels and found.name == data.slug(name)
    assert bool((found.train_images == found.train_images[:, :1]).all())
    assert (found.fingerprint == own.fingerprint) == (name == "digits@grey")


@pytest.mark.parametrize(
    "name", ["imagefolder:/", "npz:/数据.npz", "imagefolder:/../..", "npz:" + "x" * 300, f"imagefolder:{'y' * 300}@64"]
)
def test_slug_is_always_a_safe_file_name(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]+[a-z0-9_]", data.slug(name))
    assert len(data.slug(name)) <= 64


def test_slug_keeps_the_size_of_long_names_and_tells_foreign_scripts_apart() -> None:
    assert data.slug(f"imagefolder:{'y' * 300}@64").endswith("-64px")
    assert data.slug("npz:数据.npz") != data.slug("npz:图像.npz")


def test_slug_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path / "pets")
    assert data.slug("imagefolder:.") == "imagefolder-pets"


def test_to_float() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    found = data.to_float(images)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.arange(256).view(1, 1, 16, 16) / 255)
    assert images.dtype == torch.uint8
    with pytest.raises(TypeError, match="float32"):
        data.to_float(found)


def _tiny(name: str = "tiny") -> data.ImageData:
    images = torch.arange(4 * 4, dtype=torch.uint8).view(4, 1, 2, 2)
    labels = torch.tensor([0, 1, 0, 1])
    return data.ImageData(name, images, labels, images[:2].clone(), labels[:2].clone(), ("a", "b"))


def test_fingerprint_sees_every_part_and_not_the_name() -> None:
    seen = {_tiny().fingerprint}
    assert re.fullmatch("[0-9a-f]{16}", _tiny().fingerprint)
    assert _tiny("other").fingerprint in seen
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = _tiny()
        values = getattr(changed, part)
        values.view(-1)[1] = 1 - int(values.view(-1)[1])
        assert changed.fingerprint not in seen
        seen.add(changed.fingerprint)
    tiny = _tiny()
    args = (tiny.train_labels, tiny.test_images.view(2, 1, 1, 4), tiny.test_labels, ("a", "b"))
    assert data.ImageData("tiny", tiny.train_images.view(4, 1, 1, 4), *args).fingerprint not in seen


def test_fingerprint_ignores_memory_layout() -> None:
    tiny = _tiny()
    strided = tiny.train_images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    other = data.ImageData("tiny", strided, tiny.train_labels, tiny.test_images, tiny.test_labels, ("a", "b"))
    assert other.fingerprint == tiny.fingerprint


def test_fingerprint_is_computed_once() -> None:
    tiny = _tiny()
    first = tiny.fingerprint
    tiny.train_images.zero_()
    assert tiny.fingerprint == first


def test_shape_and_classes() -> None:
    assert _tiny().shape == (1, 2, 2)
    assert _tiny().classes == 2


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
def test_parts_that_do_not_fit_are_a_defect(part: str, value: torch.Tensor) -> None:
    tiny = _tiny()
    parts = {key: getattr(tiny, key) for key in ("train_images", "train_labels", "test_images", "test_labels")}
    with pytest.raises(RuntimeError, match=f"tiny: {part.split('_')[0]} {part.split('_')[1]}"):
        data.ImageData(name="tiny", class_names=("a", "b"), **(parts | {part: value}))
