"""Sums over groups of records: a group moves a sum of gradients by at most C, and a second moment by at most 1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.group_clipping import GroupProducts, whole_groups
from bench.dp_training.head_accounting import Spending
from bench.dp_training.linear_head import clipped_sum
from bench.dp_training.whitening import second_moment
from bench.privacy import Unit

D, CLASSES, CLIP, ROOM = 48, 10, 0.3, 1 - 2**-7
SIZES = {
    "equal": [4] * 250,
    "skewed": [256, 1, 255, 1, 100, 100, 100, 7, 1, 1, 180],
    "single": [1] * 600,
    "whole chunks": [256] * 4,
}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_of(kind: str, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, labels and weights that are random, nearly parallel, or whose gradients cancel within a group."""
    rows, labels = F.normalize(drawn(n, D, seed=0)), torch.arange(n) % CLASSES
    weight = 5 * drawn(CLASSES, D, seed=2)
    if kind == "parallel":
        rows, labels = F.normalize(rows * 0.01 + F.normalize(drawn(1, D, seed=1))), torch.zeros(n, dtype=torch.long)
    if kind == "cancelling":
        rows = rows[torch.arange(n) // 2] * (1 - 1e-4 * (torch.arange(n) % 2))[:, None]
        labels, weight = torch.arange(n) % 2, torch.zeros(CLASSES, D)
    return rows, labels, weight


@pytest.mark.parametrize("kind", ["random", "parallel", "cancelling"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_removed_group_moves_clipped_sum_by_at_most_c(sizes: list[int], kind: str) -> None:
    rows, labels, weight = rows_of(kind, sum(sizes))
    products = GroupProducts.of(rows, torch.tensor(sizes))
    whole, moved = clipped_sum(rows, labels, weight, CLIP, products), []
    members = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for group in {0, 1, 2, len(sizes) // 2, len(sizes) - 1}:
        without = labels.masked_fill(members == group, -1)
        moved.append(float((whole - clipped_sum(rows, without, weight, CLIP, products)).norm()) / CLIP)
    assert max(moved) <= 1
    if kind == "parallel":
        assert max(moved) > 0.95
        together = labels.masked_fill(members == max(range(len(sizes)), key=sizes.__getitem__), -1)
        by_record = clipped_sum(rows, labels, weight, CLIP) - clipped_sum(rows, together, weight, CLIP)
        assert max(sizes) == 1 or float(by_record.norm()) / CLIP > 2, "clipped by record, a group has no such bound"


def test_clipped_terms_are_those_of_each_groups_gradient() -> None:
    sizes = [3, 1, 5, 2]
    rows, terms = F.normalize(drawn(11, D, seed=3)), drawn(11, CLASSES, seed=4)
    products = GroupProducts.of(rows, torch.tensor(sizes))
    found = products.clipped(0, terms, 2.5)
    for before, after, part in zip(terms.split(sizes), found.split(sizes), rows.split(sizes), strict=True):
        gradient = before.T @ part
        expected = gradient * min(1.0, 2.5 / float(gradient.norm()))
        torch.testing.assert_close(after.T @ part, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, terms)


def test_groups_of_one_record_are_clipped_as_records() -> None:
    rows, labels, weight = rows_of("random", 600)
    products = GroupProducts.of(rows, torch.ones(600, dtype=torch.long))
    expected = clipped_sum(rows, labels, weight, CLIP)
    torch.testing.assert_close(clipped_sum(rows, labels, weight, CLIP, products), expected, rtol=1e-5, atol=1e-5)


def test_chunks_hold_whole_groups_of_at_most_256_records() -> None:
    sizes = SIZES["skewed"]
    chunks = whole_groups(sizes)
    assert [size for chunk in chunks for size in chunk] == sizes and max(map(sum, chunks)) <= 256


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_removed_group_moves_second_moment_by_at_most_1(sizes: list[int], places: int) -> None:
    rows, counts = rows_of("parallel", sum(sizes))[0], torch.tensor(sizes)
    weights, members = (1 / counts).repeat_interleave(counts), torch.arange(len(sizes)).repeat_interleave(counts)
    whole = second_moment(rows, places, weights)
    parts = rows.unflatten(1, (-1, places)).double()
    torch.testing.assert_close(
        whole, torch.einsum("n,nip,njp->ij", weights.double(), parts, parts), rtol=1e-5, atol=1e-5
    )
    for group in {0, len(sizes) // 2, len(sizes) - 1}:
        without = rows.masked_fill((members == group)[:, None], 0.0)
        moved = float((whole - second_moment(without, places, weights)).norm())
        assert (0.99 if places == 1 else 0.2) < moved <= 1 + 2**-7


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
def test_head_of_groups_costs_as_that_of_records(neighbours: str) -> None:
    record = Spending(60, 40.0, 0.2, neighbours)  # type: ignore[arg-type]
    group = replace(record, unit=Unit.GROUP, largest=16)
    assert group.epsilon(1e-5) == record.epsilon(1e-5) and group.gradient_noise(1.0) == record.gradient_noise(1.0)
    assert not group.ledger().entries(Unit.EXAMPLE) and group.claim(1e-5).unit == Unit.GROUP
    assert [(e.event, e.count) for e in group.ledger().entries(Unit.GROUP)] == [
        (e.event, e.count) for e in record.ledger().entries(Unit.EXAMPLE)
    ]
    assert all("16 records" in text for text in (group.claim(1e-5).source, *(e.why for e in group.ledger().entries())))


def test_steps_of_groups_cost_as_those_of_records() -> None:
    record = DpSgdParameters(0.1, 20, 2.0)
    group = replace(record, unit=Unit.GROUP, largest=16)
    (entry,) = group.ledger().entries()
    assert (entry.unit, entry.count) == (Unit.GROUP, 20) and entry.event == record.ledger().entries()[0].event
    assert group.epsilon(1e-5) == record.epsilon(1e-5) and "16 records" in entry.why
