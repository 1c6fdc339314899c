"""Every method and every attack on the second device, from data to record: nothing of the host among its tensors.

The host may wait for the device about once per logged step at any one line, and at lines that are no loop: then nothing
is hidden that would keep a GPU idle. `make device` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import write_toy
from second_device import Generator, SecondDevice, register

from bench import progress, registry
from bench.pipeline import run
from bench.pipeline.job import load_job
from bench.pipeline.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this release of torch has no devices in Python",
)
FEW = 100
"""Waits at one line that are too few for a loop: weights are written tensor by tensor, every model is asked once."""
LOOPS = {
    "bench/nets/generators.py": "attacks/dafl.py averages the statistics of batch normalisation, once, before it draws",
    "attacks/rmia.py": "one number is chosen by the areas under curves of the references, once",
}
"""Files whose lines wait more often, and why they may."""
FAST = [("dp-sgd", None, "bf16"), ("dp-merf", "gan-leaks", "fp32")]
EVERY = [(method, None, "fp32") for method in registry.entries("method")]
EVERY += [("no-defence", attack, "fp32") for attack in registry.entries("attack")]
EVERY += [(method, None, "bf16") for method in ("dgd", "dp-gan", "dp-teacher", "fed-dpsd", "fedavg", "rr")]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), 160)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that progress bars were told of."""
    steps: list[int] = []

    @contextmanager
    def track(stage: str, total: int) -> Iterator[Callable[[int], None]]:
        yield steps.append

    monkeypatch.setattr(progress, "track", track)
    monkeypatch.setattr(torch, "Generator", Generator)
    return steps


CASES = [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in dict.fromkeys(FAST + EVERY)]


@pytest.mark.parametrize(("method", "attack", "precision"), CASES)
def test_it_runs_there_and_waits_seldom(
    toy: Path, logged: list[int], method: str, attack: str | None, precision: str
) -> None:
    asked = Settings(
        method=method,
        attack=attack,
        dataset=f"npz:{toy}/toy.npz",
        teacher="datalens",
        tier="smoke",
        out=toy / precision,
        precision=precision,  # type: ignore[arg-type]
    )
    job = replace(load_job(asked), device=register())
    with SecondDevice(ROOT) as device:
        record = run.run(job, 0).record
    assert record.status in ("ok", "inconclusive", "skipped"), record.reason
    allowed = max(FEW, sum(logged))
    loops = {line: count for line, count in device.waits.items() if count > allowed and line.split(":")[0] not in LOOPS}
    assert not loops
