r"""Compare images as queries to one private classifier: how much a student learns from each kind.

The classifier is trained once on the private part of a data set (split iid) at epsilon 1, by `private-features`. Each
kind of images is sent to it in one round, and a new student learns the responses. Its accuracy, and its agreement with
the classifier, are measured on images of the attacker's part, which are neither private nor the test set. A kind is a
prior (or several, A+B), or `attackers-part`: real images from the rest of that part, for an upper bound of any prior.
`bench run` is more accurate than one round, as it chooses queries in several rounds.

    python benchmarks/query_images.py --dataset cifar10 --whitening private --images shapes --images leaves \
        --images attackers-part --queries 5000 --steps 400 --judged 1500 --flips
    python benchmarks/query_images.py --dataset fmnist --images shapes+pen --children 0.5 --move 0.5 --class-weight 0.1
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from attackers_part import material
from torch import Tensor, nn

from bench import nets, priors, registry
from bench.api import Teacher
from bench.config import configure
from bench.data import to_float
from bench.distillation.class_moments import typical_images
from bench.distillation.class_moments.typical_images import ClassTargets, TypicalImages
from bench.distillation.transcription.learner import Schedule, StudentTrainer
from bench.distillation.transcription.likelihoods import soft_loss
from bench.distillation.transcription.queries import AnnotatedImages, compute_logits, mutate, to_bytes
from bench.distillation.transcription.soft import ENTROPY, find_temperature
from bench.dp_training.feature_training import FeatureTraining
from bench.dp_training.whitening import Typicality, Whitening
from bench.nets import Classifier
from bench.nets.small_net import xavier
from bench.privacy import Budget
from bench.testing import context

REAL = "attackers-part"
RATE, BATCH = 8e-3, 128
FOR_TEMPERATURE = 1500
"""Number of a kind's images from which the temperature of the responses is computed."""


def main() -> None:
    """Print one line per kind of images."""
    given = arguments()
    teacher, images, labels = material(given.dataset, given.data)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(5))
    images, labels = images[order], labels[order]
    judged, truth, rest = images[: given.judged], labels[: given.judged], images[given.judged :]
    method = cast(FeatureTraining, configure(registry.load("method", "private-features"), "quick", {}, "method"))
    method = replace(method, whitening=given.whitening)
    ctx, budget = context(given.seed), Budget(1.0)
    spending = method.spending(method.kind(teacher.shape), budget)
    release, white = method.train_and_whiten(teacher, spending, budget.delta, ctx)
    model = cast(Classifier, release.student)
    expected = compute_logits(model, judged).argmax(1)
    print(f"classifier: {percent(expected == truth)} on {len(judged):,} images", flush=True)
    for kind in given.images:
        queries = draw(kind, rest, teacher, given)
        logits = compute_logits(model, queries[-FOR_TEMPERATURE:])
        temperature = find_temperature(logits, ENTROPY)
        if given.move:
            typicality = Typicality(model, cast(Whitening, white), ctx)
            queries = moved(queries, typicality, temperature, teacher.classes, given)
        student = taught(queries, compute_logits(model, queries), teacher, given)
        found = compute_logits(student, judged).argmax(1)
        print(
            f"{kind}, {len(queries):,}: {percent(found == truth)}, agrees on {percent(found == expected)}", flush=True
        )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data-root`")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--images", action="append", required=True, help=f"a prior, or {REAL}; may be repeated")
    parser.add_argument("--whitening", default="auto", choices=("auto", "private", "public", "none"))
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--children", type=float, default=0.0, help="share of transformed copies among the queries")
    parser.add_argument("--move", type=float, default=0.0, help="share of queries moved to typical images")
    parser.add_argument("--class-weight", type=float, default=0.0, help="weight of a random class in these moves")
    parser.add_argument("--flips", action="store_true", help="mirror the student's training images at random")
    parser.add_argument("--steps", type=int, default=600, help="of the student")
    parser.add_argument("--student", default="strided-cnn")
    parser.add_argument("--judged", type=int, default=3000, help="images of the attacker's part that are tested on")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def draw(kind: str, rest: Tensor, teacher: Teacher, given: argparse.Namespace) -> Tensor:
    """Return (n, c, h, w) uint8 images of a kind, at most `queries`."""
    rng = torch.Generator().manual_seed(100 + given.seed)
    new = round(given.queries * (1 - given.children))
    images = rest[:new] if kind == REAL else to_bytes(priors.load(kind).draw(new, teacher.shape, rng))
    if new < given.queries:
        parents = torch.randint(0, len(images), (given.queries - new,), generator=rng)
        images = torch.cat([images, to_bytes(mutate(to_float(images[parents]), rng))])
    return images[torch.randperm(len(images), generator=rng)]


def moved(
    images: Tensor, typicality: Typicality, temperature: float, classes: int, given: argparse.Namespace
) -> Tensor:
    """Return the images, a share of which is moved to typical images."""

    def objective(x: Tensor, wanted: Tensor) -> Tensor:
        found = typicality.with_classes(x, wanted, temperature)
        return found.lengths + given.class_weight * found.losses

    typical_images.SHARE = given.move
    targets = ClassTargets(objective, classes) if given.class_weight else None
    return TypicalImages(typicality, targets)(images, torch.Generator().manual_seed(given.seed))


def taught(images: Tensor, logits: Tensor, teacher: Teacher, given: argparse.Namespace) -> nn.Module:
    """Train a student on the responses to these images."""
    torch.manual_seed(given.seed)
    ctx, rng = context(given.seed), torch.Generator().manual_seed(given.seed)
    temperature = find_temperature(logits, ENTROPY)
    annotated = AnnotatedImages(teacher.shape, teacher.classes, ctx.device)
    annotated.add(images, (logits / temperature).log_softmax(1))
    student = xavier(nets.build(given.student, teacher.shape, teacher.classes))
    schedule = Schedule(given.steps, RATE, BATCH, jitter=False, balanced=True, flips=given.flips)
    trainer = StudentTrainer(schedule, student, ctx, soft_loss, rng)
    trainer.train(annotated, given.steps, lambda done: None)
    return student.eval()


def percent(right: Tensor) -> str:
    """Return the share of True in per cent."""
    return f"{100 * float(right.float().mean()):.2f} %"


if __name__ == "__main__":
    main()
