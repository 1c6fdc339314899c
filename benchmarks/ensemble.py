"""Speed of training many teachers in parallel, compared with a single one at batch 128.

    python benchmarks/ensemble.py --device cuda

All trainings are `bench.teachers.fit_ensemble`, on random images in equal parts; one measurement of each alternately,
repeated. The timer runs from the end of the first step to the end of the last one. Prints the median and, in
brackets, minimum and maximum.

- images/s: images of all teachers together, forward and backward, per second.
- ratio: images/s over those of the single teacher in the same repeat; the target is at least 0.5.
- seconds per step: one step of all teachers.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
import torch
from _timing import Clock, above_zero, device_named, machine, positive, run, shape_of, spread, table

from bench.api import Shards
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.teachers import fit_ensemble
from bench.teachers.ensemble import How

ALONE = 128
WANTED = 0.5
PART = 64
HOWS: tuple[How, ...] = ("stacked", "in turn")
TIERS = {"quick": (50, 16), "paper": (250, 128)}
"""Number of teachers, and images of each per step."""

Fixed = tuple[tuple[int, int, int], int, torch.device]
"""Image shape, classes, device."""


class Training:
    """`count` teachers of one network `net` on random images, `batch` of each per step.

    Raises:
        BenchError: the network is not trained in steps.
    """

    def __init__(self, net: str, count: int, batch: int, how: How, fixed: Fixed) -> None:
        shape, classes, device = fixed
        rng = np.random.default_rng(0)
        n = count * PART
        self.images = torch.from_numpy(rng.integers(0, 256, (n, *shape), dtype=np.uint8))
        self.labels = torch.arange(n) % classes
        self.parts = np.split(rng.permutation(n).astype(np.int64), count)
        self.net = net
        self.ensemble = Ensemble.build([net], count, shape, classes, range(count))
        if self.ensemble.fixed_features:
            raise BenchError(f"--net {net}: it is solved in closed form, without steps to time; name another network")
        self.images_per_step, self.batch, self.how, self.device = count * batch, batch, how, device
        self.clock = Clock(device)

    def seconds_per_step(self, steps: int) -> float:
        """Train `steps` + 1 steps and time all but the first, which includes the setup."""
        marks: list[float] = []
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if done in (1, steps + 1):
                self.clock.wait()
                marks.append(time.perf_counter())

        fit_ensemble(
            self.ensemble.requires_grad_(True),
            self.images,
            self.labels,
            self.parts,
            Shards(len(self.parts), (self.net,), steps=steps + 1, batch=self.batch),
            device=self.device,
            seed=0,
            advance=advance,
            how=self.how,
        )
        return (marks[1] - marks[0]) / steps


def measure(trainings: dict[str, Training], repeats: int, seconds: float) -> dict[str, list[float]]:
    """Measure images/s of every training, alternately; each for about `seconds`."""
    steps = {}
    for name, training in trainings.items():
        once = training.seconds_per_step(1)
        steps[name] = max(2, math.ceil(seconds / once))
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(repeats):
        for name, training in trainings.items():
            rates[name].append(training.images_per_step / training.seconds_per_step(steps[name]))
    return rates


def rows(net: str, trainings: dict[str, Training], rates: dict[str, list[float]]) -> list[list[str]]:
    """Return the table's rows of one network."""
    made = []
    for name, training in trainings.items():
        ratio = [rate / base for rate, base in zip(rates[name], rates["one"], strict=True)]
        per_step = [training.images_per_step / rate for rate in rates[name]]
        verdict = "" if name == "one" else "yes" if statistics.median(ratio) >= WANTED else "no"
        made.append(
            [
                net,
                name,
                str(len(training.ensemble)),
                str(training.batch),
                spread(rates[name], 0),
                spread(per_step, 4),
                "" if name == "one" else spread(ratio),
                verdict,
            ]
        )
    return made


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", action="append", default=[], help="default: shard-cnn and dgd-cnn (may be repeated)")
    parser.add_argument("--tier", choices=tuple(TIERS), default="paper",
                        help="paper: 250 teachers, 128 images of each per step; quick: 50 and 16")  # fmt: skip
    parser.add_argument("--teachers", type=positive, help="another number of teachers")
    parser.add_argument("--batch", type=positive, help="other images of each per step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", default="1x28x28", help="images, CxHxW (default 1x28x28)")
    parser.add_argument("--classes", type=positive, default=10)
    parser.add_argument("--repeats", type=positive, default=3, help="measurements of each training (default 3)")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="of one measurement, about (default 2)")
    args = parser.parse_args()
    args.shape = shape_of(args.shape)
    teachers, batch = TIERS[args.tier]
    args.teachers, args.batch = args.teachers or teachers, args.batch or batch
    return args


def main() -> None:
    """Measure and print."""
    args = parse()
    device = device_named(args.device)
    heads = ["network", "training", "teachers", "batch", "images/s", "seconds per step", "ratio", f">= {WANTED}"]
    made: list[list[str]] = []
    for net in args.net or ["shard-cnn", "dgd-cnn"]:
        fixed: Fixed = (args.shape, args.classes, device)
        trainings = {"one": Training(net, 1, ALONE, "in turn", fixed)}
        trainings |= {how: Training(net, args.teachers, args.batch, how, fixed) for how in HOWS}
        made += rows(net, trainings, measure(trainings, args.repeats, args.seconds))
    size = "x".join(map(str, args.shape))
    print(f"{machine(device)}; {size}; median [least, largest] of {args.repeats}")
    print(table(heads, made))


if __name__ == "__main__":
    run(main)
