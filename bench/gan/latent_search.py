"""The search of a latent space by Nesterov's momentum, every row on its own.

GMI (Zhang et al., CVPR 2020), stage 2, for any loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.api import Advance


def search_latents(
    z: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    iterations: int,
    lr: float,
    momentum: float,
    clip: float,
    advance: Advance,
) -> Tensor:
    """(n, latent) latents after `iterations` steps from `z`.

    Args:
        z: (n, latent).
        loss: latents to a scalar, a sum over the rows; only given latents inside the clamp.
        lr, momentum: as in `nesterov_step`.
        clip: bound on every coordinate, at the start and after every step.
        advance: called with 1 after every step.
    """
    z = z.clamp(-clip, clip)
    velocity = torch.zeros_like(z)
    for _ in range(iterations):
        z.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(z), z)
        z, velocity = nesterov_step(z.detach(), velocity, gradient, lr, momentum)
        z = z.clamp(-clip, clip)
        advance(1)
    return z


def nesterov_step(z: Tensor, velocity: Tensor, gradient: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """One step against gradient g: v' = mu v - lr g, z' = z - mu v + (1 + mu) v'. Returns (z', v')."""
    faster = momentum * velocity - lr * gradient
    return z - momentum * velocity + (1 + momentum) * faster, faster
