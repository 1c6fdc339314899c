"""Disjoint parts: published client sizes as golden values, and parts that do not depend on other records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.data.partition import by_dirichlet, by_hash, partition, with_guests
from bench.errors import BenchError

CIFAR10 = np.repeat(np.arange(10), 5000)
MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
DENSE_SIZES = [7807, 12991, 10877, 10922, 7403]
DENSE_FIRST_CLIENT = [156, 709, 301, 2629, 20, 651, 915, 113, 180, 2133]


def test_dirichlet_balanced_reproduces_the_published_client_sizes() -> None:
    parts = by_dirichlet(CIFAR10, 5, 0.5, seed=1, balanced=True)
    assert [len(part) for part in parts] == DENSE_SIZES
    assert np.bincount(CIFAR10[parts[0]], minlength=10).tolist() == DENSE_FIRST_CLIENT


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        (MNIST_COUNTS, [12173, 12364, 12034, 9587, 13842]),
        ((6000,) * 10, [9794, 13644, 12431, 12103, 12028]),
    ],
    ids=["mnist", "fmnist"],
)
def test_dirichlet_balanced_sizes_from_class_counts(counts: tuple[int, ...], sizes: list[int]) -> None:
    labels = np.repeat(np.arange(10), counts)
    assert [len(part) for part in by_dirichlet(labels, 5, 0.5, seed=1, balanced=True)] == sizes


@pytest.mark.parametrize("name", ["hash", "dirichlet", "dirichlet-balanced"])
def test_parts_are_disjoint_and_complete(name: str) -> None:
    labels = torch.arange(400) % 4
    images = torch.randint(0, 256, (400, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = partition(images, labels, 7, name, 0.5, 3)
    assert len(parts) == 7
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))


def test_plain_dirichlet_shares_have_the_mean_and_spread_of_their_law() -> None:
    """Share of one class on one of 4 clients at alpha 2: mean 1/4, variance (1/4)(3/4)/(4 * 2 + 1)."""
    labels = np.zeros(1000, dtype=np.int64)
    first = np.array([len(by_dirichlet(labels, 4, 2.0, seed, False)[0]) / 1000 for seed in range(400)])
    assert abs(first.mean() - 0.25) < 0.025
    assert 0.75 < first.var() / (3 / 16 / 9) < 1.3


def test_a_client_with_its_equal_share_gets_no_more_however_small_alpha() -> None:
    """Ten classes over five clients: at most an equal part, up to its last record, and one class more."""
    labels = np.repeat(np.arange(10), 100)
    sizes = [len(part) for seed in range(60) for part in by_dirichlet(labels, 5, 1e-3, seed, balanced=True)]
    assert max(sizes) <= 200 - 1 + 100 and sum(sizes) == 60 * 1000


def test_one_record_replaced_moves_no_other_record() -> None:
    images = torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    other = images.clone()
    other[17] = 255 - other[17]
    before, after = by_hash(images, 5, 0), by_hash(other, 5, 0)
    assert [set(part) - {17} for part in before] == [set(part) - {17} for part in after]
    removed = by_hash(torch.cat([images[:17], images[18:]]), 5, 0)
    shift = [{i if i < 17 else i + 1 for i in part} for part in removed]
    assert shift == [set(part) - {17} for part in before]


@pytest.mark.parametrize("name", ["hash", "dirichlet", "dirichlet-balanced"])
def test_a_guest_more_or_less_moves_no_other_record(name: str) -> None:
    images = torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels, guests = torch.arange(300) % 3, (0, 1, 5)
    alone = partition(images[:295], labels[:295], 4, name, 0.5, 0)
    with_some = [with_guests(images[: 295 + g], labels[: 295 + g], g, 4, name, 0.5, 0) for g in guests]
    for g, parts in zip(guests, with_some, strict=True):
        assert sorted(np.concatenate(parts)) == list(range(295 + g))
        assert [sorted(part[part < 295]) for part in parts] == [sorted(part) for part in alone]
    holder = [next(j for j, part in enumerate(parts) if 295 in part) for parts in with_some[1:]]
    assert holder[0] == holder[1], "where a guest goes depends on no other guest"
    if name == "hash":
        same = partition(images, labels, 4, name, 0.5, 0)
        assert [part.tolist() for part in with_some[2]] == [part.tolist() for part in same]
    else:
        moved = partition(images[:296], labels[:296], 4, name, 0.5, 0)
        assert any(set(a) != set(b[b < 295]) for a, b in zip(alone, moved, strict=True)), "who is drawn by label moves"


def test_hashed_parts_are_about_equal_and_depend_on_the_seed() -> None:
    images = torch.randint(0, 256, (5000, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    sizes = np.array([len(part) for part in by_hash(images, 10, 0)])
    chi_square = ((sizes - 500) ** 2 / 500).sum()
    assert 1.7 < chi_square < 23.6, "9 degrees of freedom, 0.5 % on either side"
    assert [part.tolist() for part in by_hash(images, 10, 1)] != [part.tolist() for part in by_hash(images, 10, 0)]


@pytest.mark.parametrize(
    ("count", "name", "alpha", "says"),
    [
        (0, "hash", 0.5, "0 teachers or clients for 40"),
        (41, "hash", 0.5, "41 teachers or clients for 40"),
        (4, "random", 0.5, "partition"),
        (4, "dirichlet", 0.0, "alpha"),
        (4, "dirichlet", 1e-4, "fewer clients or a larger alpha"),
    ],
)
def test_bad_requests_are_refused_in_one_line(count: int, name: str, alpha: float, says: str) -> None:
    images, labels = torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 2
    with pytest.raises(BenchError, match=says) as caught:
        partition(images, labels, count, name, alpha, 0)
    assert "\n" not in str(caught.value)
