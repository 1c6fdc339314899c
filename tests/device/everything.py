"""Runs for a device other than the CPU: every method, every attack, a method of each kind in bfloat16, audits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import progress, registry
from bench.pipeline.job import Job
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings

FEW = 100
"""Number of waits at one line below which it is not in a loop: weights are stored tensor by tensor, for example."""
LOOPS = {
    "bench/nets/generators.py": "attacks/dafl.py averages the statistics of batch normalisation, once, before it draws",
    "attacks/rmia.py": "one number is chosen by the areas under curves of the references, once",
}
"""Files whose lines wait more often, and why they may."""
AUDITED = ("dpsd", "dp-dfd", "class-moments", "pate", "no-defence")
"""Methods for audits by kind of queries: noisy responses, moments, an ensemble, none."""
EVERY = [(method, None, "fp32") for method in registry.entries("method")]
EVERY += [("no-defence", attack, "fp32") for attack in registry.entries("attack")]
EVERY += [(method, None, "bf16") for method in ("dgd", "dp-gan", "dp-teacher", "fed-dpsd", "fedavg", "rr")]
TAUGHT = (("teacher", "private-features"), ("conversion", "transcribe"), ("typical", "on"))
"""Options of `dp-teacher` with which a student learns from typical queries."""


def steps_logged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every progress bar adds its steps from now on."""
    steps: list[int] = []

    @contextmanager
    def track(stage: str, total: int) -> Iterator[Callable[[int], None]]:
        yield steps.append

    monkeypatch.setattr(progress, "track", track)
    return steps


def job_on(
    device: torch.device,
    toy: Path,
    method: str,
    attack: str | None,
    precision: str,
    options: tuple[tuple[str, str], ...] = (),
) -> Job:
    """A job of tier smoke on the device, of the toy images below a folder."""
    asked = Settings(
        method=method,
        attack=attack,
        dataset=f"npz:{toy}/toy.npz",
        teacher="datalens",
        tier="smoke",
        out=toy / precision,
        precision=precision,  # type: ignore[arg-type]
        method_options=options,
    )
    return replace(load_job(asked), device=device)
