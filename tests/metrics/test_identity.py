"""The person on an image by descriptors: every number computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from bench.metrics.identity import class_means, identified

MEANS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def test_means_of_people_by_hand() -> None:
    descriptors = torch.tensor([[0.0, 1.0], [4.0, 0.0], [2.0, 3.0], [4.0, 2.0]])
    found = class_means(descriptors, torch.tensor([0, 1, 0, 1]), 2)
    assert found.tolist() == [[1.0, 2.0], [4.0, 1.0]]


def test_the_nearest_mean_and_the_distances_by_hand() -> None:
    """Distances to the three means: 0.3, 0.7, 2.02 | 0.6, 0.4, 2.09 | 1.8, 2.06, 0.2 | 3, sqrt(10), 1 | 0, 1, 2."""
    descriptors = torch.tensor([[0.3, 0.0], [0.6, 0.0], [0.0, 1.8], [0.0, 3.0], [0.0, 0.0]])
    found = identified(descriptors, torch.tensor([0, 0, 2, 2, 1]), MEANS, 0.6)
    assert found.confusion.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 2]]
    assert (found.right, found.images) == (3, 5)
    assert found.near == 2, "0.3 and 0.2; 0.6 itself is not nearer than 0.6"
    assert found.distance == pytest.approx(0.6), "of 0.3, 0.6, 0.2, 1 and 1"


def test_the_median_of_an_even_number_lies_between() -> None:
    found = identified(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0]), MEANS, 0.6)
    assert found.distance == pytest.approx(3.5)


def test_the_threshold_is_a_bound_that_is_not_met() -> None:
    descriptors = torch.tensor([[0.5, 0.0], [0.25, 0.0]])
    assert identified(descriptors, torch.tensor([0, 0]), MEANS, 0.5).near == 1


def test_neither_order_nor_number_of_images_matters() -> None:
    rng = torch.Generator().manual_seed(0)
    descriptors, targets = torch.randn(3000, 2, generator=rng), torch.randint(3, (3000,), generator=rng)
    order = torch.randperm(3000, generator=rng)
    one, other = (
        identified(descriptors, targets, MEANS, 0.6),
        identified(descriptors[order], targets[order], MEANS, 0.6),
    )
    assert torch.equal(one.confusion, other.confusion) and (one.near, one.distance) == (other.near, other.distance)
    singly = [identified(d[None], t[None], MEANS, 0.6) for d, t in zip(descriptors[:50], targets[:50], strict=True)]
    whole = identified(descriptors[:50], targets[:50], MEANS, 0.6)
    assert whole.right == sum(each.right for each in singly) and whole.near == sum(each.near for each in singly)


@pytest.mark.parametrize(
    ("descriptors", "targets", "word"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), "n > 0"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), "expected"),
        (torch.zeros(1, 2), torch.tensor([3]), "outside 0 to 2"),
        (torch.full((1, 2), math.nan), torch.tensor([0]), "NaN"),
    ],
)
def test_what_does_not_belong_together_is_refused(descriptors: torch.Tensor, targets: torch.Tensor, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        identified(descriptors, targets, MEANS, 0.6)


def test_everybody_needs_an_image() -> None:
    for labels in ([0, 0], [0, 2]):
        with pytest.raises(ValueError, match="people; expected 2"):
            class_means(torch.zeros(2, 2), torch.tensor(labels), 2)
