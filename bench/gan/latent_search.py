"""Latent-space searches: Nesterov momentum for any loss (GMI, stage 2), Adam for the nearest generated image."""

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
    """Minimise `loss` over latents from `z` by `iterations` steps with Nesterov's momentum; return (n, latent).

    Args:
        z: (n, latent).
        loss: maps latents to a scalar, a sum over the rows; it is called only with latents within the clip bound.
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


def nearest_images(
    decode: Callable[[Tensor], Tensor],
    z: Tensor,
    images: Tensor,
    *,
    steps: int,
    lr: float,
    penalty: float,
    advance: Advance,
) -> tuple[Tensor, Tensor]:
    """Search a generator's latents for the images nearest to given ones; return them with their squared errors.

    Runs `steps` of Adam on the sum over images of ||decode(z) - x||^2 + penalty ||z||^2, so that rows are independent;
    the smallest error of all steps is returned.

    Args:
        decode: maps (n, latent) to (n, c, h, w), differentiable, each row independently; called with all rows.
        z: (n, latent), where the search starts.
        images: (n, c, h, w).
        advance: called with 1 after every step.

    Returns:
        (n, c, h, w) images and their (n,) squared errors, in the generator's precision.
    """
    z = z.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=lr)
    best = torch.full((len(z),), torch.inf, device=z.device)
    found = torch.zeros_like(images)
    for _ in range(steps):
        made = decode(z)
        error = (made - images).square().flatten(1).sum(1)
        better = error.detach() < best
        best = torch.where(better, error.detach(), best)
        found = torch.where(better.view(-1, *[1] * (images.ndim - 1)), made.detach(), found)
        (gradient,) = torch.autograd.grad((error + penalty * z.square().sum(1)).sum(), z)
        z.grad = gradient
        optimizer.step()
        advance(1)
    return found, best


def nesterov_step(z: Tensor, velocity: Tensor, gradient: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """Take one step against gradient g: v' = mu v - lr g, z' = z - mu v + (1 + mu) v'. Return (z', v')."""
    faster = momentum * velocity - lr * gradient
    return z - momentum * velocity + (1 + momentum) * faster, faster
