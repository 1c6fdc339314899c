"""Speed of training over several devices, compared with one of them: `bench run --devices N`.

    python benchmarks/ranks.py --device cpu --devices 2

Trainings of a teacher (`bench.teachers.fit`) and by DP-SGD (`bench.dp_training.dp_sgd.train`) run on random images, on
one device and on all alternately, repeated; on a CPU set OMP_NUM_THREADS=1, so that each process uses one core. A
step's time is the difference between a training of several steps and one of a single step, which excludes the start.
Prints the median and, in brackets, minimum and maximum; the ratio is one device's time over that of all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from _timing import Clock, machine, positive, run, shape_of, spread, table
from torch import Tensor

from bench import nets
from bench.dp_training.dp_sgd import train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.pipeline.devices import pick_devices
from bench.ranks import Ranks
from bench.teachers import Recipe, fit
from bench.testing import context

CLASSES = 10
Training = Callable[[Ranks | None, int], None]
"""Function of the ranks and a number of steps that trains."""


def records(count: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), generator=rng, dtype=torch.uint8), torch.arange(count) % CLASSES


def teacher(net: str, batch: int, shape: tuple[int, int, int], device: torch.device) -> Training:
    """Prepare the training of a teacher by its standard recipe."""
    images, labels = records(4 * batch, shape)

    def begin(ranks: Ranks | None, steps: int) -> None:
        recipe = Recipe(epochs=steps, max_steps=steps, batch=batch)
        fit(nets.build(net, shape, CLASSES), images, labels, recipe, device, 0, ranks=ranks)

    return begin


def private(net: str, batch: int, shape: tuple[int, int, int], device: torch.device) -> Training:
    """Prepare DP-SGD with sampling rate 1/4."""
    made = records(4 * batch, shape)

    def begin(ranks: Ranks | None, steps: int) -> None:
        settings = DpSgdSettings(batch, steps, 1.0, 1.0, "flat", 0.1, 0.9)
        ctx = replace(context(0), device=device, ranks=ranks)
        train(nets.build(net, shape, CLASSES), net, made, settings, settings.parameters(4 * batch), ctx, "training")

    return begin


def seconds_per_step(training: Training, ranks: Ranks | None, steps: int, clock: Clock) -> float:
    """Return the seconds per step: the difference to a training of one step, divided by the extra steps."""
    taken = []
    for count in (1, steps + 1):
        start = time.perf_counter()
        training(ranks, count)
        clock.wait()
        taken.append(time.perf_counter() - start)
    return (taken[1] - taken[0]) / steps


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--devices", type=positive, default=2)
    parser.add_argument("--teacher", default="small:resnet18", help="network of the teacher (default small:resnet18)")
    parser.add_argument("--private", default="tanh-cnn", help="network trained by DP-SGD (default tanh-cnn)")
    parser.add_argument("--batch", type=positive, default=128, help="images of a step (default 128)")
    parser.add_argument("--shape", default="1x28x28", help="images, CxHxW (default 1x28x28)")
    parser.add_argument("--steps", type=positive, default=5, help="of one measurement (default 5)")
    parser.add_argument("--repeats", type=positive, default=5, help="measurements of each (default 5)")
    args = parser.parse_args()
    args.shape = shape_of(args.shape)
    return args


def main() -> None:
    """Measure and print."""
    args, rows = parse(), []
    devices = pick_devices(args.device, args.devices)
    clock = Clock(devices[0])
    with Ranks(devices) as ranks:
        for name, make, net in (("teacher", teacher, args.teacher), ("DP-SGD", private, args.private)):
            training = make(net, args.batch, args.shape, devices[0])
            for by in (None, ranks):
                seconds_per_step(training, by, 1, clock)
            alone, all_of_them = list[float](), list[float]()
            for _ in range(args.repeats):
                alone.append(seconds_per_step(training, None, args.steps, clock))
                all_of_them.append(seconds_per_step(training, ranks, args.steps, clock))
            ratio = [one / many for one, many in zip(alone, all_of_them, strict=True)]
            rows.append([name, net, spread(alone, 3), spread(all_of_them, 3), spread(ratio)])
    print(f"{machine(devices[0])}; {args.devices} devices, batch {args.batch}; median [least, largest]")
    print(table(["training", "network", "seconds a step, one", "all", "ratio"], rows))


if __name__ == "__main__":
    run(main)
