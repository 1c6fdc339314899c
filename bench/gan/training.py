"""Parts of GAN training: an optimiser step, batches, and the losses of a GAN with a logistic discriminator.

The discriminator predicts the probability of a real image, D(x) = sigmoid of a logit (Goodfellow et al., NeurIPS 2014).
All losses are batch means, to be minimised.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Run one step of `optimiser` on `loss`, with gradients only for the optimiser's own parameters.

    `loss.backward()` would also write gradients into the target and into the other network of a GAN.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()


def shuffled_batches(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield (size,) indices of shuffled passes over n images, endlessly.

    The incomplete last batch of a pass is dropped.
    """
    while True:
        order = torch.randperm(n, generator=rng, device=rng.device)
        yield from order[: n - n % size].split(size)


def source_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss -mean log D(x) - mean log(1 - D(G(z))).

    Args:
        real, fake: (n,) logits of real and of generated images.
    """
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def minimax_loss(fake: Tensor) -> Tensor:
    """Return the generator's loss in the minimax game, mean log(1 - D(G(z))), from (n,) logits."""
    return -F.softplus(fake).mean()


def non_saturating_loss(fake: Tensor) -> Tensor:
    """Return the generator's usual, non-saturating loss, -mean log D(G(z)), from (n,) logits."""
    return F.softplus(-fake).mean()
