"""Two helpers of every distillation loop: an optimiser step, and training mode without dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One optimiser step on a scalar loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def train_without_dropout(network: nn.Module) -> None:
    """Set training mode for all layers except dropout.

    It is for targets that are the network's own output plus a small step; dropout would change the output much more.
    """
    network.train()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
