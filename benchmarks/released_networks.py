"""Size and speed of networks that the private baselines release: parameters, megabytes, and milliseconds an image.

    OMP_NUM_THREADS=1 python benchmarks/released_networks.py

Times are processor milliseconds on one thread, for batches of 64 images, the smallest of five repetitions. Weights do
not change them, so that networks are not trained. docs/true-epsilon.md has the table.
"""

from __future__ import annotations

import argparse
import time

import torch
from safetensors.torch import save
from torch import Tensor

from bench import nets
from bench.nets import Classifier

Shape = tuple[int, int, int]
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
RELEASED: list[tuple[str, Shape, str]] = [
    ("wavelet-linear", GREY, "private-features"),
    ("patch-wavelet-linear", GREY, "patch-features"),
    ("datalens", GREY, "students of the papers"),
    ("strided-cnn", GREY, "students of dp-teacher"),
    ("resnet18", GREY, "a teacher, for comparison"),
    ("wavelet-linear-mirrored", COLOUR, "private-features"),
    ("patch-wavelet-linear-mirrored", COLOUR, "patch-features"),
    ("strided-cnn", COLOUR, "students of dp-teacher"),
    ("resnet18", COLOUR, "a teacher, for comparison"),
]
BATCH, REPETITIONS = 64, 5


def milliseconds(network: Classifier, images: Tensor) -> float:
    """Return the processor milliseconds that the network takes per image."""
    found = []
    with torch.no_grad():
        for _ in range(REPETITIONS + 1):
            start = time.process_time()
            network(images)
            found.append(time.process_time() - start)
    return 1000 * min(found[1:]) / len(images)


def main() -> None:
    """Print the table in Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(0)
    print("| image | network | released by | parameters | weights, MB | ms an image |\n|---|---|---|--:|--:|--:|")
    for name, shape, method in RELEASED:
        network = nets.build(name, shape, 10).eval()
        count = sum(weight.numel() for weight in network.parameters())
        size = len(save({key: value.contiguous() for key, value in network.state_dict().items()})) / 1e6
        spent = milliseconds(network, torch.rand(BATCH, *shape))
        print(f"| {'x'.join(map(str, shape))} | `{name}` | {method} | {count:,} | {size:.2f} | {spent:.2f} |")


if __name__ == "__main__":
    main()
