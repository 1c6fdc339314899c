"""How fresh networks get their first weights."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def xavier(module: Network) -> Network:
    """Xavier's uniform weights and zero biases in every linear and convolutional layer; returns the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
