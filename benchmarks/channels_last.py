"""Speed-up from the channels-last layout of a frozen network: for queries and for gradients with respect to images.

    python benchmarks/channels_last.py

Both layouts of one network run on the same random images, one measurement of each alternately, repeated. Prints ratios
of medians, the default layout's time over that of channels-last: for a query, for the gradient of images, and for a
training step, which frozen networks do not need. `bench.pipeline.trained.frozen` is based on the first two.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from _timing import machine, positive, run, table
from torch import Tensor, nn
from torch.nn import functional as F

from bench import nets
from bench.pipeline.trained import frozen

NETWORKS = (
    ("resnet18", (1, 28, 28), 64),
    ("resnet18", (1, 28, 28), 512),
    ("resnet18", (3, 32, 32), 64),
    ("resnet34", (1, 28, 28), 64),
    ("face-net", (3, 64, 64), 64),
    ("datalens", (1, 28, 28), 256),
    ("evaluator-cnn", (1, 28, 28), 64),
)
"""Network, shape of an image, batch size."""
CLASSES = 10
CPU = torch.device("cpu")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=5)
    given = parser.parse_args()
    rows = []
    for arch, shape, count in NETWORKS:
        plain = nets.build(arch, shape, CLASSES)
        images, labels = torch.rand(count, *shape), torch.arange(count) % CLASSES
        last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pair = (copy.deepcopy(plain).eval().requires_grad_(False), frozen(copy.deepcopy(plain), CPU))
        rows.append(
            [
                f"{arch} {'x'.join(map(str, shape))}, {count} images",
                _ratio(pair, lambda net, x=images: _answer(net, x), given.repeats),
                _ratio(pair, lambda net, x=images, y=labels: _gradient(net, x, y), given.repeats),
                _ratio((plain.train(), last.train()), lambda net, x=images, y=labels: _step(net, x, y), given.repeats),
            ]
        )
    print(machine(CPU))
    print(table(("network", "answer", "gradient of images", "training"), rows))


def _ratio(pair: tuple[nn.Module, nn.Module], work: Callable[[nn.Module], None], repeats: int) -> str:
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for network, taken in zip(pair, seconds, strict=True):
            start = time.perf_counter()
            work(network)
            if repeat:  # the first call selects algorithms and is not counted
                taken.append(time.perf_counter() - start)
    return f"{statistics.median(seconds[0]) / statistics.median(seconds[1]):.2f}"


def _answer(net: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        net(images)


def _gradient(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    asked = images.clone().requires_grad_()
    torch.autograd.grad(F.cross_entropy(net(asked), labels), asked)


def _step(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    net.zero_grad()
    F.cross_entropy(net(images), labels).backward()


if __name__ == "__main__":
    run(main)
