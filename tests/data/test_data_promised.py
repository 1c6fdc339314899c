"""Data sets of other packages that are not what they say: one line each, before anything is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributions import install

from bench import data
from bench.errors import BenchError

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
CALLED = iter(f"odd{number}" for number in range(100))
"""Modules stay imported, so that each needs another name."""


def odd(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "pass", of: str = "Odd") -> str:
    """The name of a data set of another distribution, which has a fault."""
    name = next(CALLED)
    install(folder, f"[bench.datasets]\n{name} = {name}:{of}\n", **{name: SOURCE.format(name=name, fault=fault)})
    monkeypatch.syspath_prepend(folder)
    return name


def test_one_without_a_fault_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = odd(tmp_path, monkeypatch)
    assert data.load(name).shape == (1, 16, 16)
    assert data.load(f"{name}@32").name == f"{name}-32px"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "raise ValueError('no such year')",
            r": ValueError: no such year at .*\.py:\d+; fix its plug-in, or",
        ),
        ("raise KeyError('year')", r": KeyError: 'year' at .*\.py:\d+; fix"),
        ("open('/nowhere/at/all')", ": FileNotFoundError: .*'/nowhere/at/all' at .*; fix"),
        ("images = images / 255", ": RuntimeError: .*train images are torch.float32"),
        ("labels = labels + 1", ": RuntimeError: .*train labels leave the range 0 to 1"),
        ("return None", " of another package reads NoneType; expected ImageData; fix the plug-in"),
        ("name = '../Odd'", r" of another package reads images called '\.\./Odd'; expected '"),
        ("name = name + '-../x'", " of another package reads images called '"),
        ("name = 'mnist'", " of another package reads images called 'mnist'; expected '"),
        ("images = images[:, :, :8]", " of another package reads images of 1x8x16; expected 1 or 3 channels, and as"),
        ("images = images.repeat(1, 4, 1, 1)", " of another package reads images of 4x16x16; expected 1 or 3 channels"),
        ("images = images.repeat(1, 3, 1, 1)", " of another package reads images of 3x16x16; its facts say 1x16x16"),
        ("names = ('a', 'c')", " of another package reads 2 classes that are not those of its facts, a, b"),
    ],
)
def test_what_is_not_as_it_says_is_told_in_one_line(
    fault: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = odd(tmp_path, monkeypatch, fault)
    with pytest.raises(BenchError, match=f"^data set '{name}'{said}"):
        data.load(name)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("Abstract", "': TypeError: Can't instantiate abstract class Abstract"),
        ("Nothing", "': odd.*:Nothing .*one class that extends Dataset"),
        ("ImageData", "': odd.*:ImageData "),
        ("Bare", "': TypeError: its `facts` are None; expected DatasetFacts"),
    ],
)
def test_a_class_that_is_no_data_set_is_told_in_one_line(
    of: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = odd(tmp_path, monkeypatch, of=of)
    with pytest.raises(BenchError, match=f"^data set '{name}{said}"):
        data.check(name)
