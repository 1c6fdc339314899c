"""Convert typed options into settings: a budget, seeds, options of plug-ins, a data set with a size."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

from bench.cli.run_options import DESTINATION
from bench.data.dataset import Reading
from bench.data.naming import CHANNELS, SIZES
from bench.errors import BadOption
from bench.privacy import Budget, Unit
from bench.privacy.budget import Solve
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from bench.pipeline.settings import Settings

COPIED = [
    "dataset",
    "split",
    "data_root",
    "download",
    "skip_broken",
    "teacher",
    "student",
    "evaluator",
    "tier",
    "variant",
    "attack_variant",
    "device",
    "devices",
    "precision",
    "compile",
    "noise",
    "out",
    "fresh",
]


def read_settings(given: argparse.Namespace, **others: Any) -> Settings:
    """Return the settings of a run from the options that the command has, and `others`. Raises BenchError."""
    budget = read_budget(given)
    from bench.pipeline.settings import Settings, usual_noise

    copied = {name: getattr(given, name) for name in COPIED if getattr(given, name, None) is not None}
    copied = {"noise": usual_noise(given.dataset, others.get("teacher_weights") is not None)} | copied
    return Settings(
        method=given.method,
        budget=budget,
        method_options=read_options(given, "method"),
        teacher_options=read_options(given, "teacher"),
        reading=read_reading(given),
        **copied | {"dataset": shaped(given.dataset, given.size, given.channels)},
        **others,
    )


def shaped(dataset: str, size: int | None, channels: int | None) -> str:
    """Append the given size and channels to the data set's name. Raises BenchError for two sizes or two numbers of
    channels."""
    named_channels = next((f"@{word}" for word in CHANNELS if dataset.endswith(f"@{word}")), "")
    name = dataset.removesuffix(named_channels)
    found = re.search(r"@[0-9]+$", name)
    named_size = found[0] if found else ""
    name = name.removesuffix(named_size)
    if size is not None and named_size:
        raise BadOption(f"--size {size}: --dataset {dataset} names a size already; give one of them")
    if channels is not None and named_channels:
        raise BadOption(f"--channels {channels}: --dataset {dataset} names channels already; give one of them")
    if size is not None and size not in SIZES:
        raise BadOption(f"--size {size}: expected {SIZES[0]} to {SIZES[-1]} pixels")
    words = {number: f"@{word}" for word, number in CHANNELS.items()}
    return (
        name + (named_size if size is None else f"@{size}") + (named_channels if channels is None else words[channels])
    )


def read_reading(given: argparse.Namespace) -> Reading:
    """Return how a user's own images are read. Raises BenchError."""
    return Reading(given.fit, None if given.pixel_range is None else _read_range(given.pixel_range))


def _read_range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadOption(
            f"--pixel-range {text}: expected the values of black and white, the smaller one first, as in -1,1 or 0,255"
        )
    return low, high


def read_options(given: argparse.Namespace, prefix: str) -> tuple[tuple[str, str], ...]:
    """Return all options `--PREFIX.NAME VALUE`, sorted by name."""
    start = DESTINATION.format(prefix, "")
    return tuple(
        sorted(
            (key[len(start) :], value)
            for key, value in vars(given).items()
            if key.startswith(start) and value is not None
        )
    )


def read_seeds(text: str) -> list[int]:
    """Return the seeds of `--seeds`. Raises BenchError."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadOption(f"--seeds {text}: expected whole numbers with commas, as in 0,1,2") from None
    if len(set(seeds)) != len(seeds) or not 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
        raise BadOption(f"--seeds {text}: expected different numbers from 0 to {LARGEST_SEED}, as in 0,1,2")
    return seeds


def read_budget(given: argparse.Namespace) -> Budget:
    """Return the budget from the options. Raises BenchError."""
    epsilon = None if given.epsilon == "none" else read_number("--epsilon", given.epsilon)
    endless = epsilon is None or math.isinf(epsilon)
    if endless and given.solve is not None:
        raise BadOption(f"--solve {given.solve} --epsilon {given.epsilon}: there is no budget to solve for; give one")
    if endless and given.account == "accounted":
        raise BadOption(f"--account accounted --epsilon {given.epsilon}: there is no budget to meet; give one")
    solve: Solve = "none" if endless else given.solve or "sigma"
    return Budget(epsilon, read_number("--delta", given.delta), given.account, solve, Unit(given.unit))


def read_number(flag: str, text: str) -> float:
    """Return the number given to `flag`. Raises BenchError."""
    try:
        return float(text)
    except ValueError:
        raise BadOption(
            f"{flag} {text}: expected a number, as in {flag} {'10' if flag == '--epsilon' else '1e-5'}"
        ) from None
