"""Range checks for the fields of a plug-in; each raises ValueError with what was given and what is expected."""

from __future__ import annotations

from typing import Any


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
