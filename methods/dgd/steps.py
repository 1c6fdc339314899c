"""Small steps that both variants of DGD take: images drawn, one update at a falling rate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bench.distillation.votes.noisy_votes import CHUNK

SHOWN = 60
"""Synthetic images that a release shows."""


@torch.no_grad()
def draw_images(phi_g: nn.Module, count: int, rng: torch.Generator) -> Tensor:
    """D^: (count, c, h, w) images of the generator, in training mode: a batch is normalised by its own statistics."""
    made = []
    for start in range(0, count, CHUNK):
        part = min(CHUNK, count - start)
        # A batch of one has no variance to be normalised by
        z = torch.randn(max(part, 2), phi_g.latent, generator=rng, device=rng.device)  # type: ignore[call-overload]
        made.append(phi_g(z)[:part])
    return torch.cat(made)


def falling_adam(module: nn.Module, rate: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Adam with a rate that falls linearly to 0 (section IV)."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    return optimizer, LambdaLR(optimizer, lambda done: 1 - done / max(steps, 1))


def step(loss: Tensor, optimizer: torch.optim.Optimizer, schedule: LRScheduler) -> None:
    """One descent, and the rate of the next one."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()


def draw_rows(size: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` of `size` rows, with replacement."""
    return torch.randint(size, (count,), generator=rng, device=rng.device)
