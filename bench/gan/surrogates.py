"""Networks that an attacker trains to stand in for the target: their names as an option, and their seeded training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from bench import nets
from bench.api import Context, Target
from bench.errors import BenchError
from bench.seeds import derive


def architectures(names: str) -> list[str]:
    """Return the networks of an option: names separated by commas; "none" = no network."""
    return [] if names == "none" else [name.strip() for name in names.split(",")]


def check_architectures(option: str, names: str) -> None:
    """Raise ValueError if a network of an option does not exist."""
    try:
        for arch in architectures(names):
            nets.check(arch)
    except BenchError as error:
        raise ValueError(f"{option} is {names}; {error}") from None


def unbuildable(option: str, names: str, shape: tuple[int, int, int], classes: int) -> str | None:
    """Return why a network of an option cannot have images of this (c, h, w) shape; None if all can."""
    try:
        with torch.random.fork_rng(devices=[]):
            for arch in architectures(names):
                nets.build(arch, shape, classes)
    except BenchError as error:
        return f"{option}: {error}"
    return None


def train_surrogates(
    names: str, target: Target, ctx: Context, seed: str, fit: Callable[[nn.Module, int], None]
) -> list[nn.Module]:
    """Build each network of an option by its own seed, and train it.

    Args:
        seed: name of the seed of the initial weights and of dropout.
        fit: trains a network, the k-th, in place.

    Returns:
        The networks, frozen, in eval mode.
    """
    found: list[nn.Module] = []
    for k, arch in enumerate(architectures(names)):
        with torch.random.fork_rng(devices=[ctx.device] if ctx.device.type == "cuda" else []):
            torch.manual_seed(derive(ctx.seed, seed, k))
            network = ctx.prepared(nets.build(arch, target.shape, target.classes)).train()
            fit(network, k)
        found.append(network.eval().requires_grad_(False))
    return found
