"""The contract over the data sets, and their facts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import data, plugins, testing

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "data"
"""Where tests/data/test_data_published.py unpacks archives."""
NAMES = list(plugins.entries("data set"))
TYPED = [*(set(NAMES) - {"medmnist"}), "medmnist:breastmnist", "usps@28", "lfw:60", "celeba-id:25"]
"""Names as on the command line: medmnist requires an argument."""


@pytest.mark.parametrize("check", [name for name in dir(testing.DatasetContract) if name.startswith("test_")])
@pytest.mark.parametrize("name", sorted(TYPED))
def test_contract(name: str, check: str, request: pytest.FixtureRequest) -> None:
    plugin = data.dataset(data.base_name(data.slug(name)))
    root = Path("nowhere") if not plugin.missing(Path("nowhere")) else request.getfixturevalue("data_root")
    root = root if not plugin.missing(root) else UNPACKED
    if plugin.missing(root):
        pytest.skip(f"no {name} in {request.getfixturevalue('data_root')}, nor in {root}")
    getattr(type(f"Test_{name}", (testing.DatasetContract,), {"name": name, "root": root})(), check)()


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_known_without_a_library(name: str) -> None:
    code = (
        f"import sys, bench.data as d; d.facts({name!r}); d.dataset({name!r}).missing(d.root_folder(None));"
        "print([m for m in ('torch', 'torchvision', 'sklearn', 'numpy', 'PIL', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_papers_settings_are_the_papers() -> None:
    facts = {name: data.facts(name) for name in ("digits", "mnist", "fmnist", "cifar10", "npz-mnist")}
    assert [f.prior for f in facts.values()] == ["pen", "pen", "shapes", "shapes", "shapes"]
    assert [f.teachers for f in facts.values()] == [48, None, None, None, None]
    assert [f.dp_dfd_images for f in facts.values()] == [120_000, 50_000, 120_000, 220_000, 120_000]
    assert [f.mmd_bandwidth for f in facts.values()] == [None, 105.0, 127.0, None, None]
    mnist = (512, 4680, 0.5)
    assert [f.dp_sgd for f in facts.values()] == [mnist, mnist, (2048, 1160, 4.0), (1024, 1440, 1.0), mnist]
    assert [f.augments_psg for f in facts.values()] == [True, True, True, False, False]
    assert [f.other for f in facts.values()] == [None, "fmnist", "mnist", None, None]
    assert [f.is_public for f in facts.values()] == [True, True, True, True, False]
    assert {f.candidates for f in facts.values()} == {3}


@pytest.mark.thorough
def test_what_is_known_is_what_the_readers_read(data_root: Path) -> None:
    for name in ("digits", "mnist"):
        images = data.load(name, data_root)
        known = data.facts(images.name)
        for split in ("iid", "disjoint-low", "disjoint-high"):
            private = data.private_domain(images, data.split(images, split))
            assert known.classes_of(split) == private.class_names


def test_versions_of_a_data_set_share_its_facts() -> None:
    assert data.facts("cifar10-jpeg") == data.facts("cifar10") != data.facts("cifar100")
    assert data.facts("imagefolder-mnist") == data.DatasetFacts()


def test_classes_are_the_publishers() -> None:
    from torchvision.datasets import FashionMNIST

    assert data.facts("fmnist").class_names == tuple(FashionMNIST.classes)


def test_files_of_a_library_are_the_library_s() -> None:
    from torchvision.datasets import CIFAR10

    listed = {name for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]} | {CIFAR10.meta["filename"]}
    files = data.dataset("cifar10").files(Path("root"))
    assert {file.name for file in files} == listed and files[0].parent == Path("root") / CIFAR10.base_folder
