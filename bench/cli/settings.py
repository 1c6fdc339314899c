"""Convert parsed options into the settings of a run: budget, seeds, options of plug-ins, data set and image size."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli.options import DESTINATION
from bench.data.dataset import Reading
from bench.data.naming import CHANNELS, SIZES
from bench.errors import BadOption
from bench.privacy import Budget, Unit
from bench.privacy.budget import Solve
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from bench.interface.teacher_weights import Normalisation
    from bench.pipeline.settings import Settings

COPIED = (
    *("split", "data_root", "download", "skip_broken", "teacher", "student", "evaluator", "tier", "variant"),
    *("attack_variant", "device", "devices", "precision", "compile", "noise", "out", "fresh", "pretrained"),
)
"""Options whose values are settings unchanged."""


def read_settings(
    given: argparse.Namespace,
    attack: str | None = None,
    teacher_weights: Path | None = None,
    teacher_normalise: Normalisation | None = None,
) -> Settings:
    """Return the settings of a run from the options of a command, which may have only some of them.

    Raises:
        BenchError: an invalid value, or options that contradict each other.
    """
    budget = read_budget(given)
    from bench.pipeline.settings import Settings, usual_noise

    copied: dict[str, Any] = {"noise": usual_noise(given.dataset, teacher_weights is not None)}
    copied |= {name: value for name in COPIED if (value := getattr(given, name, None)) is not None}
    return Settings(
        method=given.method,
        attack=attack,
        dataset=add_shape(given.dataset, given.size, given.channels),
        reading=Reading(
            given.fit, None if given.pixel_range is None else read_pixel_range(given.pixel_range), given.groups
        ),
        budget=budget,
        teacher_weights=teacher_weights,
        teacher_normalise=teacher_normalise,
        method_options=read_options(given, "method"),
        attack_options=read_options(given, "attack"),
        teacher_options=read_options(given, "teacher"),
        evaluator_options=read_options(given, "evaluator"),
        **copied,
    )


def add_shape(dataset: str, size: int | None, channels: int | None) -> str:
    """Append size and channels to the name of a data set. Raises BadOption if the name already has them.

    >>> add_shape("mnist", 16, 3), add_shape("cifar10@grey", None, None)
    ('mnist@16@rgb', 'cifar10@grey')
    """
    named_channels = next((f"@{word}" for word in CHANNELS if dataset.endswith(f"@{word}")), "")
    name = dataset.removesuffix(named_channels)
    found = re.search(r"@[0-9]+$", name)
    named_size = found[0] if found else ""
    name = name.removesuffix(named_size)
    if size is not None and named_size:
        raise BadOption(f"--size {size}: --dataset {dataset} has a size already; give one of them")
    if channels is not None and named_channels:
        raise BadOption(f"--channels {channels}: --dataset {dataset} has channels already; give one of them")
    if size is not None and size not in SIZES:
        raise BadOption(f"--size {size}: expected {SIZES[0]} to {SIZES[-1]} pixels")
    if size is not None:
        named_size = f"@{size}"
    if channels is not None:
        named_channels = "@" + next(word for word, number in CHANNELS.items() if number == channels)
    return name + named_size + named_channels


def read_pixel_range(text: str) -> tuple[float, float]:
    """Return the values of black and white. Raises BadOption for a text of another form."""
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
    """Return name and value of all given options `--PREFIX.NAME VALUE`, sorted by name."""
    start = DESTINATION.format(prefix, "")
    values = {key.removeprefix(start): value for key, value in vars(given).items() if key.startswith(start)}
    return tuple(sorted((name, value) for name, value in values.items() if value is not None))


def read_seeds(text: str) -> list[int]:
    """Return the seeds of `--seeds`. Raises BadOption."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadOption(f"--seeds {text}: expected whole numbers separated by commas, as in 0,1,2") from None
    if len(set(seeds)) != len(seeds) or not 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
        raise BadOption(f"--seeds {text}: expected different numbers from 0 to {LARGEST_SEED}, as in 0,1,2")
    return seeds


def read_budget(given: argparse.Namespace) -> Budget:
    """Return the budget from the options. Raises BadOption or BudgetError."""
    epsilon = None if given.epsilon == "none" else read_number("--epsilon", given.epsilon)
    is_unlimited = epsilon is None or math.isinf(epsilon)
    if is_unlimited and given.solve is not None:
        raise BadOption(f"--solve {given.solve} needs a budget, but --epsilon is {given.epsilon}; give a finite one")
    if is_unlimited and given.account == "accounted":
        raise BadOption(f"--account accounted needs a budget, but --epsilon is {given.epsilon}; give a finite one")
    solve: Solve = "none" if is_unlimited else given.solve or "sigma"
    return Budget(epsilon, read_number("--delta", given.delta), given.account, solve, Unit(given.unit))


def read_number(flag: str, text: str) -> float:
    """Return the number given to an option. Raises BadOption for another text."""
    try:
        return float(text)
    except ValueError:
        example = "10" if flag == "--epsilon" else "1e-5"
        raise BadOption(f"{flag} {text}: expected a number, as in {flag} {example}") from None


def read_whole(flag: str, text: str, least: int | None = None) -> int:
    """Return the whole number given to an option, at least `least` if that is given. Raises BadOption."""
    try:
        number = int(text)
    except ValueError:
        raise BadOption(f"{flag} {text}: expected a whole number") from None
    if least is not None and not least <= number <= LARGEST_SEED:
        raise BadOption(f"{flag} {text}: expected a whole number from {least} to {LARGEST_SEED}")
    return number
