r"""Choose a setting of a method that trains on private records, on images that no board tests on.

The method converts the private part of a data set (split iid) with each value of an option; its student is tested on
the attacker's part of the same split, whose images are neither private nor the test set. One seed each. For example the
learning rate of DP-SGD and its schedule (`FALLING_RATE`):

    python benchmarks/attackers_part.py --dataset fmnist --method dp-sgd --option rate --value 2 --value 8

With `--epsilon none` no noise is solved for, and an option can be the noise itself:

    python benchmarks/attackers_part.py --dataset mnist --method gs-wgan --epsilon none --set critics=1 \
        --option sigma --value 0
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from convert import setting

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench import data, registry  # noqa: E402
from bench.api import Teacher  # noqa: E402
from bench.config import configure  # noqa: E402
from bench.errors import BenchError  # noqa: E402
from bench.privacy import Budget  # noqa: E402
from bench.testing import context  # noqa: E402


def main() -> None:
    """Print one line per data set, method, epsilon and value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data-root`")
    parser.add_argument("--dataset", action="append", required=True, help="may be repeated")
    parser.add_argument("--method", action="append", required=True, help="may be repeated")
    parser.add_argument("--option", help="of the methods (default: none, the methods as they are)")
    parser.add_argument("--value", action="append", help="of the option; may be repeated")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="another one; may be repeated"
    )
    parser.add_argument("--epsilon", action="append", type=budget, help="or none; may be repeated (default 1)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for dataset in given.dataset:
        teacher, judged, truth = material(dataset, given.data)
        for name in given.method:
            for spent in given.epsilon or [Budget(1.0)]:
                for value in given.value or [""]:
                    torch.manual_seed(given.seed)
                    options = dict(given.set) | ({given.option: value} if given.option else {})
                    method = configure(registry.load("method", name), "quick", options, "method")
                    release = method.convert(teacher, "datalens", spent, context(given.seed))
                    with torch.no_grad():
                        answers = [release.student(part.float() / 255).argmax(1) for part in judged.split(500)]
                    right = float((torch.cat(answers) == truth).float().mean())
                    of = ", ".join(f"{option} {chosen}" for option, chosen in options.items()) or "as it is"
                    print(f"{dataset} {name} epsilon {spent.epsilon or 'none'} {of}: {100 * right:.2f} %", flush=True)


def budget(typed: str) -> Budget:
    """Parse an epsilon, or "none": no budget, so that the method's own noise is used."""
    if typed == "none":
        return Budget(None, solve="none")
    try:
        return Budget(float(typed))
    except BenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def material(name: str, folder: Path | None) -> tuple[Teacher, torch.Tensor, torch.Tensor]:
    """Return a teacher with the private part that answers no queries; images and labels of the attacker's part."""
    images = data.load(name, folder)
    split = data.split(images, "iid")
    private, labels = data.private_part(images, split)
    shape = tuple(private.shape[1:])
    teacher = Teacher(torch.nn.Identity(), "none", shape, images.classes, images.name, (private, labels))  # type: ignore[arg-type]
    return teacher, images.train_images[split.aux], images.train_labels[split.aux]


if __name__ == "__main__":
    main()
