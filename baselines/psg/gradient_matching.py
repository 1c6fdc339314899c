"""Gradient matching of PSG: the distance of two gradients, and the training of the matching network.

After Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching", ICLR 2021.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.psg.synthetic_set import BATCH
from bench.dp_training.private_gradient import Parameters

SMALL = 1e-6


class Released(NamedTuple):
    """One private gradient: theta, and the noisy mean gradient there, which may be reused without further cost."""

    weights: Parameters
    gradient: Parameters


def gradient_distance(network: nn.Module, found: Released, synthetic: Tensor, targets: Tensor) -> Tensor:
    """Compute D, differentiable in `synthetic`: the distance of the gradient on S from a private gradient.

    D is the sum of 1 - <a, b> / (|a| |b| + 1e-6) over weights of two or more dimensions and over their first dimension.

    Args:
        network: the architecture; its current weights are not used.
        found: the weights and the private gradient.
        synthetic, targets: (n, c, h, w) in the network's units, (n,) int64.
    """
    weights = {name: value.detach().requires_grad_() for name, value in found.weights.items()}
    loss = F.cross_entropy(torch.func.functional_call(network, weights, (synthetic,)), targets)
    matched = [name for name, value in weights.items() if value.ndim > 1]
    gradients = torch.autograd.grad(loss, [weights[name] for name in matched], create_graph=True)
    total = synthetic.new_zeros(())
    for name, gradient in zip(matched, gradients, strict=True):
        ours, theirs = gradient.flatten(1), found.gradient[name].flatten(1)
        norms = ours.norm(dim=1) * theirs.norm(dim=1)
        total = total + (1 - (ours * theirs).sum(1) / (norms + SMALL)).sum()
    return total


@torch.no_grad()
def reinitialise(network: nn.Module, rng: torch.Generator) -> None:
    """Draw new weights in place, as torch does: U(-b, b), b = 1 / sqrt(inputs); normalisations get scale 1, shift 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            layer.weight.uniform_(-bound, bound, generator=rng)
            if layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=rng)
        elif isinstance(layer, nn.GroupNorm):
            layer.weight.fill_(1.0)
            layer.bias.fill_(0.0)


def train_on_set(
    network: nn.Module, images: Tensor, labels: Tensor, passes: int, rate: float, rng: torch.Generator
) -> None:
    """Train in place by plain SGD on S in shuffled batches of 256."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(passes):
        for chosen in torch.randperm(len(images), generator=rng, device=rng.device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
