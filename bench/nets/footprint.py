"""How much memory a network takes: its weights, and what one image takes on its way through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
FLOAT = 4
"""Bytes of a number."""
OF_ADAM = 4
"""Tensors of a weight's size in a training step: itself, its gradient, and two moments."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a network.

    Attributes:
        weights: of all parameters and buffers.
        kept: of the tensors that one image keeps for the backward pass.
        live: of the tensors that one image holds at once in a pass without gradients, at most.
    """

    weights: int
    kept: int
    live: int

    def training(self, batch: int) -> int:
        """Bytes of a training step by Adam: weights, gradients, moments, and what the batch keeps."""
        return OF_ADAM * self.weights + batch * (self.kept + self.live)

    def querying(self, batch: int) -> int:
        """Bytes of a pass without gradients."""
        return self.weights + batch * self.live

    def descending(self, batch: int) -> int:
        """Bytes of a gradient at the images, of a network that is not trained."""
        return self.weights + batch * (self.kept + self.live)


def footprint(network: nn.Module, *inputs: Tensor) -> Footprint:
    """Measure it with the given inputs of a batch of two; nothing is left in the network.

    Args:
        inputs: of `forward`, two rows each, on the network's device.
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
    """Counts the tensors that autograd keeps, each storage once, without the weights."""

    def __init__(self, network: nn.Module) -> None:
        self.known = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
        self.held: list[Tensor] = []
        self.total = 0

    def pack(self, value: Tensor) -> Tensor:
        """Count a tensor that is saved; it is kept alive, so that no other one comes to have its place."""
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.held.append(value.detach())
            self.total += storage.nbytes()
        return value


class _Live:
    """The largest sum of a layer's inputs and outputs."""

    def __init__(self) -> None:
        self.most = 0

    def see(self, _layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """A forward hook."""
        tensors = [value for value in (*inputs, output) if isinstance(value, Tensor)]
        self.most = max(self.most, sum(value.numel() * value.element_size() for value in tensors))


def _bytes(tensors: Any) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)
