"""Memory footprint of a network: its weights, and the activations per image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
FLOAT = 4
"""Bytes of a float32 number."""
OF_ADAM = 4
"""Tensors of a weight's size in a training step with Adam: the weight, its gradient, and two moments."""


@dataclass(frozen=True)
class Footprint:
    """Memory of a network, in bytes.

    Attributes:
        weights: all parameters and buffers.
        kept: tensors that one image saves for the backward pass.
        live: peak of the tensors of one image in a pass without gradients.
    """

    weights: int
    kept: int
    live: int

    def training(self, batch: int) -> int:
        """Return the bytes of a training step with Adam: weights, gradients, moments, saved tensors of the batch."""
        return OF_ADAM * self.weights + batch * (self.kept + self.live)

    def querying(self, batch: int) -> int:
        """Return the bytes of a forward pass without gradients."""
        return self.weights + batch * self.live

    def descending(self, batch: int) -> int:
        """Return the bytes of a gradient with respect to the images, with frozen weights."""
        return self.weights + batch * (self.kept + self.live)


def footprint(network: nn.Module, *inputs: Tensor) -> Footprint:
    """Measure the footprint with the given inputs, a batch of two; hooks are removed afterwards.

    Args:
        inputs: arguments of `forward`, two rows each, on the network's device.
    """
    was_training = network.training
    network.train()
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    kept, live = _Kept(network), _Live()
    handles = [layer.register_forward_hook(live.see) for layer in network.modules() if not list(layer.children())]
    try:
        with torch.random.fork_rng(devices=()), torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda x: x):
            network(*(value.requires_grad_(value.is_floating_point()) for value in inputs))
    finally:
        for handle in handles:
            handle.remove()
        network.train(was_training)
        with torch.no_grad():
            for name, value in network.named_buffers():
                value.copy_(buffers[name])
    rows = len(inputs[0])
    return Footprint(_bytes(network.state_dict().values()), kept.total // rows, live.most // rows)


class _Kept:
    """Counts the tensors that autograd saves, each storage once, without the weights."""

    def __init__(self, network: nn.Module) -> None:
        self.known = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
        self.held: list[Tensor] = []
        self.total = 0

    def pack(self, value: Tensor) -> Tensor:
        """Count a saved tensor and keep it alive, so that no other tensor reuses its address."""
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.held.append(value.detach())
            self.total += storage.nbytes()
        return value


class _Live:
    """Records the largest sum of a layer's inputs and outputs."""

    def __init__(self) -> None:
        self.most = 0

    def see(self, _layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Forward hook that updates the maximum."""
        tensors = [value for value in (*inputs, output) if isinstance(value, Tensor)]
        self.most = max(self.most, sum(value.numel() * value.element_size() for value in tensors))


def _bytes(tensors: Any) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)
