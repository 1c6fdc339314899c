"""Options of plug-ins that were renamed: names that users give, that records hold, and that are shown.

Specs and records keep the old name of an option, as the hash of a spec includes its options: so published records stay
valid. A plug-in lists its renamed options in the class variable `recorded_as`, present name to old name. A renamed
value of an option is listed as NAME=VALUE on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bench.errors import BadOption

RENAMED = {
    "amount": "queries",
    "answers": "responses",
    "asked_at": "gradient_at",
    "mean=paid": "mean=noisy",
    "most_noise": "max_noise",
    "questions": "queries",
    "taught_steps": "transcription_steps",
}
"""All old names of options, which no option has today, to the present ones: records are shown with these."""


def rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename options, or the values of options.

    >>> rename({"queries": 3, "mean": "noisy"}, {"queries": "questions", "mean=noisy": "mean=paid"})
    {'questions': 3, 'mean': 'paid'}
    """
    if not names:
        return dict(values)
    found: dict[str, Any] = {}
    for name, value in values.items():
        other, _, text = names.get(f"{name}={value}", "").partition("=")
        found[other or names.get(name, name)] = text if other else value
    return found


def present_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a record by their present names."""
    return rename(values, RENAMED)


def with_present_names(given: Mapping[str, str], recorded_as: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return a user's options by their present names, with a notice for each old one.

    Args:
        recorded_as: the plug-in's renamed options, present name to old name.
        prefix: "method" or "attack", for messages.

    Raises:
        BadOption: an option is given by both names.
    """
    old = {before: now for now, before in recorded_as.items()}
    for name, text in given.items():
        now = old.get(name, "")
        if now in given:
            raise BadOption(f"--{prefix}.{name} was renamed to --{prefix}.{now}, which is given too; leave it out")
        if now:
            _notify(f"--{prefix}.{name} was renamed: give --{prefix}.{now}")
        elif f"{name}={text}" in old:
            _notify(f"--{prefix}.{name} {text} was renamed: give {old[f'{name}={text}'].partition('=')[2]}")
    return rename(given, old)


@cache
def _notify(line: str) -> None:
    """Print a notice, once in a process."""
    from bench.progress import notify  # rich, which most commands do without

    notify(line)
