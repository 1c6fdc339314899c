"""Recording of a target's penultimate features during forward passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from bench.errors import Incompatible


@contextmanager
def recorded_features(module: nn.Module) -> Iterator[list[Tensor]]:
    """Context manager: returns a list to which forward passes append the (n, d) differentiable input of the last layer.

    That layer is the last linear one, or in a network without any the last convolution, whose input is averaged over
    its positions. Raises BenchError if there is neither.
    """
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d)
    layers = [[layer for layer in module.modules() if isinstance(layer, kind)] for kind in kinds]
    last = next((found[-1] for found in layers if found), None)
    if last is None:
        raise Incompatible("the target has neither a linear nor a convolutional layer to take features from; take gmi")
    features: list[Tensor] = []

    def record(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        f = inputs[0]
        features.append(f.mean((2, 3)) if f.ndim == 4 else f.flatten(1))

    handle = last.register_forward_pre_hook(record)
    try:
        yield features
    finally:
        handle.remove()
