"""The person on an image by descriptors: every number computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from bench.metrics.identity import class_means, identify

MEANS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def test_class_means_by_hand() -> None:
    descriptors = torch.tensor([[0.0, 1.0], [4.0, 0.0], [2.0, 3.0], [4.0, 2.0]])
    found = class_means(descriptors, torch.tensor([0, 1, 0, 1]), 2)
    assert found.tolist() == [[1.0, 2.0], [4.0, 1.0]]


def test_identify_by_hand() -> None:
    """Distances to the three means: 0.3, 0.7, 2.02 | 0.6, 0.4, 2.09 | 1.8, 2.06, 0.2 | 3, sqrt(10), 1 | 0, 1, 2."""
    descriptors = torch.tensor([[0.3, 0.0], [0.6, 0.0], [0.0, 1.8], [0.0, 3.0], [0.0, 0.0]])
    found = identify(descriptors, torch.tensor([0, 0, 2, 2, 1]), MEANS, 0.6)
    assert found.confusion.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 2]]
    assert (found.right, found.images) == (3, 5)
    assert found.near == 2, "0.3 and 0.2; 0.6 itself is not nearer than 0.6"
    assert found.distance == pytest.approx(0.6), "of 0.3, 0.6, 0.2, 1 and 1"


def test_identify_median_and_threshold_by_hand() -> None:
    found = identify(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0]), MEANS, 0.6)
    assert found.distance == pytest.approx(3.5)
    descriptors = torch.tensor([[0.5, 0.0], [0.25, 0.0]])
    assert identify(descriptors, torch.tensor([0, 0]), MEANS, 0.5).near == 1


def test_identify_depends_on_single_images_only() -> None:
    rng = torch.Generator().manual_seed(0)
    descriptors, targets = torch.randn(3000, 2, generator=rng), torch.randint(3, (3000,), generator=rng)
    order = torch.randperm(3000, generator=rng)
    one, other = (identify(descriptors, targets, MEANS, 0.6), identify(descriptors[order], targets[order], MEANS, 0.6))
    assert torch.equal(one.confusion, other.confusion) and (one.near, one.distance) == (other.near, other.distance)
    singly = [identify(d[None], t[None], MEANS, 0.6) for d, t in zip(descriptors[:50], targets[:50], strict=True)]
    whole = identify(descriptors[:50], targets[:50], MEANS, 0.6)
    assert whole.right == sum(each.right for each in singly) and whole.near == sum(each.near for each in singly)


@pytest.mark.parametrize(
    ("descriptors", "targets", "value"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), r"\(0, 2\)"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), r"\(3, 2\)"),
        (torch.zeros(1, 2), torch.tensor([3]), "0 to 2"),
        (torch.full((1, 2), math.nan), torch.tensor([0]), "NaN"),
    ],
)
def test_identify_refuses_bad_input(descriptors: torch.Tensor, targets: torch.Tensor, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        identify(descriptors, targets, MEANS, 0.6)


def test_class_means_need_an_image_of_everyone() -> None:
    for labels in ([0, 0], [0, 2]):
        with pytest.raises(ValueError, match="2"):
            class_means(torch.zeros(2, 2), torch.tensor(labels), 2)
