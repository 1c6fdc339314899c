"""Choose settings of `private-features` on USPS, which no row of the boards is measured on.

Settings are drawn at random from wide ranges that are not centred at any defaults. Each is trained on USPS at the
budget whose mu times the number of records is that of 50,000 records at epsilon 1, so that noise has the same weight;
it is tested on all images of USPS outside its training set, with several seeds of the noise. The best half continues
with one more seed, and so on (successive halving), so that the winner is not the luckiest of many. Prints the
last eight, the first of them with other whitening, and the result of the defaults:

    python benchmarks/untuned.py --data FOLDER
    bench run --method private-features --epsilon 1 --dataset mnist --method.steps ... (as printed)
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

from bench import data  # noqa: E402
from bench.api import Context, Teacher  # noqa: E402
from bench.dp_training.feature_training import FeatureTraining  # noqa: E402
from bench.dp_training.records import private_records  # noqa: E402
from bench.privacy import Budget  # noqa: E402
from bench.testing import context  # noqa: E402

RANGES = {
    "steps": [15, 30, 60, 120, 240],
    "clip": [0.03, 0.1, 0.3, 1.0],
    "share": [0.05, 0.1, 0.2, 0.4],
    "logit_noise": [0.2, 0.4, 0.75, 1.5, 3.0],
    "kappa": [0.25, 0.5, 1.0, 2.0],
    "momentum": [0.0, 0.5, 0.9, 0.95],
    "average": [0.0, 0.25, 0.5],
}
"""Ranges from certainly too little to certainly too much; 240 steps are the limit of five minutes on two cores."""
LAST = 8
"""Number of settings that remain at the end."""
RECORDS, EPSILON, DELTA = 50_000, 1.0, 1e-5
"""Records, epsilon and delta of the budget that is transferred."""


@dataclass(frozen=True)
class Search:
    """Inputs of all settings."""

    teacher: Teacher
    judged: torch.Tensor
    truth: torch.Tensor
    contexts: dict[int, Context] = field(default_factory=dict)
    """Contexts by seed; each keeps the features, which are the same for all settings."""

    def accuracy(self, settings: dict[str, Any], seed: int) -> float:
        """Return the accuracy of one training with that noise."""
        trained = FeatureTraining(**settings)
        kind = trained.kind(self.teacher.shape)
        multiplier = _multiplier(len(private_records(self.teacher)[0]))
        left = 1 - trained.share if kind == "private" else 1.0
        scaled = replace(trained, multiplier=multiplier * trained.steps**0.5 / left**0.5)
        spending = scaled.spending(kind, Budget(None, solve="none"))
        ctx = self.contexts.setdefault(seed, context(seed))
        student = scaled.train(self.teacher, spending, DELTA, ctx).student
        with torch.no_grad():
            answers = torch.cat([student(part.float() / 255).argmax(1) for part in self.judged.split(500)])
        return float((answers == self.truth).float().mean())


def main() -> None:
    """Run successive halving, and print every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data`")
    parser.add_argument("--settings", type=int, default=128, help="drawn from the ranges")
    given = parser.parse_args()
    usps = data.load("usps", given.data)
    split = data.split(usps, "iid")
    images, labels = data.private_part(usps, split)
    teacher = Teacher(torch.nn.Identity(), "none", tuple(images.shape[1:]), usps.classes, usps.name, (images, labels))  # type: ignore[arg-type]
    search = Search(
        teacher,
        torch.cat([usps.train_images[split.aux], usps.test_images]),
        torch.cat([usps.train_labels[split.aux], usps.test_labels]),
    )
    found: list[tuple[dict[str, Any], list[float]]] = [
        (settings, []) for settings in ParameterSampler(RANGES, given.settings, random_state=0)
    ]
    seeds = 1
    while True:
        for settings, scores in found:
            scores += [search.accuracy(settings, seed) for seed in range(len(scores), seeds)]
        found.sort(key=lambda each: -statistics.fmean(each[1]))
        print(f"\n{len(found)} settings, {seeds} seeds of the noise")
        for settings, scores in found[:LAST]:
            print(f"{statistics.fmean(scores):.4f}", settings, flush=True)
        if len(found) <= LAST:
            break
        found, seeds = found[: max(LAST, len(found) // 2)], seeds + 1
    best = found[0][0]
    others = [(f"the first, whitening {kind}", best | {"whitening": kind}) for kind in ("public", "none")]
    for name, settings in (*others, ("the defaults", {})):
        scores = [search.accuracy(settings, seed) for seed in range(seeds)]
        print(f"{statistics.fmean(scores):.4f} {name}, {seeds} seeds", flush=True)


def _multiplier(records: int) -> float:
    """Return 1 / mu, where mu times the number of records is that of the transferred budget."""
    mu = FeatureTraining().spending("none", Budget(EPSILON, delta=DELTA)).mu
    return records / (mu * RECORDS)


if __name__ == "__main__":
    main()
