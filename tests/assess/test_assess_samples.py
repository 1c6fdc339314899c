"""Released synthetic images: a release that memorises is found, one of other records is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models_made import images
from torch import Tensor

import bench
from bench.assess.from_samples import BANDWIDTH, memorising_release
from bench.cli import main
from bench.data import to_float
from bench.errors import BenchError, UnknownName

N = 1500


def _saved(path: Path, pixels: Tensor) -> Path:
    np.savez(path, images=(pixels[:, 0] * 255).round().byte().numpy())
    return path


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return images(N, 0).save(folder / "members.npz"), images(2 * N, 1).save(folder / "others.npz")


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    released = memorising_release(images(N, 0).images, 2000, 3)
    return _saved(tmp_path_factory.mktemp("copying") / "s.npz", released)


def test_memorising_release_is_near_the_members() -> None:
    given = images(50, 0).images
    drawn = memorising_release(given, 4000, 0)
    assert drawn.shape == (4000, 1, 8, 8) and float(drawn.min()) >= 0 and float(drawn.max()) <= 1
    apart = torch.cdist(drawn.flatten(1), to_float(given).flatten(1)).min(1).values / 8
    assert 0.5 * BANDWIDTH < float(apart.mean()) < 1.05 * BANDWIDTH  # clamping to [0, 1] takes some of the noise
    assert torch.equal(drawn, memorising_release(given, 4000, 0))


@pytest.mark.thorough
def test_assess_samples_finds_a_release_that_memorises(sets: tuple[Path, Path], copying: Path, tmp_path: Path) -> None:
    found = bench.assess(samples=copying, members=sets[0], nonmembers=sets[1], report=tmp_path / "r")
    assert found.kind == "samples" and found.verdict.decision == "do not release"
    assert {attack.name for attack in found.attacks} == {"gan-leaks", "domias"}
    assert all(attack.auc.low > 0.8 and attack.has_power for attack in found.attacks)
    assert {path.name for path in (tmp_path / "r").iterdir()} >= {"report.html", "report.pdf", "assessment.json"}


@pytest.mark.thorough
def test_assess_samples_finds_nothing_in_images_of_other_records(sets: tuple[Path, Path], tmp_path: Path) -> None:
    other = _saved(tmp_path / "s.npz", memorising_release(images(N, 7).images, 2000, 3))
    found = bench.assess(samples=other, members=sets[0], nonmembers=sets[1])
    assert all(abs(attack.auc.value - 0.5) < 0.05 and attack.has_power for attack in found.attacks)
    assert found.verdict.decision in ("release", "cannot tell")


@pytest.mark.thorough
def test_assess_samples_reads_a_folder_and_returns_the_status(sets: tuple[Path, Path], tmp_path: Path) -> None:
    folder = images(N, 0).folder(tmp_path / "released")
    words = ["assess", "--samples", str(folder), "--members", str(sets[0]), "--nonmembers", str(sets[1]), "--size", "8"]
    assert main([*words, "--attacks", "gan-leaks"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"attacks": ["lira"]},
        {"samples": "missing"},
        {"scores": ("a.csv", "b.csv")},
        {"model": torch.nn.Flatten()},
        {"members": None},
    ],
    ids=str,
)
def test_assess_samples_refuses(sets: tuple[Path, Path], copying: Path, change: dict[str, object]) -> None:
    given: dict[str, object] = {"samples": copying, "members": sets[0], "nonmembers": sets[1]} | change
    with pytest.raises(UnknownName if "attacks" in change else BenchError):
        bench.assess(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((5, 8, 8), np.uint8)},
        {"images": np.zeros((50, 9, 9), np.uint8)},
        {"images": np.zeros((50, 3, 8, 8), np.uint8)},
        {"pictures": np.zeros((50, 8, 8), np.uint8)},
        {"images": np.full((50, 8, 8), np.nan, np.float32)},
    ],
    ids=("few", "size", "channels", "name", "nan"),
)
def test_assess_samples_refuses_archive(sets: tuple[Path, Path], tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(BenchError):
        bench.assess(samples=tmp_path / "s.npz", members=sets[0], nonmembers=sets[1])
