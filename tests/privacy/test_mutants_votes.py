"""Votes, responses and annotation: the game or neighbouring runs find planted faults, and accept correct code."""

from __future__ import annotations

from typing import Any

import pytest
from checks_votes import CORRECT, MUTANTS, Settings, by_game, by_neighbours
from mutation import Mutant, planted_in_source

MISSED = {
    "cluster-rr: draw_again: labels kept too often",
}
"""Faults that neither finds."""
QUICK = {
    "dpsd: Dpsd._annotate: noise halved",
    "dpsd: Dpsd._bounded_gradient: no normalisation",
    "dpsd: Dpsd._responses: candidates of the teacher",
    "dpsd: Dpsd._annotate: soft label",
    "dpdfd: noisy_mean: noise used again",
    "dgd: Dgd.label: soft label",
    "pate: release_counts: one draw for all images",
    "rr: randomised_response: kept as among two classes, for any k",
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
    assert len(MISSED) <= len(MUTANTS) / 20
    assert {mutant.name for mutant in MUTANTS} >= MISSED | QUICK


@pytest.mark.thorough
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted(settings: Settings) -> None:
    assert by_game(settings) is None and by_neighbours(settings) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted_at_twenty_seeds(settings: Settings) -> None:
    assert [by_game(settings, seed) for seed in range(20)] == [None] * 20
