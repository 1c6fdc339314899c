"""Speed of each method's conversion loop, and the share of time outside of networks.

    python benchmarks/convert.py --device cuda --compile --precision bf16

The teacher and any ensemble are untrained, images are random: neither changes the work. One conversion of a variant is
one warm-up run, then `--repeats` timed runs without instrumentation, variants alternating, then one instrumented run
that splits the time. Prints the median and, in brackets, minimum and maximum.

- images/s: images through the student per second of the loop; every forward pass counts, with or without a backward
  pass, complete or only up to the features.
- seconds: seconds of the loop; without building networks, planning the budget and compiling.
- outside: share of the loop outside of forward and backward passes of student, teacher, generator and autoencoder;
  "optimiser" and "noise" are the parts of it in optimiser steps and in draws of privacy noise, "rest" is the remainder.
- ratio: images/s over those of the plain variant in the same repeat.
- syncs/step (CUDA): number of times per step that the host waits for the device in the loop.

A round of DPSD, DPDFD and FedDPSD queries as many images as at the tier itself, but `--scale` shortens the training
that follows, so that queries weigh more than in a real run; `--scale 1` disables this.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from _timing import Clock, Loop, Watch, above_zero, device_named, machine, positive, run, shape_of, spread, table

from bench import nets, registry
from bench.api import Context, Teacher
from bench.config import TIERS, configure, options
from bench.errors import BenchError
from bench.privacy import Budget
from bench.testing import MemoryArtifacts

ROUNDS = ("iterations", "stages")
SCALED = (
    "student_steps", "ensemble_steps", "generator_steps", "pretrain_steps", "finetune_steps", "steps", "vae_steps",
    "direct_iterations", "queries", "extra", "synthetic",
)  # fmt: skip
WITHOUT_BUDGET = Budget(None, solve="none")
"""The methods' own noise is used: its size does not change the work."""


@dataclass(frozen=True)
class Variant:
    """Options of a conversion run."""

    name: str
    compile: bool = False
    autocast: bool = False


@dataclass
class Measured:
    """Measurements of one variant of one method."""

    seconds: list[float] = field(default_factory=list)
    images: int = 0
    steps: int = 0
    outside: float = 0.0
    optimiser: float = 0.0
    noise: float = 0.0
    synchronisations: int = 0

    @property
    def rates(self) -> list[float]:
        """Return the images per second of every repeat."""
        return [self.images / seconds for seconds in self.seconds]


def shortened(plugin: type[Any], args: argparse.Namespace) -> Any:
    """Return the method at its tier, with fewer rounds of fewer steps, then with the user's settings.

    Raises:
        BenchError: the method refuses the settings.
    """
    at_tier = asdict(configure(plugin, args.tier, {}, "method"))
    given = {name: str(min(args.rounds, at_tier[name])) for name in ROUNDS if name in at_tier}
    for name in SCALED:
        if at_tier.get(name):
            scale = args.scale
            if name == "queries" and "stages" in given:
                scale *= int(given["stages"]) / at_tier["stages"]
            given[name] = str(max(1, round(at_tier[name] * scale)))
    return configure(plugin, args.tier, given | {k: v for k, v in args.set if k in at_tier}, "method")


def toy_teacher(method: Any, args: argparse.Namespace, device: torch.device) -> Teacher:
    """Return an untrained teacher, with an untrained ensemble and random private images if the method needs them."""
    shape, classes = args.shape, args.classes
    torch.manual_seed(0)
    model = nets.build(args.teacher, shape, classes).to(device).eval().requires_grad_(False)
    private, ensemble = None, None
    if "private_data" in method.needs:
        private = torch.randint(0, 256, (args.private, *shape), dtype=torch.uint8), torch.arange(args.private) % classes
    if "teacher_ensemble" in method.needs:
        shards = method.shards(args.teacher, args.dataset)
        members = nets.Ensemble.build(shards.archs, shards.count, shape, classes, range(shards.count))
        ensemble = members.to(device).eval().requires_grad_(False)
    return Teacher(model, args.teacher, shape, classes, args.dataset, private, ensemble)


class Bench:
    """Measures one method on one device."""

    def __init__(self, name: str, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device, self.clock = args, device, Clock(device)
        self.method = shortened(registry.load("method", name), args)
        self.teacher = toy_teacher(self.method, args, device)

    def measure(self, variants: list[Variant]) -> dict[str, Measured]:
        """Warm up, time alternately, and instrument every variant."""
        seen = {variant.name: Measured() for variant in variants}
        if any(variant.compile for variant in variants):
            torch._dynamo.reset()
        for variant in variants:
            self.convert(variant, Loop(self.clock))
        for _ in range(self.args.repeats):
            for variant in variants:
                loop = Loop(self.clock)
                self.convert(variant, loop)
                seen[variant.name].seconds.append(loop.seconds)
        for variant in variants:
            self.watch(variant, seen[variant.name])
        return seen

    def convert(self, variant: Variant, loop: Loop) -> torch.nn.Module:
        """Run one conversion; return the student."""
        torch.manual_seed(0)
        ctx = Context(self.device, 0, loop.track, MemoryArtifacts(), autocast=variant.autocast, compile=variant.compile)
        return self.method.convert(self.teacher, self.args.student, WITHOUT_BUDGET, ctx).student

    def watch(self, variant: Variant, measured: Measured) -> None:
        """Count the student's images and split the time, in a separate run."""
        watch = Watch(self.clock)
        loop = Loop(self.clock, watch)
        with watch.installed(variant.compile):
            student = self.convert(variant, loop)
        measured.images, measured.steps = watch.images[student], loop.steps
        measured.outside = 1 - watch.seconds("networks") / loop.seconds
        measured.optimiser = watch.seconds("optimiser") / loop.seconds
        measured.noise = watch.seconds("noise") / loop.seconds
        measured.synchronisations = loop.synchronisations


def rows(method: str, seen: dict[str, Measured], cuda: bool) -> list[list[str]]:
    """Return the table's rows of one method."""
    made, plain_rates = [], seen["plain"].rates
    for name, m in seen.items():
        ratio = [rate / base for rate, base in zip(m.rates, plain_rates, strict=True)]
        row = [
            method,
            name,
            f"{m.steps}",
            spread(m.rates, 0),
            spread(m.seconds),
            f"{m.outside:.1%}",
            f"{m.optimiser:.1%}",
            f"{m.noise:.1%}",
            f"{m.outside - m.optimiser - m.noise:.1%}",
            "" if name == "plain" else spread(ratio),
        ]
        made.append([*row, f"{m.synchronisations / max(m.steps, 1):.2f}"] if cuda else row)
    return made


def setting(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE, for argparse."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(text)
    return name, value


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", action="append", default=[], help="a method (may be repeated; default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--teacher", default="resnet18", help="a network's name (default resnet18)")
    parser.add_argument("--student", default="datalens", help="a network's name (default datalens)")
    parser.add_argument("--shape", default="1x28x28", help="images, CxHxW (default 1x28x28)")
    parser.add_argument("--classes", type=positive, default=10)
    parser.add_argument("--dataset", default="mnist", help="name for settings per data set, such as the prior of mnist")
    parser.add_argument("--private", type=positive, default=2000, help="random private images (default 2000)")
    parser.add_argument("--tier", choices=TIERS, default="quick")
    parser.add_argument("--rounds", type=positive, default=1, help="rounds or stages at most (default 1)")
    parser.add_argument("--scale", type=above_zero, default=0.1, help="of the tier's steps and queries (default 0.1)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE",
                        help="an option of every method that has it, such as mode=label (may be repeated)")  # fmt: skip
    parser.add_argument("--repeats", type=positive, default=3, help="timed runs of each variant (default 3)")
    parser.add_argument("--compile", action="store_true", help="also with compiled students")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16: also with autocast")
    args = parser.parse_args()
    args.shape = shape_of(args.shape)
    return args


def main() -> None:
    """Measure and print."""
    args = parse()
    device = device_named(args.device)
    names = args.method or list(registry.entries("method", folder="methods"))
    known = Counter(option.name for name in names for option in options(registry.load("method", name)))
    for name, _ in args.set:
        if name not in known:
            raise BenchError(f"--set {name}: no method measured has such an option; see `bench run --method M --help`")
    variants = [Variant("plain")]
    variants += [Variant("compile", compile=True)] if args.compile else []
    variants += [Variant("bf16", autocast=True)] if args.precision == "bf16" else []
    heads = ["method", "variant", "steps", "images/s", "seconds", "outside", "optimiser", "noise", "rest", "ratio"]
    heads += ["syncs/step"] if device.type == "cuda" else []
    size = "x".join(map(str, args.shape))
    print(f"{machine(device)}; teacher {args.teacher}, student {args.student}, {size}, tier {args.tier}, "
          f"{args.rounds} round(s), scale {args.scale:g}; median [least, largest] of {args.repeats}")  # fmt: skip
    made: list[list[str]] = []
    for name in names:
        made += rows(name, Bench(name, args, device).measure(variants), device.type == "cuda")
    print(table(heads, made))


if __name__ == "__main__":
    run(main)
