"""G-PATE: votes by hand, the generator's training on them, and refused settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from g_pate_made import plan, smoke, synthesise, training
from scipy import stats
from torch import Tensor

from baselines.g_pate.aggregation import Aggregator, binned, midpoints, projections, read, votes
from bench.errors import BenchError
from bench.nets.conditional_gan import MlpGenerator
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, toy_private

# The votes


def test_bins_and_midpoints_by_hand() -> None:
    """Five bins of [-1, 1] are 0.4 wide; both ends and values beyond belong to the outer ones."""
    given = torch.tensor([-9.0, -1.0, -0.61, -0.59, 0.0, 0.59, 0.61, 1.0, 9.0, math.inf, -math.inf, math.nan])
    assert binned(given, 1.0, 5).tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 0, 2]
    assert midpoints(1.0, 5).tolist() == pytest.approx([-0.8, -0.4, 0.0, 0.4, 0.8])
    assert midpoints(1e-4, 10).tolist() == pytest.approx([(-9 + 2 * b) * 1e-5 for b in range(10)])


def test_aggregation_by_hand() -> None:
    """Three teachers, an image of two pixels, P the identity: coordinates are pixels, c is 1, there are 5 bins.

    Pixel 1: 0.9, 0.7 and -0.5, bins 4, 4 and 1: two of three agree. Pixel 2: 0.1, 0.5 and -0.5: none do.
    """
    directions = torch.tensor([[[0.9, 0.1]], [[0.7, 0.5]], [[-0.5, -0.5]]])
    projection = torch.eye(2)[None]
    assert votes([directions[:2], directions[2:]], projection, 1.0, 5).tolist() == [[0, 1, 0, 0, 2], [0, 1, 1, 1, 0]]
    strict = Aggregator(plan(0, 1.5, 0, 2, 2, 3), 1.0, 5, "argmax", torch.Generator())
    assert strict([directions], projection).tolist() == [[pytest.approx(0.8), 0.0]]
    assert (strict.queries, strict.answered) == (2, 1)
    mean = Aggregator(plan(0, 0, 0, 2, 2, 3), 1.0, 5, "mean", torch.Generator())
    assert mean([directions], projection)[0].tolist() == pytest.approx([(0.8 + 0.8 - 0.4) / 3, (0 + 0.4 - 0.4) / 3])


def test_mean_is_over_teachers_not_noisy_votes() -> None:
    """Three teachers, bins at -0.8, -0.4, 0, 0.4 and 0.8, noisy counts that add up to 4: (-0.4 + 3 * 0.8) / 3."""
    counts = torch.tensor([[0.0, 1.0, 0.0, 0.0, 3.0]], dtype=torch.float64)
    assert read(counts, 1.0, "mean", 3).tolist() == pytest.approx([2 / 3])


def test_answers_return_through_their_projection() -> None:
    """Two images with projections to different pixels: each is moved along its own one."""
    projection = torch.zeros(2, 3, 1)
    projection[0, 0, 0], projection[1, 2, 0] = 1.0, 2.0
    directions = torch.tensor([[[0.9, 0.9, 0.9], [-0.4, -0.4, -0.4]]])
    found = Aggregator(plan(0, 0, 0, 2, 2, 1), 1.0, 5, "argmax", torch.Generator())([directions], projection)
    assert found.tolist() == [[pytest.approx(0.8), 0, 0], [0, 0, pytest.approx(-1.6)]]


def test_projections_are_unbiased_with_variance_one_over_k() -> None:
    made = projections(4000, 6, 5, torch.Generator().manual_seed(0))
    spread = made.double().flatten() * math.sqrt(5)
    assert stats.kstest(spread.numpy(), "norm").pvalue > 0.01 > 1e-6 > stats.kstest(1.1 * spread.numpy(), "norm").pvalue
    g = torch.arange(6.0)
    back = torch.einsum("nij,nkj,k->ni", made, made, g).mean(0)
    assert torch.allclose(back, g, atol=0.4)


def test_one_teacher_moves_two_counts_of_each_histogram() -> None:
    """Whatever it becomes: sqrt(2) in L2 for a coordinate, 1 for the fullest bin."""
    rng = torch.Generator().manual_seed(0)
    directions, projection = torch.randn(9, 4, 20, generator=rng), projections(4, 20, 6, rng)
    before = votes([directions], projection, 0.5, 10)
    for change in (1e30, math.nan, math.inf, 0.0):
        other = directions.clone()
        other[3] *= change
        moved = votes([other], projection, 0.5, 10) - before
        assert (moved.sum(1) == 0).all() and moved.abs().sum(1).max() == 2
        assert moved.norm(dim=1).max() == pytest.approx(math.sqrt(2))
        assert (votes([other], projection, 0.5, 10).amax(1) - before.amax(1)).abs().max() <= 1


def test_generator_depends_on_data_only_through_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a response that depends on no teacher, the release does not depend on the records."""

    def constant(self: Aggregator, directions: Any, projection: Tensor) -> Tensor:
        list(directions)
        self.queries += self.plan.candidates
        return projection.sum(2)

    monkeypatch.setattr(Aggregator, "__call__", constant)
    images, labels = toy_private()
    one, other = (synthesise(smoke(), data=pair) for pair in ((images, labels), (255 - images, labels.flip(0))))
    assert one.generator is not None and other.generator is not None
    pairs = zip(one.generator.parameters(), other.generator.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_generator_follows_the_answers() -> None:
    """(6): the gradient in the weights is -2 J^T g^, and Adam's first step is the full rate against its sign."""
    images, labels = toy_private()
    played = training(smoke(), [np.arange(80)], images, labels)
    other = MlpGenerator(SHAPE, CLASSES, played.by.latent, played.by.width)
    other.load_state_dict(played.generator.state_dict())
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    drawn, inner = played._inputs, played.aggregate

    def spy(directions: Any, projection: Tensor) -> Tensor:
        seen.append((*latest, inner(directions, projection)))
        return seen[-1][2]

    def draw() -> tuple[Tensor, Tensor]:
        latest[:] = drawn()
        return latest[0], latest[1]

    latest: list[Tensor] = []
    played._inputs, played.aggregate = draw, spy  # type: ignore[method-assign, assignment]
    played.step()
    ((z, y, moved),) = seen
    assert moved.abs().max() > 0
    u = other(z, y)
    slopes = torch.autograd.grad(-2 * (u * moved.view_as(u)).sum(), list(other.parameters()))
    for was, now, slope in zip(other.parameters(), played.generator.parameters(), slopes, strict=True):
        clear = slope.abs() > 1e-6
        assert torch.allclose((now - was)[clear], -played.by.rate * slope[clear].sign(), rtol=0.05)


def test_entropy_loss_moves_black_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pixels are 1e-4 the squared distance has no slope in their logits; the cross-entropy has u minus target."""
    images, labels = toy_private()
    rose = {}
    for loss in ("square", "entropy"):
        played = training(smoke(loss=loss, rate="0.003"), [np.arange(80)], images, labels)
        last = [layer for layer in played.generator.modules() if isinstance(layer, torch.nn.Linear)][-1]
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.fill_(math.log(1e-4))
        monkeypatch.setattr(played, "aggregate", lambda found, projection: (list(found), torch.full((4, 256), 0.1))[1])
        played.of_generator = torch.optim.SGD(played.generator.parameters(), lr=0.01)  # type: ignore[assignment]
        before = float(last.bias.detach().mean())
        played.step()
        rose[loss] = float(last.bias.detach().mean()) - before
    assert rose["entropy"] == pytest.approx(0.01 * 4 * 0.1, rel=0.05), "the slope is 0.1 in every one of four images"
    assert 0 < rose["square"] < 1e-3 * rose["entropy"]


# What it does


@pytest.mark.thorough
def test_noiseless_generator_learns_class_brightness() -> None:
    """Toy records of which class 0 is black and all others white: generated images follow."""
    labels = torch.arange(400) % CLASSES
    images = torch.where(labels[:, None, None, None] == 0, 10, 245).to(torch.uint8).expand(-1, *SHAPE).clone()
    images += torch.randint(0, 10, images.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    by = smoke(teachers="8", steps="120", batch="16", threshold="0", target_estimator="mean", clip="0.01", rate="0.005")
    by = replace(by, width=16, critic_width=16)
    made = synthesise(by, Budget(math.inf), (images, labels))
    x, y = made.draw(200, torch.Generator().manual_seed(1))
    assert x[y == 0].mean() < 0.35 and x[y != 0].mean() > 0.65


def test_steps_too_few_for_the_budget_are_refused() -> None:
    with pytest.raises(BenchError, match=r" 40 .*--method.scale"):
        smoke(scale="20").calibrate(Budget(1.0, solve="steps"), 3)
