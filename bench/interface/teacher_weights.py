"""A user's own trained teacher: its file, and the normalisation that it was trained with.

A folder as a model hub's cache keeps it has the weights, `model.safetensors` or `pytorch_model.bin`, and beside them
`config.json` (of timm, mean and std under "pretrained_cfg") or `preprocessor_config.json` ("image_mean", "image_std").
What these say is taken unless another normalisation is given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import BadOption, BadWeights, NotFound
from bench.storage.specs import Numbers

FILES = ("model.safetensors", "pytorch_model.bin")
"""What weights are called in a folder, the first that is there."""
CONFIGS = {"config.json": ("mean", "std"), "preprocessor_config.json": ("image_mean", "image_std")}
"""File beside the weights to what mean and std are called in it."""
INNER = "pretrained_cfg"

Normalisation = tuple[Numbers, Numbers]
"""(mean, std) on pixels in [0, 1], each one number or one a channel."""


def weights_file(given: Path | None) -> Path | None:
    """The file of weights: what was given, or in a folder the one called as `FILES`.

    Raises:
        BenchError: a folder without one.
    """
    if given is None or not given.is_dir():
        return given
    found = next((given / name for name in FILES if (given / name).is_file()), None)
    if found is None:
        raise NotFound(f"--teacher-weights {given}: no {' or '.join(FILES)} in this folder; give the file of weights")
    return found


def normalisation(text: str | None, weights: Path | None) -> Normalisation | None:
    """What `--teacher-normalise` says, or a file beside the weights; None where neither says anything.

    Args:
        text: MEAN,STD, each a number or one a channel with strokes between them.
        weights: the file of weights.

    Raises:
        BenchError: a text that is no such pair, or without weights; a file that cannot be read, or says something else.
    """
    if text is not None and weights is None:
        raise BadOption("--teacher-normalise was given without --teacher-weights; our own teachers need none")
    if weights is None:
        return None
    return _beside(weights) if text is None else _typed(text)


def _typed(text: str) -> Normalisation:
    try:
        mean, std = (tuple(float(number) for number in part.split("/")) for part in text.split(","))
    except ValueError:
        raise BadOption(
            f"--teacher-normalise {text}: expected MEAN,STD, as in 0.1307,0.3081, or one of each a channel, as in "
            "0.49/0.48/0.45,0.25/0.24/0.26"
        ) from None
    return checked(f"--teacher-normalise {text}", mean, std)


def _beside(weights: Path) -> Normalisation | None:
    for name, (mean, std) in CONFIGS.items():
        path = weights.parent / name
        if not path.is_file():
            continue
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadWeights(f"{path} is no JSON text ({error}); mend it, or give --teacher-normalise") from None
        if (found := _found(read, mean, std)) is not None:
            return checked(str(path), *map(_numbers, found))
    return None


def _found(read: object, mean: str, std: str) -> tuple[Any, Any] | None:
    """What the two are in a file's content, itself or one level down."""
    if not isinstance(read, Mapping):
        return None
    for where in (read, read.get(INNER)):
        if isinstance(where, Mapping) and where.get(mean) is not None and where.get(std) is not None:
            return where[mean], where[std]
    return None


def _numbers(value: Any) -> tuple[float, ...]:
    parts = value if isinstance(value, list) else [value]
    return tuple(float(part) if isinstance(part, int | float) else math.nan for part in parts)


def checked(where: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalisation:
    """A normalisation of numbers. Raises BadOption for one that is impossible; `where` begins the message."""
    if len(mean) != len(std):
        raise BadOption(f"{where}: mean of {len(mean)} channels and std of {len(std)}; expected as many of each")
    if not all(each > 0 for each in std) or not all(map(math.isfinite, (*mean, *std))):
        raise BadOption(f"{where}: expected a finite mean and a std above 0")
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)
