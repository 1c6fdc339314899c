"""An optimiser step that does not change the gradients of other networks."""

from __future__ import annotations

import torch
from torch import Tensor


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Run one step of `optimiser` on `loss`, with gradients only for the optimiser's own parameters.

    `loss.backward()` would also write gradients into the target and into the other network of a GAN.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()
