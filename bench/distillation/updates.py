"""The two small steps that every distillation loop takes: an optimiser's, and training mode without dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One optimiser step on a scalar loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def train_without_dropout(network: nn.Module) -> None:
    """Training mode for all layers but dropout.

    For targets that are the network's own output moved by a small step: dropout would move the output much further.
    """
    network.train()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
