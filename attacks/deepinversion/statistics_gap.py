"""How far the BatchNorm statistics of a batch lie from those that a network has stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.validate import instance, present


def statistics_gap(inputs: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """||mu_l - mu^_l||_2 + ||var_l - var^_l||_2, norms not squared.

    Args:
        inputs: (n, channels, ...) what the layer is given. mean, variance: (channels,) what it has stored.
    """
    dims = [0, *range(2, inputs.ndim)]
    var, mu = torch.var_mean(inputs.float(), dims, correction=0)
    return (mu - mean).norm() + (var - variance).norm()


class Gaps:
    """What the BatchNorm layers of a network found in the last forward pass.

    Attributes:
        layers: the layers that store statistics, in the order of the module.
    """

    def __init__(self, layers: list[_BatchNorm], first: float) -> None:
        self.layers = layers
        self._first = first
        self._found: list[Tensor] = []

    def record(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """The hook: measure what `layer` is about to be given."""
        norm = instance(layer, _BatchNorm, "watched layer")
        running_mean, running_variance = present(norm.running_mean, "mean"), present(norm.running_var, "variance")
        gap = statistics_gap(inputs[0], running_mean, running_variance)
        self._found.append(self._first * gap if layer is self.layers[0] else gap)

    def clear(self) -> None:
        """Forget the last pass."""
        self._found.clear()

    def total(self, like: Tensor) -> Tensor:
        """The sum over the layers, a scalar on the device of `like`; 0 if there are none."""
        return torch.stack(self._found).sum() if self._found else like.new_zeros(())


@contextmanager
def recorded_gaps(module: nn.Module, first: float = 1.0) -> Iterator[Gaps]:
    """The gaps of every forward pass through `module`, while the context lasts; then all hooks are gone.

    Args:
        first: factor of the first layer's gap.
    """
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    gaps = Gaps(layers, first)
    handles = [layer.register_forward_pre_hook(gaps.record) for layer in layers]
    try:
        yield gaps
    finally:
        for handle in handles:
            handle.remove()
