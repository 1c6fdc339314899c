"""Shared fixtures: the folder of real data, and the command as a user types it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from bench.ranks import Ranks

settings.register_profile("any", suppress_health_check=[HealthCheck.too_slow])  # that is said of the machine
settings.load_profile("any")
settings.register_profile("ci", settings.get_profile("any"), derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")  # a submission is judged by its change, not by the examples of the day

ROOT = Path(__file__).resolve().parent.parent
BENCH = [sys.executable, "-m", "bench"]
USUAL = [1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0]
"""Coins of seed 1."""


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The root of real data sets, or a skip that says why."""
    for place in (os.environ.get("BENCH_DATA"), ROOT.parent / "shared" / "data"):
        if place and (Path(place) / "MNIST" / "raw").is_dir():
            return Path(place)
    pytest.skip("no real data: set BENCH_DATA or put them at ../shared/data")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two ranks: processes on the CPU that talk through gloo; begun by the first training over them."""
    with Ranks((torch.device("cpu"), torch.device("cpu"))) as two:
        yield two


@pytest.fixture
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run networks, draws and `.float()` in float64, so that golden values hold on every processor and torch release.

    In float32 they do not: Adam divides a gradient by its own size, so that a rounding error of 0 becomes a full step.
    """
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m bench ...` in an empty directory; returns the finished process with its output."""

    def run(*arguments: object, timeout: float = 900, **extra: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", **extra}
        command = [*BENCH, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout)

    return run


def write_toy(
    folder: Path, train: int, shape: tuple[int, int, int] = (1, 16, 16), classes: int = 4, test: int = 40
) -> Path:
    """Write `toy.npz` in `folder`: noise, in which each class has one bright cell; 1 or 3 channels."""
    rng = np.random.default_rng(0)
    channels, side, _ = shape
    across = math.ceil(math.sqrt(classes))
    cell = side // across

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, classes, n)
        images = rng.integers(0, 60, (n, side, side, channels), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            y, x = divmod(int(label), across)
            image[cell * y : cell * (y + 1), cell * x : cell * (x + 1)] += 150
        return images if channels == 3 else images[..., 0], labels

    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(folder / "toy.npz", **dict(zip(names, (*part(train), *part(test)), strict=True)))
    return folder


@pytest.fixture(autouse=True)
def brief_generators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tests of methods, generators that learn from the student take two small steps a round instead of thirty."""
    if request.path.parent == ROOT / "tests" / "methods":
        from bench.distillation import image_source

        monkeypatch.setattr(image_source, "STEPS", 2)
        monkeypatch.setattr(image_source, "BATCH", 16)


@pytest.fixture(scope="session")
def usual_draws() -> None:
    """Skips where torch draws other Bernoulli numbers of a seed than where golden students were made: some builds draw
    them, exponential ones and so dropout and samples without replacement by MKL."""
    drawn = torch.empty(24).bernoulli_(0.5, generator=torch.Generator().manual_seed(1)).int().tolist()
    if drawn != USUAL:
        pytest.skip(f"torch {torch.__version__} draws other Bernoulli numbers than golden students were made with")
