"""Checks of values: ranges of a plug-in's fields, and what a program relies on.

A range check raises ValueError with the value and the range that was expected. `present` and `instance` stand where an
`assert` would: `python -O` removes assertions.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def present(value: T | None, what: str) -> T:
    """Return `value`, which the caller has made sure of.

    Args:
        value: anything; None is a fault of the program.
        what: the value's name, for the error.

    Raises:
        RuntimeError: the value is None.
    """
    if value is None:
        raise RuntimeError(f"there is no {what}; expected one here")
    return value


def instance(value: object, kind: type[T], what: str) -> T:
    """Return `value`, which is an instance of `kind`.

    Args:
        value: anything.
        kind: the class that is expected.
        what: the value's name, for the error.

    Raises:
        TypeError: the value is of another class.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a {kind.__name__}")
    return value


def at_least(plugin: Any, least: float, *names: str) -> None:
    """Every named field is >= `least`."""
    for name in names:
        if not getattr(plugin, name) >= least:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected at least {least}")


def at_most(plugin: Any, most: float, *names: str) -> None:
    """Every named field is <= `most`."""
    for name in names:
        if not getattr(plugin, name) <= most:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected at most {most}")


def below(plugin: Any, limit: float, *names: str) -> None:
    """Every named field is < `limit`."""
    for name in names:
        if not getattr(plugin, name) < limit:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected less than {limit}")


def positive(plugin: Any, *names: str) -> None:
    """Every named field is > 0."""
    for name in names:
        if not getattr(plugin, name) > 0:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected more than 0")


def between(plugin: Any, low: float, high: float, *names: str) -> None:
    """Every named field lies in [low, high]."""
    for name in names:
        if not low <= getattr(plugin, name) <= high:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected {low} to {high}")


def inside(plugin: Any, low: float, high: float, *names: str) -> None:
    """Every named field lies in (low, high), both ends excluded."""
    for name in names:
        if not low < getattr(plugin, name) < high:
            raise ValueError(f"{name} is {getattr(plugin, name)}; expected more than {low} and less than {high}")


def one_of(plugin: Any, name: str, *choices: str) -> None:
    """The named field is one of `choices`."""
    if getattr(plugin, name) not in choices:
        raise ValueError(f"{name} is {getattr(plugin, name)}; expected {' or '.join(choices)}")
