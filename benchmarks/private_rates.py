"""The learning rate of networks that are trained privately, chosen on the attacker's part, which no board tests on.

Each method of `FALLING_RATE` trains at tier quick on the private part of a data set (split iid) with each rate; it is
judged on the attacker's part of the same split, whose images are neither private nor the test set. One seed each:

    python benchmarks/private_rates.py --dataset mnist --dataset fmnist --data FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench import data, registry  # noqa: E402
from bench.api import Teacher  # noqa: E402
from bench.config import configure  # noqa: E402
from bench.privacy import Budget  # noqa: E402
from bench.testing import context  # noqa: E402

METHODS = ("dp-sgd", "ts-adp", "gm-dp", "zcdp")
RATES = (1.0, 2.0, 4.0, 8.0, 16.0)


def main() -> None:
    """Print one line per method, data set, epsilon and rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data`")
    parser.add_argument("--dataset", action="append", help="may be repeated (default mnist)")
    parser.add_argument("--method", action="append", help=f"may be repeated (default {', '.join(METHODS)})")
    parser.add_argument("--rate", action="append", type=float, help=f"may be repeated (default {RATES})")
    parser.add_argument("--epsilon", action="append", type=float, help="may be repeated (default 1)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for dataset in given.dataset or ["mnist"]:
        teacher, judged, truth = _material(dataset, given.data)
        for name in given.method or METHODS:
            for epsilon in given.epsilon or [1.0]:
                for rate in given.rate or RATES:
                    torch.manual_seed(given.seed)
                    method = configure(registry.load("method", name), "quick", {"rate": str(rate)}, "method")
                    release = method.convert(teacher, "datalens", Budget(epsilon), context(given.seed))
                    with torch.no_grad():
                        answers = [release.student(part.float() / 255).argmax(1) for part in judged.split(500)]
                    right = float((torch.cat(answers) == truth).float().mean())
                    print(f"{dataset} {name} epsilon {epsilon:g} rate {rate:g}: {100 * right:.2f} %", flush=True)


def _material(name: str, folder: Path | None) -> tuple[Teacher, torch.Tensor, torch.Tensor]:
    """A teacher that holds the private part and answers nothing; images and labels of the attacker's part."""
    images = data.load(name, folder)
    split = data.split(images, "iid")
    private, labels = data.private_part(images, split)
    shape = tuple(private.shape[1:])
    teacher = Teacher(torch.nn.Identity(), "none", shape, images.classes, images.name, (private, labels))  # type: ignore[arg-type]
    return teacher, images.train_images[split.aux], images.train_labels[split.aux]


if __name__ == "__main__":
    main()
