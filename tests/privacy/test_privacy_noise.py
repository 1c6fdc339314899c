"""The source of privacy noise: its entropy, its distributions, the grid that hides low bits, and refused ranges."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from bench.api import Context
from bench.errors import BenchError
from bench.privacy.mechanisms import gaussian_rows, gaussian_shared_mean, normalise_rows
from bench.privacy.noise import Noise, require_room
from bench.testing import MemoryArtifacts, silent

LEVEL = 1e-6
"""Significance of tests with fixed seeds: far from any borderline."""


def of_system() -> Noise:
    return Context(torch.device("cpu"), 0, silent, MemoryArtifacts(), "os").privacy_noise("any")


def entropy(words: Iterator[int]) -> object:
    """Replaces the system's entropy, in words of 64 bits."""
    return lambda count: b"".join(next(words).to_bytes(8, "little") for _ in range(-(-count // 8)))[:count]


def test_os_noise_depends_on_more_than_32_bits(monkeypatch) -> None:
    """Two seeds that agree in their low 32 bits give one stream of torch's generator on a CPU; not so here."""
    drawn = []
    for high in (0, 1):
        monkeypatch.setattr(secrets, "randbits", lambda bits, high=high: 7 + (high << 32))
        monkeypatch.setattr(os, "urandom", entropy(iter([7 + (high << 32)] * 1000)))
        drawn.append(gaussian_rows(torch.zeros(4, 8), 1.0, of_system()))
    assert not torch.equal(*drawn)


def test_os_noise_uses_every_bit_of_the_system(monkeypatch) -> None:
    words = np.random.default_rng(0).integers(0, 2**63, 200).tolist()
    monkeypatch.setattr(os, "urandom", entropy(iter(words)))
    assert of_system().bits(200).tolist() == words
    for flipped in (0, 31, 32, 62):
        monkeypatch.setattr(os, "urandom", entropy(iter([words[0] ^ (1 << flipped)])))
        assert of_system().bits(1).tolist() == [words[0] ^ (1 << flipped)]


def test_os_sources_are_independent() -> None:
    one, other = (of_system().bits(4) for _ in range(2))
    assert not set(one.tolist()) & set(other.tolist())


@pytest.mark.gpu
def test_os_noise_on_cuda_has_128_bits() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    source = Noise("cuda")
    seeds = [generator.initial_seed() for generator in source._generators]
    assert len(set(seeds)) == 2 and max(seeds) > 2**32
    assert source.normal(1000).device.type == "cuda" and source.host.device.type == "cpu"


def test_seeded_noise_repeats() -> None:
    one, again, other = (Noise("cpu", seed).normal(50) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize("source", [Noise("cpu", 3), Noise()], ids=["seeded", "os"])
def test_noise_normal_is_normal_and_independent(source: Noise) -> None:
    drawn = source.normal(400_001).numpy()
    assert stats.kstest(drawn, "norm").pvalue > LEVEL
    for wrong in (0.98, 1.02):
        assert stats.kstest(drawn, stats.norm(0, wrong).cdf).pvalue < LEVEL
    halves = drawn[:200_000], drawn[200_000:400_000]
    assert abs(np.corrcoef(*halves)[0, 1]) < 0.015 and abs(np.corrcoef(*np.square(halves))[0, 1]) < 0.015


def test_noise_normal_has_tails_beyond_float32(monkeypatch) -> None:
    """The smallest draw of the radius: 9.3 deviations instead of 5.77."""
    monkeypatch.setattr(Noise, "bits", lambda noise, count: torch.zeros(count, dtype=torch.int64))
    assert float(Noise("cpu", 0).normal(1)) == pytest.approx(math.sqrt(2 * 64 * math.log(2)))
    tail = stats.norm.sf(9.4)
    assert 1e-21 < tail < 1e-20


def test_noise_laplace_fits_its_scale_and_no_other() -> None:
    drawn = Noise("cpu", 5).laplace(torch.zeros(200_000, dtype=torch.float64), 2.0).numpy()
    assert stats.kstest(drawn, stats.laplace(0, 2).cdf).pvalue > LEVEL
    assert stats.kstest(drawn, stats.laplace(0, 2.1).cdf).pvalue < LEVEL


class Furthest(Noise):
    """The first draws end in the tail: 0 of 62 bits, on either side; those after them are as ever."""

    def bits(self, count: int) -> torch.Tensor:
        drawn = super().bits(count)
        return drawn & 1 if count > 1 else drawn


def test_laplace_tail_has_no_gaps() -> None:
    """62 log 2 and an exponential: from 62 bits only it is one number, which no neighbour's grid reaches."""
    drawn = Furthest("cpu", 5).standard_laplace(4000)
    assert 0.45 < float((drawn > 0).double().mean()) < 0.55
    beyond = drawn.abs() - 62 * math.log(2)
    assert stats.kstest(beyond.numpy(), "expon").pvalue > LEVEL
    released = Furthest("cpu", 5).laplace(torch.zeros(4000, dtype=torch.float64), 1.0)
    assert len(set(released.abs().tolist())) > 1000


def test_laplace_draws_take_one_word_each() -> None:
    source, other = Noise("cpu", 5), Noise("cpu", 5)
    source.standard_laplace(1000)
    other.bits(1000)
    assert torch.equal(source.bits(3), other.bits(3))


def test_noise_uniform_and_integers_are_uniform() -> None:
    source = Noise("cpu", 6)
    drawn = source.uniform(100_000).numpy()
    assert drawn.min() >= 0 and drawn.max() < 1 and stats.kstest(drawn, "uniform").pvalue > LEVEL
    counts = source.integers(3, 10, 70_000).bincount(minlength=10).tolist()
    assert counts[:3] == [0, 0, 0] and stats.chisquare(counts[3:]).pvalue > LEVEL


def test_noise_sample_includes_records_independently() -> None:
    source, hits, rounds = Noise("cpu", 7), torch.zeros(40), 4000
    for _ in range(rounds):
        hits[source.sample(40, 0.3)] += 1
    assert all(stats.binomtest(int(hit), rounds, 0.3).pvalue > LEVEL for hit in hits)
    assert stats.binomtest(int(hits.sum()), 40 * rounds, 0.31).pvalue < LEVEL
    assert len(source.sample(0, 0.5)) == 0 and len(source.sample(9, 1.0)) == 9


@pytest.mark.parametrize("std", [0.3, 1.0, 5.0, 1e-6, 3e5])
def test_release_is_on_a_grid_for_any_value(std: float) -> None:
    """Which low bits a sum of floating-point numbers can have would tell its summands (Mironov 2012)."""
    grid = 2.0 ** (math.floor(math.log2(std)) - 10)
    for value in (0.0, 1 / 3 * std, 1e3 * std + 1e-7 * std):
        released = Noise("cpu", 8).gaussian(torch.full((500,), value, dtype=torch.float64), std)
        assert torch.equal(released / grid, (released / grid).round())
        assert std / 1024 / 2 < grid <= std / 1024


@pytest.mark.thorough
def test_release_is_gaussian_around_the_value() -> None:
    released = Noise("cpu", 9).gaussian(torch.full((200_000,), 0.7, dtype=torch.float64), 0.01).numpy()
    assert stats.kstest(released, stats.norm(0.7, 0.01).cdf).pvalue > LEVEL
    assert stats.kstest(released, stats.norm(0.7 + 3e-4, 0.01).cdf).pvalue < LEVEL
    assert stats.kstest(released, stats.norm(0.7, 0.0102).cdf).pvalue < LEVEL


def test_release_adds_the_same_noise_to_any_value() -> None:
    """A value far from 0 gets the very noise that 0 gets: no rounding of the sum depends on it."""
    zero, far = (
        Noise("cpu", 10).gaussian(torch.full((1000,), value, dtype=torch.float64), 1.0) for value in (0.0, 2.0**20)
    )
    assert torch.equal(far - 2.0**20, zero)


@pytest.mark.parametrize(
    ("value", "std", "dtype"),
    [(0.7, 1e-9, torch.float32), (1e7, 1.0, torch.float64), (math.nan, 1.0, torch.float32)],
)
def test_release_refuses_values_too_large_for_the_noise(value: float, std: float, dtype: torch.dtype) -> None:
    """In float32 the sum of 0.7 and noise of 1e-9 is 0.7: a constant with a finite account."""
    for row in ([value, value], [value, 0.0]):
        with pytest.raises(RuntimeError):
            gaussian_rows(torch.tensor([row], dtype=dtype), std, Noise("cpu", 0))


@pytest.mark.parametrize("scale", [1e-45, 1e-31, 1e31, math.inf, math.nan, -1.0])
def test_noise_refuses_scales_beyond_floating_point(scale: float) -> None:
    with pytest.raises(BenchError):
        gaussian_rows(torch.zeros(1, 2), scale, Noise("cpu", 0))
    with pytest.raises(BenchError):
        gaussian_shared_mean(torch.zeros(2, 2), scale, Noise("cpu", 0))
    with pytest.raises(BenchError):
        Noise("cpu", 0).laplace(torch.zeros(1, 2), scale)


def test_require_room_refuses_noise_before_its_use() -> None:
    """The smallest is 2^-14 of the bound, 6.1035e-5, if the values are float32: a release itself refuses smaller
    ones."""
    values = torch.ones(2)
    with pytest.raises(BenchError, match=r"6e-05.*6\.1e-05"):
        require_room("made-up", 6.0e-5, torch.float32)
    with pytest.raises(RuntimeError):
        Noise("cpu", 0).gaussian(values, 6.0e-5)
    for taken in (6.2e-5, 0.0):
        require_room("made-up", taken, torch.float32)
        Noise("cpu", 0).gaussian(values, taken)


@pytest.mark.parametrize("bound", [1e-30, 1e-10, 1.0, 1e30])
def test_normalise_rows_keeps_extreme_bounds(bound: float) -> None:
    rows = normalise_rows(torch.randn(1000, 7, generator=torch.Generator().manual_seed(0)), bound, 1e-30)
    norms = torch.linalg.vector_norm(rows.double(), dim=1) / bound
    assert float(norms.max()) < 1 and float(norms.min()) > 0.99
