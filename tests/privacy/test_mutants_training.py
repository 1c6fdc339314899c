"""Private training and noisy statistics: the game or neighbouring runs find planted faults, and accept correct code."""

from __future__ import annotations

from typing import Any

import pytest
from checks_training import CORRECT, MUTANTS, Settings, by_game, by_neighbours
from mutation import Mutant, planted_in_source

MISSED = {"dp-sinkhorn: clipped: each image clipped to C"}
"""Faults that neither finds."""
QUICK = {
    "private-features: clipped_sum: long gradients not clipped",
    "class-moments: noisy_moments: noise halved",
    "dp-merf: noisy_embedding: noise halved",
    "label-protocol: of_last_layer: wrong sensitivity of a label",
}


def found(mutant: Mutant) -> str | None:
    """By the game or, where that finds nothing, by neighbouring runs."""
    settings = (mutant.plug_in, mutant.options, mutant.variant)
    with planted_in_source(mutant.function, mutant.old, mutant.new):
        return by_game(settings) or by_neighbours(settings)


def marked(mutant: Mutant) -> Any:
    return pytest.param(mutant, marks=() if mutant.name in QUICK else pytest.mark.thorough, id=mutant.name)


@pytest.mark.parametrize("mutant", [marked(mutant) for mutant in MUTANTS])
def test_planted_fault_is_found(mutant: Mutant) -> None:
    assert bool(found(mutant)) == (mutant.name not in MISSED)


def test_few_planted_faults_are_missed() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(MISSED) <= len(MUTANTS) / 20
    assert set(names) >= MISSED | QUICK and len(set(names)) == len(names)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted(settings: Settings) -> None:
    assert by_game(settings) is None and by_neighbours(settings) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted_at_twenty_seeds(settings: Settings) -> None:
    assert [by_game(settings, seed) for seed in range(20)] == [None] * 20
