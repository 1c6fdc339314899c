"""Memory footprint of a network: its weights, and the activations per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
FLOAT = 4
"""Bytes of a float32 number."""
ADAM_COPIES = 4
"""Tensors of a weight's size in a training step with Adam: the weight, its gradient, and two moments."""


@dataclass(frozen=True)
class Footprint:
    """Memory of a network, in bytes.

    Attributes:
        weights: all parameters and buffers.
        kept: tensors that autograd saves for the backward pass, per image.
        live: peak of the inputs and outputs of one layer, per image.
    """

    weights: int
    kept: int
    live: int

    def training(self, batch: int) -> int:
        """Return the bytes of a training step with Adam: weights, gradients, moments, saved tensors of the batch."""
        return ADAM_COPIES * self.weights + batch * (self.kept + self.live)

    def querying(self, batch: int) -> int:
        """Return the bytes of a forward pass of `batch` images without gradients."""
        return self.weights + batch * self.live

    def descending(self, batch: int) -> int:
        """Return the bytes of computing gradients with respect to `batch` images, with frozen weights."""
        return self.weights + batch * (self.kept + self.live)


def footprint(network: nn.Module, *inputs: Tensor) -> Footprint:
    """Measure the footprint with the given inputs, a batch of two; hooks are removed afterwards.

    Args:
        inputs: arguments of `forward`, two rows each, on the network's device.
    """
    was_training = network.training
    network.train()
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    saved, peak = _SavedTensors(network), _PeakTensors()
    handles = [layer.register_forward_hook(peak.update) for layer in network.modules() if not list(layer.children())]
    try:
        with torch.random.fork_rng(devices=()), torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda x: x):
            network(*(value.requires_grad_(value.is_floating_point()) for value in inputs))
    finally:
        for handle in handles:
            handle.remove()
        network.train(was_training)
        with torch.no_grad():
            for name, value in network.named_buffers():
                value.copy_(buffers[name])
    rows, weights = len(inputs[0]), network.state_dict().values()
    return Footprint(sum(value.nbytes for value in weights), saved.total // rows, peak.largest // rows)


class _SavedTensors:
    """Counts the bytes of the tensors that autograd saves, each storage once, without the weights."""

    def __init__(self, network: nn.Module) -> None:
        self.known = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
        self.alive: list[Tensor] = []
        self.total = 0

    def pack(self, value: Tensor) -> Tensor:
        """Count a saved tensor and keep it alive, so that no other tensor reuses its address."""
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.alive.append(value.detach())
            self.total += storage.nbytes()
        return value


class _PeakTensors:
    """Records the largest sum, in bytes, of one layer's inputs and outputs."""

    def __init__(self) -> None:
        self.largest = 0

    def update(self, _layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Update the maximum; a forward hook."""
        tensors = [value for value in (*inputs, output) if isinstance(value, Tensor)]
        self.largest = max(self.largest, sum(value.nbytes for value in tensors))
