"""Shared fixtures: the folder of real data, and the command as a user types it."""

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from bench.cli import main
from bench.ranks import Ranks

settings.register_profile("any", suppress_health_check=[HealthCheck.too_slow], deadline=None)  # both judge the machine
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


class Typed(NamedTuple):
    """A command that has ended in this process."""

    status: int
    out: str
    err: str


Type = Callable[..., Typed]
Refused = Callable[..., str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Type:
    """Function that runs `bench ...` in this process; texts are split as by a shell, other values are one word each."""

    def run(*parts: object) -> Typed:
        words = [word for part in parts for word in (shlex.split(part) if isinstance(part, str) else [str(part)])]
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        return Typed(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(typed: Type) -> Refused:
    """Function that runs `bench ...`, which must refuse its input in one line; returns the line."""

    def run(*parts: object) -> str:
        status, out, err = typed(*parts)
        assert (status, out) == (2, "") and err.startswith("bench: error: ") and err.count("\n") == 1, out + err
        return err

    return run


@contextmanager
def refuses(error: type[BaseException], *values: object) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Require an error of exactly this type, whose message is one line with all values."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert caught.type is error and "\n" not in message, message
    assert [value for value in values if str(value) not in message] == [], message


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a toy data set with 240 training images, or as many as the module's `TOY_IMAGES`."""
    return write_toy(tmp_path_factory.mktemp("toy"), getattr(request.module, "TOY_IMAGES", 240))


def toy_job(place: Path, method: str = "no-defence", attack: str | None = None, **changes: Any) -> Any:
    """The job of a smoke run on the toy data set of a folder; `changes` are of its settings."""
    from bench.pipeline.resolve import load_job
    from bench.pipeline.settings import Settings

    is_checked = changes.pop("is_checked", True)
    usual = {"teacher": "datalens", "tier": "smoke", "out": place / "runs"}
    return load_job(Settings(method, attack, f"npz:{place}/toy.npz", **usual | changes), budget=is_checked)


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
