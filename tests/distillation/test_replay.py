"""Stored responses, and images chosen to balance their classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.distillation.training import ReplayBuffer, draw_balanced


def test_answers_of_all_batches_are_drawn_each_with_its_image() -> None:
    kept = ReplayBuffer()
    for first in (0, 10, 20):
        numbers = torch.arange(first, first + 10).float()
        kept.add(numbers.view(-1, 1, 1, 1), numbers[:, None] + 0.5)
    rng = torch.Generator().manual_seed(0)
    drawn = [kept.sample(5, rng) for _ in range(100)]
    images, targets = (torch.cat(each) for each in zip(*drawn, strict=True))
    assert set(images.flatten().tolist()) == set(range(30)) and kept.batches == 3
    assert torch.equal(targets[:, 0], images.flatten() + 0.5)


class Brightness(nn.Module):
    """Class 1 for white images, class 0 for black ones, both surely."""

    def forward(self, x: Tensor) -> Tensor:
        white = 20 * x.flatten(1).mean(1) - 10
        return torch.stack([-white, white], 1)


def test_images_are_chosen_so_that_rare_classes_are_as_frequent() -> None:
    """900 black images and 100 white ones: each class has half of the weight, and so about half of 60 that are kept."""
    images = torch.zeros(1000, 1, 4, 4)
    images[::10] = 1
    kept = draw_balanced(images, Brightness(), 60, torch.Generator().manual_seed(0))
    white = int((kept[:, 0, 0, 0] == 1).sum())
    assert len(kept) == 60 and 18 <= white <= 40
