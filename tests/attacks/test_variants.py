"""Variants of attacks: the printed one has the defaults, the working one the departures. test_plugins.py runs both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import registry
from bench.config import configure, departures, options

PRINTED = {"episode_steps", "first_bn", "holdout", "jitter", "n_critic", "ref_batch", "truncate"}
"""Numbers that are not sizes although they are whole or small: another value is another algorithm."""


@pytest.mark.parametrize("name", registry.entries("attack"))
def test_variants_differ_only_by_departures(name: str) -> None:
    cls = registry.load("attack", name)
    changed = {option: value for departure in departures(cls) for option, value in departure.sets.items()}
    assert configure(cls, "paper", {}, "attack", "printed") == cls()
    printed = configure(cls, "quick", {}, "attack", "printed")
    assert configure(cls, "quick", {}, "attack") == replace(printed, **changed)


@pytest.mark.parametrize("name", registry.entries("attack"))
def test_algorithmic_options_are_not_sizes(name: str) -> None:
    sizes = {option.name for option in options(registry.load("attack", name)) if option.size}
    assert not sizes & PRINTED
    assert not {size for size in sizes if size.endswith(("lr", "weight", "loss", "clip"))}
