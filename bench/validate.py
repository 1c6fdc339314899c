"""Checks of values: ranges of a plug-in's fields, and internal invariants.

A range check raises ValueError with the value and the expected range. `present` and `instance` replace `assert`, which
`python -O` removes.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def present(value: T | None, what: str) -> T:
    """Return `value`, which must not be None.

    Args:
        value: anything; None is a defect of the program.
        what: the value's name, for the error.

    Raises:
        RuntimeError: the value is None.
    """
    if value is None:
        raise RuntimeError(f"there is no {what}; expected one here")
    return value


def instance(value: object, kind: type[T], what: str) -> T:
    """Return `value`, which must be an instance of `kind`.

    Args:
        value: anything.
        kind: the expected class.
        what: the value's name, for the error.

    Raises:
        TypeError: the value is of another class.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a {kind.__name__}")
    return value


def at_least(plugin: Any, least: float, *names: str) -> None:
    """Require every named field to be >= `least`."""
    for name in names:
        if not getattr(plugin, name) >= least:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected at least {least}")


def at_most(plugin: Any, most: float, *names: str) -> None:
    """Require every named field to be <= `most`."""
    for name in names:
        if not getattr(plugin, name) <= most:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected at most {most}")


def below(plugin: Any, limit: float, *names: str) -> None:
    """Require every named field to be < `limit`."""
    for name in names:
        if not getattr(plugin, name) < limit:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected less than {limit}")


def positive(plugin: Any, *names: str) -> None:
    """Require every named field to be > 0."""
    for name in names:
        if not getattr(plugin, name) > 0:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected more than 0")


def between(plugin: Any, low: float, high: float, *names: str) -> None:
    """Require every named field to be in [low, high]."""
    for name in names:
        if not low <= getattr(plugin, name) <= high:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected {low} to {high}")


def inside(plugin: Any, low: float, high: float, *names: str) -> None:
    """Require every named field to be in (low, high), both ends excluded."""
    for name in names:
        if not low < getattr(plugin, name) < high:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected more than {low} and less than {high}")


def one_of(plugin: Any, name: str, *choices: str) -> None:
    """Require the named field to be one of `choices`."""
    if getattr(plugin, name) not in choices:
        raise ValueError(f"{name} is {getattr(plugin, name)}; expected {' or '.join(choices)}")
