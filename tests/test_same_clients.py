"""Federations with one run's seed have the same clients, so that a comparison shows only their algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_toy

from bench.data import partition as partitions
from bench.pipeline.resolve import load_job
from bench.pipeline.run import run
from bench.pipeline.settings import Settings

FEDERATIONS = ("fedavg", "feddf", "dense", "fedadi", "feddafl", "fed-dpsd")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), 240)


def clients_of(toy: Path, out: Path, monkeypatch: pytest.MonkeyPatch, method: str, seed: int) -> list[Any]:
    """Return the indices of the records of five clients."""
    found: list[list[Any]] = []
    drawn = partitions.by_dirichlet

    def by_dirichlet(*given: Any, **named: Any) -> Any:
        found.append(drawn(*given, **named))
        return found[-1]

    monkeypatch.setattr(partitions, "by_dirichlet", by_dirichlet)
    settings = Settings(
        method=method, attack=None, dataset=f"npz:{toy}/toy.npz", teacher="datalens", tier="smoke", out=out,
        method_options=(("clients", "5"),),
    )  # fmt: skip
    run(load_job(settings), seed)
    monkeypatch.setattr(partitions, "by_dirichlet", drawn)
    assert len(found) == 1
    return found[0]


@pytest.mark.thorough
def test_federations_of_one_seed_share_clients(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = clients_of(toy, tmp_path, monkeypatch, FEDERATIONS[0], 0)
    for method in FEDERATIONS[1:]:
        for one, other in zip(first, clients_of(toy, tmp_path, monkeypatch, method, 0), strict=True):
            np.testing.assert_array_equal(one, other)


def test_federation_other_seed_has_other_clients(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (clients_of(toy, tmp_path, monkeypatch, "fedavg", seed) for seed in (0, 1))
    assert any(len(one) != len(other) or (one != other).any() for one, other in zip(here, there, strict=True))
