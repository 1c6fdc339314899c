"""One optimiser step that leaves the gradients of all other networks alone."""

from __future__ import annotations

import torch
from torch import Tensor


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of `optimiser` against the gradient of `loss` in its own parameters alone.

    `loss.backward()` would write gradients into the target and into the other player of a GAN as well.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()
