"""Clipped sums: a record with a broken gradient adds nothing, and stored gradients are not modified."""

from __future__ import annotations

import math

import pytest
import torch

from bench.dp_training.clipping import add_clipped, clipping_groups


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 12])
def test_add_clipped_ignores_a_broken_record(value: float, place: int) -> None:
    torch.manual_seed(0)
    rows = {"w": torch.randn(13, 4, 3), "b": torch.randn(13, 4)}
    groups = clipping_groups(list(rows), 1.0)
    silent = {name: row.clone() for name, row in rows.items()}
    silent["w"][place], silent["b"][place] = 0.0, 0.0
    broken = {name: row.clone() for name, row in rows.items()}
    broken["w"][place, 1, 2] = value
    sums = []
    for given in (silent, broken):
        before = {name: row.clone() for name, row in given.items()}
        total = {name: torch.zeros(row.shape[1:], dtype=torch.float64) for name, row in rows.items()}
        add_clipped(total, given, groups, 13)
        sums.append(total)
        assert all(torch.equal(given[name], row) or row.isnan().any() for name, row in before.items())
    assert all(torch.equal(sums[0][name], sums[1][name]) and sums[0][name].abs().sum() > 0 for name in rows)
