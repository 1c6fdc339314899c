"""Speed-up from drawing dropout masks as integers: torch's own dropout compared with `bench.nets.small_net.Dropout`.

    python benchmarks/dropout.py

One measurement of each alternately, repeated, of processor time. Prints ratios of medians, torch's time over ours: of
the layer only, and of a training step of the networks that have it.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from _timing import machine, positive, table
from torch import Tensor, nn
from torch.nn import functional as F

from bench import nets
from bench.nets.small_net import Dropout

NETWORKS = (
    ("datalens", (1, 16, 16), 256),
    ("datalens", (1, 28, 28), 256),
    ("evaluator-cnn", (1, 28, 28), 64),
    ("face-net", (3, 64, 64), 64),
)
"""Network, shape of an image, batch size."""
CLASSES = 10


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=9)
    given = parser.parse_args()
    maps = torch.rand(256, 64, 11, 11, requires_grad=True)
    layers = (nn.Dropout(0.25), Dropout(0.25))
    rows = [["dropout of 256x64x11x11", _ratio(layers, lambda layer: layer(maps).sum().backward(), given.repeats)]]
    for arch, shape, count in NETWORKS:
        ours = nets.build(arch, shape, CLASSES).train()
        images, labels = torch.rand(count, *shape), torch.arange(count) % CLASSES
        step = _step(images, labels)
        rows.append([f"{arch} {'x'.join(map(str, shape))}, {count} images", _ratio(_both(ours), step, given.repeats)])
    print(machine(torch.device("cpu")))
    print(table(("", "torch's time over ours"), rows))


def _both(ours: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return a copy of the network with torch's dropout, and the network."""
    theirs = copy.deepcopy(ours)
    for parent in theirs.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, Dropout):
                setattr(parent, name, nn.Dropout(layer.p))
    return theirs, ours


def _step(images: Tensor, labels: Tensor) -> Callable[[nn.Module], None]:
    def step(network: nn.Module) -> None:
        network.zero_grad()
        F.cross_entropy(network(images), labels).backward()

    return step


def _ratio(pair: tuple[nn.Module, nn.Module], work: Callable[[nn.Module], None], repeats: int) -> str:
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for network, into in zip(pair, spent, strict=True):
            start = time.process_time()
            work(network)
            into.append(time.process_time() - start)
    theirs, ours = map(statistics.median, spent)
    return f"{theirs / ours:.2f}"


if __name__ == "__main__":
    main()
