"""Growth of cost: processor seconds against records, classes, image size, teachers and responses, with log-log slopes.

    python benchmarks/growth.py --picture docs/growth.png

A slope of 1 means that twice the size takes twice the time. It is fitted to all points by least squares; "last" is the
slope of the last two points, where fixed costs matter least. One thread; every point is the median of `--repeats`,
after a warm-up run. Networks are untrained and images random: neither changes the work.

- records: one pass of DP-SGD (hooks, batches of 256, 26k weights) over N records of 1x28x28.
- classes: nearest neighbours, precision, recall, density and coverage of 40 images a side in each of N classes.
- image side: a training step of the student `datalens` on 64 images of N x N pixels.
- teachers: a training step of N `shard-cnn` networks on 16 images each, in parallel.
- answers: DPSD's conversion, one student, with N responses and a step for every 8 of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"  # set before any library reads it

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from _timing import Clock, Loop, machine, positive, run, table  # noqa: E402
from convert import Bench, Variant  # noqa: E402
from ensemble import Training  # noqa: E402
from peer_pairs.private_training import network, our_loop, records  # noqa: E402

from bench import nets  # noqa: E402
from bench.metrics.distribution import prdc  # noqa: E402
from bench.metrics.inversion import knn_distance  # noqa: E402

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

CPU = torch.device("cpu")
Work = Callable[[], object]


@dataclass(frozen=True)
class Axis:
    """One growing quantity: its name, its values, and the repeatable work at a value."""

    name: str
    values: tuple[int, ...]
    work: Callable[[int], Work]


def private_pass(count: int) -> Work:
    """Prepare one pass of DP-SGD over `count` records."""
    model, private, train = network(), records(count), our_loop("opacus")
    return lambda: train(model, private, 256, count // 256, 1.0, 1.0)


def scoring(classes: int) -> Work:
    """Prepare the comparison of reconstructions and private images of `classes` classes, in 64 features."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40 * classes) % classes
    made, private = (torch.randn(len(labels), 64, generator=rng) for _ in range(2))
    return lambda: (knn_distance(made, labels, private, labels), prdc(made, labels, private, labels))


def student_step(side: int) -> Work:
    """Prepare a forward pass, a backward pass and an update."""
    torch.manual_seed(0)
    student = nets.build("datalens", (1, side, side), 10)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    images, labels = torch.rand(64, 1, side, side), torch.arange(64) % 10

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(student(images), labels).backward()
        optimizer.step()

    return step


def conversion(answers: int) -> Work:
    """Prepare DPSD at tier smoke with `answers` responses."""
    given = {"queries": answers, "student_steps": answers // 8, "committee": 1}
    args = Namespace(tier="smoke", rounds=1, scale=1.0, teacher="datalens", student="datalens", dataset="toy",
                     shape=(1, 16, 16), classes=10, private=64, repeats=1,
                     set=[(name, str(value)) for name, value in given.items()])  # fmt: skip
    made = Bench("dpsd", args, CPU)
    return lambda: made.convert(Variant("plain"), Loop(Clock(CPU)))


def ensemble_step(count: int) -> Work:
    """Prepare three steps of `count` teachers."""
    training = Training("shard-cnn", count, 16, "stacked", ((1, 16, 16), 10, CPU))
    return lambda: training.seconds_per_step(2)


AXES = (
    Axis("records", (1024, 2048, 4096, 8192), private_pass),
    Axis("classes", (10, 40, 160, 640), scoring),
    Axis("image side", (16, 24, 32, 48), student_step),
    Axis("teachers", (4, 8, 16, 32), ensemble_step),
    Axis("answers", (64, 128, 256, 512), conversion),
)


def seconds(work: Work, repeats: int) -> float:
    """Return the median processor time, after a warm-up."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def slopes(values: Sequence[int], taken: Sequence[float]) -> tuple[float, float]:
    """Return the slopes of log seconds over log value: fitted to all points, and between the last two.

    >>> slopes((1, 2, 4), (3.0, 6.0, 12.0))
    (1.0, 1.0)
    """
    x, y = np.log(values), np.log(taken)
    fitted = float(np.polyfit(x, y, 1)[0])
    return round(fitted, 2), round(float((y[-1] - y[-2]) / (x[-1] - x[-2])), 2)


def draw(found: dict[str, tuple[tuple[int, ...], list[float]]], path: Path) -> None:
    """Draw one panel per axis, both scales logarithmic, with a line of slope 1 through the last point."""
    figure = Figure(figsize=(2.4 * len(found), 2.6), layout="constrained")
    for place, (name, (values, taken)) in enumerate(found.items()):
        axes = figure.add_subplot(1, len(found), place + 1)
        axes.loglog(values, taken, "o-", color="black", markersize=4)
        axes.loglog(values, [taken[-1] * v / values[-1] for v in values], ":", color="grey", label="slope 1")
        axes.set_xticks(values, [str(v) for v in values], fontsize=7)
        axes.set_xticks([], minor=True)
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.set_title(f"{name}: slope {slopes(values, taken)[0]:g}", fontsize=9)
    figure.get_axes()[0].set_ylabel("processor seconds", fontsize=8)
    figure.get_axes()[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [axis.name for axis in AXES]
    parser.add_argument("--only", choices=names, action="append", help="only these (may be repeated)")
    parser.add_argument("--points", type=positive, default=4, help="of each, the smallest first (2 to 4; default 4)")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="a PNG to draw")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(CPU), flush=True)
    found, made = {}, []
    for axis in AXES:
        if axis.name in (given.only or names):
            values = axis.values[: max(given.points, 2)]
            taken = [seconds(axis.work(value), given.repeats) for value in values]
            found[axis.name] = values, taken
            points = "  ".join(f"{value}: {s:.3g}" for value, s in zip(values, taken, strict=True))
            made.append([axis.name, points, *(f"{slope:g}" for slope in slopes(values, taken))])
            print(f"{axis.name}: {points}", flush=True)
    print(table(["what", "value: seconds", "slope", "last"], made))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    run(main)
