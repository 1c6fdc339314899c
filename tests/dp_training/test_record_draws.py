"""Random numbers of records: the published generator, its distributions, and that they belong to a record."""

from __future__ import annotations

import torch
from scipy import stats

from bench.dp_training.record_draws import expand_keys, normal_of_keys, uniform_of_keys

KEYS = torch.arange(200) * 7919 + (1 << 60)


def splitmix64(key: int, count: int) -> list[int]:
    """SplitMix64 by Python's integers."""
    mask, found = (1 << 64) - 1, []
    for _ in range(count):
        key = (key + 0x9E3779B97F4A7C15) & mask
        z = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return found


def test_numbers_are_those_of_splitmix64() -> None:
    """The first two numbers of seed 1234567 are published test vectors."""
    made = splitmix64(1234567, 5)
    assert made[:2] == [6457827717110365317, 3203168211198807973]
    found = expand_keys(torch.tensor(1234567), 0, 5)
    assert [int(value) % (1 << 64) for value in found] == made
    assert torch.equal(expand_keys(torch.tensor(1234567), 2, 3), found[2:])


def test_numbers_depend_on_the_own_key_only() -> None:
    every = normal_of_keys(KEYS, 3, 9)
    assert every.shape == (200, 9) and len(every.unique()) > 1750
    assert torch.equal(normal_of_keys(KEYS[[5, 17]], 3, 9), every[[5, 17]])
    assert torch.equal(torch.func.vmap(lambda key: normal_of_keys(key, 3, 9))(KEYS), every)


def test_normal_and_uniform_numbers_have_their_distributions() -> None:
    normal, uniform = normal_of_keys(KEYS, 0, 500), uniform_of_keys(KEYS, 500, 500)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.01
    assert 0.98 < float(normal.square().mean()) < 1.02
    assert float(normal.abs().max()) > 4 and bool(normal.isfinite().all())
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 0.01
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    by_record = torch.corrcoef(normal[:50].double())
    assert float((by_record - torch.eye(50)).abs().max()) < 0.2, "records share numbers"
    assert abs(float(torch.corrcoef(torch.stack([normal.flatten(), uniform.flatten()]))[0, 1])) < 0.02
