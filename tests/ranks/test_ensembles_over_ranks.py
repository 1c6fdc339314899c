"""Ensembles over two processes: every member is the one of a single process, whichever rank trained it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shared_parts import CPU, records

from bench.api import Shards
from bench.errors import RunFailed
from bench.nets import Ensemble
from bench.ranks import Ranks
from bench.teachers import fit_ensemble
from bench.teachers.ensemble import How

SHAPE, CLASSES = (1, 12, 12), 3
PARTS = [np.arange(0, 40), np.arange(40, 90), np.arange(90, 90), np.arange(90, 120), np.arange(120, 125)]
"""Five members, three for the leader; its last one has no records."""


def trained(ranks: Ranks | None, how: How = "in turn", parts: list[np.ndarray] = PARTS, lr: float = 5e-3) -> Ensemble:
    ensemble = Ensemble.build(("shard-cnn",), len(parts), SHAPE, CLASSES, seeds=range(len(parts)))
    shards = Shards(len(parts), ("shard-cnn",), steps=6, batch=16, lr=lr, weight_decay=0.01, shift=1)
    fit_ensemble(ensemble, *records(125), parts, shards, device=CPU, seed=3, how=how, ranks=ranks)
    assert not ensemble.training
    return ensemble


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stacked", "in turn"])
def test_ensemble_members_equal_those_of_one_process(ranks: Ranks, how: How) -> None:
    single, shared = trained(None, how), trained(ranks, how)
    fresh = Ensemble.build(("shard-cnn",), len(PARTS), SHAPE, CLASSES, seeds=range(len(PARTS)))
    for j, part in enumerate(PARTS):
        one, other = (each.members[j].state_dict() for each in (single, shared))
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        same = [torch.equal(value, fresh.members[j].state_dict()[name]) for name, value in other.items()]
        assert all(same) == (len(part) == 0), j


@pytest.mark.thorough
def test_ensemble_with_fewer_members_than_ranks_is_equal(ranks: Ranks) -> None:
    parts = PARTS[:1]
    torch.testing.assert_close(
        trained(ranks, parts=parts).state_dict(), trained(None, parts=parts).state_dict(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(trained(ranks).state_dict(), trained(None).state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_ensemble_divergence_on_another_rank_fails(ranks: Ranks) -> None:
    parts = [np.arange(0), np.arange(0), np.arange(0, 60), np.arange(60, 120)]
    with pytest.raises(RunFailed):
        trained(ranks, parts=parts, lr=1e30)
