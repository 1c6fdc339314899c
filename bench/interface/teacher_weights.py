"""A user's own trained teacher: the file of its weights, and the normalisation of its input.

A folder in the cache of a model hub has the weights, `model.safetensors` or `pytorch_model.bin`, and next to them
`config.json` (timm; mean and std are in "pretrained_cfg") or `preprocessor_config.json` ("image_mean", "image_std").
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from bench.errors import BadOption, BadWeights, NotFound
from bench.storage.specs import Numbers

FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the file of weights in a folder; the first that exists is used."""
CONFIGS = {"config.json": ("mean", "std"), "preprocessor_config.json": ("image_mean", "image_std")}
"""Names of configuration files next to the weights, with their keys for mean and std."""
INNER = "pretrained_cfg"
"""The part of timm's `config.json` that may hold mean and std."""

Normalisation = tuple[Numbers, Numbers]
"""(mean, std) of pixels in [0, 1]: each one number, or one number per channel."""


def find_weights(path: Path | None) -> Path | None:
    """Return the file of weights: the given file, or the one of `FILES` in a folder. Raises NotFound for neither."""
    if path is None or not path.is_dir():
        return path
    for name in FILES:
        if (path / name).is_file():
            return path / name
    raise NotFound(f"--teacher-weights {path}: no {' or '.join(FILES)} in this folder; give the file of weights")


def parse_normalisation(flag: str, text: str) -> Normalisation:
    """Parse the value MEAN,STD of an option; the numbers of several channels are separated by "/".

    Raises:
        BadOption: a text of another form, or a std that is not above 0.

    >>> parse_normalisation("--normalise", "0.5,0.25"), parse_normalisation("--normalise", "0.1/0.2,1/2")
    ((0.5, 0.25), ((0.1, 0.2), (1.0, 2.0)))
    """
    try:
        mean, std = (tuple(float(number) for number in part.split("/")) for part in text.split(","))
    except ValueError:
        raise BadOption(
            f"{flag} {text}: expected MEAN,STD, as in 0.1307,0.3081, or one number per channel, as in "
            "0.49/0.48/0.45,0.25/0.24/0.26"
        ) from None
    return check_normalisation(f"{flag} {text}", mean, std)


def read_normalisation(weights: Path) -> Normalisation | None:
    """Read mean and std from a configuration file next to the weights; None if no file has them.

    Raises:
        BadWeights: a configuration file that is not JSON.
        BadOption: values that are not a normalisation.
    """
    for name, keys in CONFIGS.items():
        path = weights.parent / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadWeights(f"{path} is not a JSON file ({error}); repair it, or give --teacher-normalise") from None
        inner = content.get(INNER) if isinstance(content, dict) else None
        for part in (content, inner):
            values = [part.get(key) for key in keys] if isinstance(part, dict) else [None]
            if None not in values:
                mean, std = map(_as_numbers, values)
                return check_normalisation(str(path), mean, std)
    return None


def _as_numbers(value: object) -> tuple[float, ...]:
    """Convert a value of a JSON file to numbers; anything that is not a number becomes NaN."""
    parts = value if isinstance(value, list) else [value]
    return tuple(float(part) if isinstance(part, int | float) else math.nan for part in parts)


def check_normalisation(source: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalisation:
    """Return the numbers as a normalisation.

    Args:
        source: the option or file of the numbers, for the message.

    Raises:
        BadOption: no numbers, mean and std of different lengths, an infinite value, or a std not above 0.
    """
    if not mean or len(mean) != len(std):
        raise BadOption(f"{source}: mean has {len(mean)} numbers and std {len(std)}; expected one of each per channel")
    if not all(each > 0 for each in std) or not all(map(math.isfinite, (*mean, *std))):
        raise BadOption(f"{source}: expected a finite mean and a std above 0")
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)
