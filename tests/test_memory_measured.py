"""Estimated memory of private training, compared with the peak of a process that runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from conftest import ROOT, write_toy
from safetensors.torch import save_file

from baselines.private_features import PrivateFeatures
from bench.config import configure
from bench.pipeline import memory
from bench.pipeline.job import Job
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit

RUN = """
import sys
sys.path.insert(0, "tests")
import torch
from pathlib import Path
from bench.pipeline import memory
from bench.pipeline.run import run
from test_memory_measured import JOBS
torch.set_num_threads(1)
job = JOBS[sys.argv[1]](Path(sys.argv[2]))
estimated = memory.estimate(job).peak
if (record := run(job, 0).record).status == "failed":
    raise SystemExit(record.reason)
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))  # getrusage has the parent's
print(estimated, 1024 * int(peak.split()[1]))
"""
CNN = "test_efficientnet"
GROUPS = 10


def job(folder: Path, method: str, unit: Unit = Unit.EXAMPLE, weights: Path | None = None, **options: object) -> Job:
    budget = Budget(8.0, account="accounted", unit=unit)
    given = tuple((name, str(value)) for name, value in options.items())
    settings = Settings(
        method, None, f"npz:{folder}/toy.npz", tier="smoke", device="cpu", teacher="datalens", out=folder / "runs",
        budget=budget, method_options=given, pretrained=weights,
    )  # fmt: skip
    return load_job(settings)


def tuning(folder: Path, network: str = "resnet18", side: int = 224, tune: str = "bias", **options: object) -> Job:
    write_toy(folder, 80, (3, 32, 32))
    weights = folder / "weights.safetensors"
    save_file(timm.create_model(network).state_dict(), weights)
    method: dict[str, Any] = {"features": f"timm:{network}", "image_size": side, "tune": tune} | options
    return job(folder, "private-features", weights=weights, **method)


def grouped(folder: Path, network: str = "datalens", bound: int = 16) -> Job:
    """Ten groups of 20 records, of which `bound` are used."""
    write_toy(folder, 20 * GROUPS, (3, 32, 32))
    with np.load(folder / "toy.npz") as toy:
        groups = {"train_groups": np.arange(20 * GROUPS) // 20, "test_groups": np.arange(40) + 100}
        arrays = {name: toy[name] for name in toy} | groups
    np.savez(folder / "toy.npz", **arrays)
    options: dict[str, Any] = {"batch": 8, "steps": 2, "max_per_group": bound, "network": network}
    return job(folder, "dp-sgd", Unit.GROUP, **options)


JOBS = {"tuning": lambda folder: tuning(folder, batch=32, steps=1), "groups": grouped}


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOBS)
def test_estimate_is_near_the_measured_peak(name: str, tmp_path: Path) -> None:
    """The added memory is so large that an estimate without it is off by more."""
    command = [sys.executable, "-c", RUN, name, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    estimated, measured = map(int, done.stdout.split()[-2:])
    assert 0.75 < estimated / measured < 1.25
    assert memory.estimate(JOBS[name](tmp_path)).added > 0.35 * measured


def test_tuning_is_propagated_back_through_the_network(tmp_path: Path) -> None:
    def added(**options: object) -> int:
        return memory.estimate(tuning(tmp_path, CNN, 64, **options)).added

    network = memory.footprint_of(tuning(tmp_path, CNN, 64, "head"), f"64px:{CNN}")
    head, few, many = added(tune="head"), added(batch=8), added(batch=16)
    assert 2 * network.weights < head < few
    assert many - few >= 8 * memory.TUNING_COPIES * network.kept
    assert added(batch=64) == added(batch=4096), "at most 32 records at once"


def test_tuned_weights_are_counted_by_hand() -> None:
    given = {"features": "timm:test_vit", "image_size": "32", "tune": "lora", "rank": "2"}
    method = configure(PrivateFeatures, "smoke", given, "method")
    backbone = timm.create_model("test_vit", num_classes=0)
    width = backbone.num_features
    layers = [block.attn for block in backbone.blocks]
    updates = sum(2 * (each.qkv.weight.shape[0] + width) + 2 * (width + width) for each in layers)
    assert method.trained_weights((3, 32, 32), 5) == updates + 5 * (width + 1)


def test_groups_count_by_their_records(tmp_path: Path) -> None:
    """8 groups of 16 records are below 256 records at once; of 100 in a group 2 groups are, or fewer."""
    made = grouped(tmp_path, "tanh-cnn")
    assert memory.gradients_at_once(made) == 8 * 16
    method: Any = made.method
    assert method.gradients_at_once("toy", [3, 20, 5]) == 3 + 16 + 5
    of_100: Any = grouped(tmp_path, "tanh-cnn", 100).method
    assert of_100.gradients_at_once("toy", [100, 90, 200]) == 200
    assert "--method.max_per_group" in memory.estimate(made).largest.lower
