from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.errors import BenchError
from bench.nets.generators import Critic


@pytest.mark.parametrize(
    ("size", "channels"),
    [
        (8, [3]),
        (12, [3, 6]),
        (16, [3, 6]),
        (28, [3, 6, 12]),
        (32, [3, 6, 12]),
        (40, [3, 6, 12, 24]),
        (64, [3, 6, 12, 24]),
    ],
)
def test_follows_the_card(size: int, channels: list[int]) -> None:
    critic = Critic((2, size, size), width=3)
    convolutions = [m for m in critic.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [*channels, 1]
    assert all(m.kernel_size == (5, 5) and m.stride == (2, 2) for m in convolutions[:-1])
    norms = [m for m in critic.modules() if isinstance(m, nn.InstanceNorm2d)]
    assert [m.num_features for m in norms] == channels[1:]
    assert all(m.affine for m in norms)
    assert critic(torch.rand(5, 2, size, size)).shape == (5,)


def test_scores_are_unbounded_and_of_one_image_each() -> None:
    torch.manual_seed(0)
    critic = Critic((1, 16, 16), width=4)
    images = 50 * torch.randn(6, 1, 16, 16)
    scores = critic(images)
    assert scores.min() < 0 < scores.max() or scores.abs().max() > 1
    alone = torch.cat([critic(image[None]) for image in images])
    torch.testing.assert_close(alone, scores, rtol=1e-4, atol=1e-5)


def test_last_convolution_sees_the_whole_map() -> None:
    torch.manual_seed(0)
    critic = Critic((1, 28, 28), width=2)
    image = torch.rand(1, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(image).sum(), image)
    assert (gradient != 0).all()


@pytest.mark.parametrize("size", [(4, 4), (30, 30), (32, 28), (128, 128)])
def test_refuses_other_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(BenchError, match="resize"):
        Critic((1, *size))
