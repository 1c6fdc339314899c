"""Federations with one run's seed have the same clients, so that a comparison shows only their algorithms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import toy_job

from bench.data import partition as partitions
from bench.pipeline.run import run

FEDERATIONS = ("fedavg", "feddf", "dense", "fedadi", "feddafl", "fed-dpsd")


def clients_of(toy: Path, out: Path, monkeypatch: pytest.MonkeyPatch, method: str, seed: int) -> list[Any]:
    """Return the indices of the records of five clients."""
    found: list[list[Any]] = []
    drawn = partitions.by_dirichlet

    def by_dirichlet(*given: Any, **named: Any) -> Any:
        found.append(drawn(*given, **named))
        return found[-1]

    with monkeypatch.context() as patched:
        patched.setattr(partitions, "by_dirichlet", by_dirichlet)
        run(toy_job(toy, method, out=out, method_options=(("clients", "5"),)), seed)
    (clients,) = found
    return clients


@pytest.mark.thorough
def test_federations_of_one_seed_share_clients(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = clients_of(toy, tmp_path, monkeypatch, FEDERATIONS[0], 0)
    for method in FEDERATIONS[1:]:
        for one, other in zip(first, clients_of(toy, tmp_path, monkeypatch, method, 0), strict=True):
            np.testing.assert_array_equal(one, other)


def test_federation_other_seed_has_other_clients(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (clients_of(toy, tmp_path, monkeypatch, "fedavg", seed) for seed in (0, 1))
    assert any(len(one) != len(other) or (one != other).any() for one, other in zip(here, there, strict=True))
