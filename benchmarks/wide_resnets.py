"""Train `dp-wrn` at one budget with several numbers of views; print accuracy with and without the averaged weights.

One training gives both: the average is post-processing. CPU seconds are those of this process, for a step and for a
view of a record, from which the time of the published size follows:

    python benchmarks/wide_resnets.py --dataset digits --views 1 4 --epsilon 8
    python benchmarks/wide_resnets.py --dataset cifar10-jpeg --network wrn-16-4 --views 16 --batch 16 --steps 2
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from baselines.dp_wrn import DpWrn  # noqa: E402
from bench import data, nets  # noqa: E402
from bench.config import configure  # noqa: E402
from bench.data import to_float  # noqa: E402
from bench.dp_training import dp_sgd  # noqa: E402
from bench.dp_training.dp_sgd import WeightAverage, train  # noqa: E402
from bench.nets import Classifier  # noqa: E402
from bench.privacy import Budget  # noqa: E402
from bench.testing import context  # noqa: E402


class BothWeights(WeightAverage):
    """A weight average that also keeps the last weights, in `last`."""

    last: list[Tensor]

    def apply(self) -> None:
        """Keep the last weights, then copy the average into the network."""
        BothWeights.last = [p.detach().clone() for p in self.parameters]
        super().apply()


def accuracy(network: Classifier, images: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions, in percent."""
    with torch.no_grad():
        found = torch.cat([network.eval()(to_float(part)).argmax(1) for part in images.split(200)])
    return 100 * float((found == labels).float().mean())


def main() -> None:
    """Train once for every number of views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data-root`")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--tier", default="quick")
    parser.add_argument("--views", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=1)
    for name in ("network", "batch", "steps", "rate", "chunk", "clip"):
        parser.add_argument(f"--{name}", help="as --method." + name)
    given = parser.parse_args()
    options = {
        name: value for name in ("network", "batch", "steps", "rate", "chunk", "clip") if (value := vars(given)[name])
    }
    found = data.load(given.dataset, given.data)
    private = data.private_part(found, data.split(found, "iid"))
    dp_sgd.WeightAverage = BothWeights  # type: ignore[misc]
    for views in given.views:
        method = configure(DpWrn, given.tier, {**options, "views": str(views)}, "method")
        settings = method.settings(found.name)
        parameters = method._calibrate(settings, len(private[0]), Budget(given.epsilon))
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            network = nets.build(method.network, found.shape, found.classes)
            network.mean.fill_(method.mean)
            network.std.fill_(method.std)
            start = time.process_time()
            train(network, method.network, private, replace(settings, views=views), parameters, context(seed), "train")
            spent = time.process_time() - start
            averaged = accuracy(network, found.test_images, found.test_labels)
            for parameter, last in zip(network.parameters(), BothWeights.last, strict=True):
                parameter.data.copy_(last)
            plain = accuracy(network, found.test_images, found.test_labels)
            records = parameters.sampling * len(private[0])
            print(
                f"{found.name} {method.network} K={views} seed {seed}: {averaged:.1f} % averaged, {plain:.1f} % last "
                f"weights; {parameters.steps} steps of {records:.0f} of {len(private[0])} records, sigma "
                f"{parameters.multiplier:.2f}; {spent / parameters.steps:.2f} CPU s a step, "
                f"{1000 * spent / parameters.steps / records / views:.2f} ms a view",
                flush=True,
            )


if __name__ == "__main__":
    main()
