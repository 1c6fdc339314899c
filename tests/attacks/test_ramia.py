"""RaMIA: the samples of a range, the mean of the largest scores, and its equality with the base attack."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from membership_made import binary, draw, split_in_half, table, world
from torch import Tensor, nn

from attacks import ramia
from attacks.base import Base
from attacks.ramia import Ramia
from attacks.rmia import Rmia
from bench.api import AttackerKnowledge, Reference, Target
from bench.config import configure
from bench.errors import BenchError
from bench.membership.ranges import mean_of_largest, rotated, transformed_copies
from bench.testing import context

ONE: dict[str, Any] = {"mirror": False, "vertical": False, "shift": 0, "rotation": 0.0}


class Corner(nn.Module):
    """A model whose confidence depends on one pixel, so that every transformed copy has another score."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return binary(self.weight * (x[:, 0, 0, 0] + 2 * x[:, 0, 1, 2]))


def corner_world(n: int = 20) -> tuple[Target, AttackerKnowledge]:
    members = split_in_half(4, n)
    images = torch.rand(n, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    nets = [Target(Corner(weight), "scores", (1, 5, 5), 2) for weight in (3.0, 1.0, -1.0, 0.5, 2.0)]
    references = [Reference(net, one) for net, one in zip(nets[1:], members, strict=True)]
    labels = torch.zeros(n, dtype=torch.int64)
    return nets[0], AttackerKnowledge(images, labels, lambda: (images[:0], labels[:0]), lambda *_: references)


def scores(**given: Any) -> Tensor:
    target, knowledge = corner_world()
    return Ramia(**given).infer(target, knowledge, context()).scores


@pytest.mark.parametrize("score", ["rmia", "base"])
def test_range_of_one_sample_has_the_score_of_its_attack(score: Literal["rmia", "base"]) -> None:
    own, known, members = 2 * draw(30), 2 * draw(4, 30, seed=1), split_in_half(4, 30)
    other = Rmia(score="ratio", tune=False) if score == "rmia" else Base()
    found, wanted = (
        each.infer(table(binary(own)), world(known, members), context()).scores
        for each in (Ramia(score=score, **ONE), other)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert len(found.unique()) == 30


def test_range_score_does_not_depend_on_the_order_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    before = scores(shift=1)
    monkeypatch.setattr(ramia, "transformed_copies", lambda *given: reversed([*transformed_copies(*given)]))
    torch.testing.assert_close(scores(shift=1), before, rtol=1e-12, atol=1e-12)


def test_range_score_is_the_mean_of_the_largest_scores() -> None:
    singles = torch.stack([scores(**ONE | {"centre": False} | one) for one in ({"mirror": True}, {"vertical": True})])
    each = torch.cat([scores(**ONE)[None], singles])
    found = scores(**ONE | {"mirror": True, "vertical": True, "top": 0.6})
    torch.testing.assert_close(found, each.sort(0, descending=True).values[:2].mean(0))
    assert not torch.allclose(found, each.mean(0))


def test_mean_of_largest_by_hand() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 3.0], [2.0, 0.0], [0.0, 8.0]])
    assert mean_of_largest(values, 0.5).tolist() == [2.5, 6.0]
    assert mean_of_largest(values, 1.0).tolist() == [1.5, 3.75]


@pytest.mark.parametrize("samples", [1, 2, 3, 9])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6])
def test_at_least_one_score_is_averaged(samples: int, share: float) -> None:
    """Card B3: int(0.6 x 1) is 0, and its mean is not a number."""
    found = mean_of_largest(draw(samples, 4), share)
    assert bool(found.isfinite().all()) and bool((found <= draw(samples, 4).max(0).values).all())


def test_copies_by_hand() -> None:
    image = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]).view(1, 1, 3, 3)
    same, mirrored, turned, up, down, left, right = (
        each.reshape(9).tolist() for each in transformed_copies(image, True, True, 1, 0.0)
    )
    assert same == list(range(1, 10)) and mirrored == [3, 2, 1, 6, 5, 4, 9, 8, 7]
    assert turned == [7, 8, 9, 4, 5, 6, 1, 2, 3]
    assert up == [4, 5, 6, 7, 8, 9, 7, 8, 9] and down == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert left == [2, 3, 3, 5, 6, 6, 8, 9, 9] and right == [1, 1, 2, 4, 4, 5, 7, 7, 8]


@pytest.mark.parametrize("degrees", [90.0, -90.0, 180.0, 0.0])
def test_rotation_by_quarter_turns_is_exact(degrees: float) -> None:
    image = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotated(image, degrees), torch.rot90(image, int(degrees // 90), (2, 3)))


def test_rotation_of_a_wide_image_keeps_distances() -> None:
    """A pixel at a distance of 4 right of the centre is 4 above it after a quarter turn."""
    image = torch.zeros(1, 1, 11, 21)
    image[0, 0, 5, 14] = 1.0
    assert rotated(image, 90.0)[0, 0].nonzero().tolist() == [[1, 10]] or rotated(image, 90.0)[0, 0, 1, 10] > 0.99


def test_number_of_samples_is_that_of_the_copies() -> None:
    images = torch.rand(2, 1, 5, 5)
    for given in ({}, {"shift": 1}, {"centre": False, "rotation": 0.0}, ONE):
        made = Ramia(**given)
        copies = transformed_copies(images, made.mirror, made.vertical, made.shift, made.rotation, made.centre)
        assert made.samples == len([*copies])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"top": "0"}, "top"),
        ({"a": "1.5"}, "a is"),
        ({"shift": "-1"}, "shift"),
        ({"centre": "false", "mirror": "false", "vertical": "false", "rotation": "0"}, "sample"),
    ],
)
def test_range_out_of_its_limits_is_refused(given: dict[str, str], word: str) -> None:
    with pytest.raises(BenchError, match=word):
        configure(Ramia, "paper", given, "attack", "printed")


def test_range_larger_than_the_image_is_skipped() -> None:
    assert "5" in str(Ramia(shift=5).skip_reason((1, 5, 5), 10, 0)) and Ramia().skip_reason((1, 5, 5), 10, 0) is None
