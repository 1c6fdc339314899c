"""Disjoint parts: published client sizes as golden values, and parts that do not depend on other records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import refuses
from torch import Tensor

from bench.data.partition import PARTITIONS, by_dirichlet, by_hash, partition, with_guests
from bench.errors import BadOption, UnknownName

CIFAR10 = (5000,) * 10
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
FMNIST = (6000,) * 10
FIRST_CLIENT = [156, 709, 301, 2629, 20, 651, 915, 113, 180, 2133]
"""Images of each class of DENSE's first client of CIFAR-10."""


def noise(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        (CIFAR10, [7807, 12991, 10877, 10922, 7403]),
        (MNIST, [12173, 12364, 12034, 9587, 13842]),
        (FMNIST, [9794, 13644, 12431, 12103, 12028]),
    ],
    ids=["cifar10", "mnist", "fmnist"],
)
def test_dirichlet_balanced_has_published_client_sizes(counts: tuple[int, ...], sizes: list[int]) -> None:
    labels = np.repeat(np.arange(10), counts)
    parts = by_dirichlet(labels, 5, 0.5, seed=1, balanced=True)
    assert [len(part) for part in parts] == sizes
    if counts == CIFAR10:
        assert np.bincount(labels[parts[0]], minlength=10).tolist() == FIRST_CLIENT


@pytest.mark.parametrize("name", PARTITIONS)
def test_parts_are_disjoint_and_complete(name: str) -> None:
    parts = partition(noise(400, 0), torch.arange(400) % 4, 7, name, 0.5, 3)
    assert len(parts) == 7 and sorted(np.concatenate(parts).tolist()) == list(range(400))


def test_dirichlet_shares_have_mean_and_variance_of_law() -> None:
    """Share of one class on one of 4 clients at alpha 2: mean 1/4, variance (1/4)(3/4)/(4 * 2 + 1)."""
    labels = np.zeros(1000, dtype=np.int64)
    first = np.array([len(by_dirichlet(labels, 4, 2.0, seed, False)[0]) / 1000 for seed in range(400)])
    assert abs(first.mean() - 0.25) < 0.025 and 0.75 < first.var() / (3 / 16 / 9) < 1.3


def test_dirichlet_balanced_limits_clients_at_small_alpha() -> None:
    """Ten classes over five clients: at most an equal part, except its last record, and one class more."""
    labels = np.repeat(np.arange(10), 100)
    sizes = [len(part) for seed in range(60) for part in by_dirichlet(labels, 5, 1e-3, seed, balanced=True)]
    assert max(sizes) <= 200 - 1 + 100 and sum(sizes) == 60 * 1000


def test_by_hash_replaced_record_moves_no_other() -> None:
    images = noise(300, 1)
    other = images.clone()
    other[17] = 255 - other[17]
    rest = [set(part) - {17} for part in by_hash(images, 5, 0)]
    assert rest == [set(part) - {17} for part in by_hash(other, 5, 0)]
    removed = by_hash(torch.cat([images[:17], images[18:]]), 5, 0)
    assert rest == [{i if i < 17 else i + 1 for i in part} for part in removed]


@pytest.mark.parametrize("name", PARTITIONS)
def test_with_guests_moves_no_other_record(name: str) -> None:
    images, labels, guests = noise(300, 1), torch.arange(300) % 3, (0, 1, 5)
    without = partition(images[:295], labels[:295], 4, name, 0.5, 0)
    found = [with_guests(images[: 295 + g], labels[: 295 + g], g, 4, name, 0.5, 0) for g in guests]
    for g, parts in zip(guests, found, strict=True):
        assert sorted(np.concatenate(parts)) == list(range(295 + g))
        assert [sorted(part[part < 295]) for part in parts] == [sorted(part) for part in without]
    holder = [next(j for j, part in enumerate(parts) if 295 in part) for parts in found[1:]]
    assert holder[0] == holder[1], "a guest's client depends on no other guest"
    if name == "hash":
        same = partition(images, labels, 4, name, 0.5, 0)
        assert [part.tolist() for part in found[2]] == [part.tolist() for part in same]
    else:
        moved = partition(images[:296], labels[:296], 4, name, 0.5, 0)
        assert any(set(a) != set(b[b < 295]) for a, b in zip(without, moved, strict=True)), (
            "one more label moves others"
        )


def test_by_hash_parts_are_about_equal_and_salted_by_seed() -> None:
    images = noise(5000, 2)
    sizes = np.array([len(part) for part in by_hash(images, 10, 0)])
    chi_square = ((sizes - 500) ** 2 / 500).sum()
    assert 1.7 < chi_square < 23.6, "9 degrees of freedom, 0.5 % on either side"
    assert [part.tolist() for part in by_hash(images, 10, 1)] != [part.tolist() for part in by_hash(images, 10, 0)]


@pytest.mark.parametrize(
    ("count", "name", "alpha", "error", "value"),
    [
        (0, "hash", 0.5, BadOption, "40"),
        (41, "hash", 0.5, BadOption, "41"),
        (4, "random", 0.5, UnknownName, "'random'"),
        (4, "dirichlet", 0.0, BadOption, "0.0"),
        (4, "dirichlet", 1e-4, BadOption, "0.0001"),
    ],
)
def test_partition_bad_request_is_refused(count: int, name: str, alpha: float, error: type, value: str) -> None:
    with refuses(error, value):
        partition(torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 2, count, name, alpha, 0)
