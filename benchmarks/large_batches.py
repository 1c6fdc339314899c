"""Choose settings of `dp-sgd` and `ts-adp` at tier standard on USPS, which no row of the boards is measured on.

Batches are a twelfth of the records, as 4,096 of 50,000 are. The noise is divided by the ratio of the record counts, so
that it has the same weight as with 50,000 records at epsilon 1. Settings are drawn at random from wide ranges and
tested on all images of USPS outside their training set; the better half continues with one more seed (successive
halving). Prints the last four, and the first of them with four views of each record (De et al., 2022):

    python benchmarks/large_batches.py --data FOLDER --method dp-sgd
    bench run --tier standard --method dp-sgd --epsilon 1 --dataset mnist --method.rate RATE --method.clip CLIP ...

RATE is the printed one, divided by CLIP.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.model_selection import ParameterSampler

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench import data, nets, registry  # noqa: E402
from bench.config import configure  # noqa: E402
from bench.dp_training.accounting import DpSgdParameters, calibrate  # noqa: E402
from bench.dp_training.dp_sgd import train  # noqa: E402
from bench.dp_training.private_classifier import STANDARD, PrivateTraining  # noqa: E402
from bench.nets import Classifier  # noqa: E402
from bench.privacy import Budget  # noqa: E402
from bench.testing import context  # noqa: E402

RANGES = {
    "steps": [150, 300, 600],
    "clip": [0.03, 0.1, 0.3, 1.0],
    "rate": [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2],
    "momentum": [0.0, 0.9],
    "average": [0.0, 0.9, 0.98],
    "decay": [False, True],
}
"""The rate is for a gradient of length 1: it is divided by the clipping norm. 600 steps of 4,096 records are as many
gradients as the published 4,680 of 512."""
LAST = 4
"""Number of settings that remain at the end."""
RECORDS, EPSILON, DELTA = 50_000, 1.0, 1e-5
"""Records, epsilon and delta of the budget that is transferred."""
VIEWS = 4


@dataclass
class Search:
    """Inputs of all settings; `tried` caches results."""

    method: str
    private: tuple[torch.Tensor, torch.Tensor]
    judged: torch.Tensor
    truth: torch.Tensor
    classes: int
    tried: dict[str, list[float]] = field(default_factory=dict)

    def accuracy(self, drawn: dict[str, Any], seed: int) -> float:
        """Return the accuracy of one training, in [0, 1]."""
        options = drawn | {"rate": drawn["rate"] / drawn["clip"], "batch": STANDARD["batch"]}
        method = configure(
            registry.load("method", self.method), "standard", {k: str(v) for k, v in options.items()}, "method"
        )
        name, settings, parameters = self.scaled(method)
        torch.manual_seed(seed)
        shape = self.private[0].shape[1:]
        network: Classifier = nets.build(name, (shape[0], shape[1], shape[2]), self.classes)
        try:
            train(network, name, self.private, settings, parameters, context(seed), "search")
        except RuntimeError:
            if all(bool(w.isfinite().all()) for w in network.parameters()):
                raise
            return 0.0  # diverged: the worst possible result
        with torch.no_grad():
            answers = torch.cat([network(part.float() / 255).argmax(1) for part in self.judged.split(500)])
        return float((answers == self.truth).float().mean())

    def scaled(self, method: PrivateTraining) -> tuple[str, Any, DpSgdParameters]:
        """Return the network's name, and settings and mechanism for these few records, with the noise weight of
        many."""
        settings, records = method.settings("mnist"), len(self.private[0])
        many = calibrate(settings.parameters(RECORDS), Budget(EPSILON, delta=DELTA))
        few = records / RECORDS
        settings = replace(settings, batch=round(settings.batch * few), multiplier=many.multiplier * few)
        return method.network, settings, settings.parameters(records)

    def score(self, drawn: dict[str, Any], seeds: int) -> float:
        """Return the mean over `seeds` seeds; each is trained once."""
        known = self.tried.setdefault(str(drawn), [])
        known += [self.accuracy(drawn, seed) for seed in range(len(known), seeds)]
        return statistics.fmean(known)


def main() -> None:
    """Run successive halving, and print every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data-root`")
    parser.add_argument("--method", choices=("dp-sgd", "ts-adp"), default="dp-sgd")
    parser.add_argument("--settings", type=int, default=16, help="drawn from the ranges (default 16)")
    given = parser.parse_args()
    usps = data.load("usps", given.data)
    split = data.split(usps, "iid")
    search = Search(
        given.method,
        data.private_part(usps, split),
        torch.cat([usps.train_images[split.aux], usps.test_images]),
        torch.cat([usps.train_labels[split.aux], usps.test_labels]),
        usps.classes,
    )
    left, seeds = list(ParameterSampler(RANGES, given.settings, random_state=0)), 1
    while True:
        left.sort(key=lambda drawn: -search.score(drawn, seeds))
        print(f"\n{len(left)} settings, {seeds} seeds")
        for drawn in left[:LAST]:
            print(f"{search.score(drawn, seeds):.4f}", drawn, flush=True)
        if len(left) <= LAST:
            break
        left, seeds = left[: max(LAST, len(left) // 2)], seeds + 1
    viewed = left[0] | {"views": VIEWS}
    print(f"{search.score(viewed, seeds):.4f} the first, {VIEWS} views of each record, {seeds} seeds", flush=True)


if __name__ == "__main__":
    main()
