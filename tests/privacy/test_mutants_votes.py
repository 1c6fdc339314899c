"""Votes, responses and annotation: the game or neighbouring runs find planted faults, and accept what is correct."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mutants_papers import PAPERS
from mutants_votes import LABELS, VOTES
from mutation import Mutant, found_by_game, planted_in_source
from neighbours import OWN, method
from neighbours_votes import RESPONSES, found_by_neighbours, plays_of

from bench.config import Variant
from bench.privacy import Budget, Unit
from bench.testing import CLASSES

MUTANTS = [*VOTES, *LABELS, *PAPERS]
Settings = tuple[str, tuple[tuple[str, Any], ...], Variant | None]
CORRECT = sorted({(each.plug_in, tuple(sorted(each.options.items())), each.variant) for each in MUTANTS}, key=str)
"""Each plug-in and its options in the tables, without a fault."""
QUICK = {
    "dpsd: Dpsd._annotate: noise halved",
    "dpsd: Dpsd._bounded_gradient: no normalisation",
    "dpsd: Dpsd._responses: candidates of the teacher",
    "dpsd: Dpsd._annotate: soft label",
    "dpdfd: noisy_mean: noise used again",
    "dgd: Dgd.label: noise halved",
    "dgd: Dgd.label: soft label",
    "pate: ask: one draw for all images",
    "rr: randomised_response: kept as among two classes, whatever k",
}


def budget_of(plug_in: str) -> Budget:
    return replace(OWN, unit=Unit.LABEL) if plug_in in RESPONSES else OWN


def classes_of(plug_in: str) -> int:
    """Of the game; a response over half of them needs more than two candidates."""
    return 6 if plug_in == "lp-2st" else CLASSES


def found(mutant: Mutant) -> str | None:
    """By the game or, where that finds nothing, by neighbouring runs."""
    given, budget = (mutant.plug_in, mutant.options, mutant.variant), budget_of(mutant.plug_in)
    with planted_in_source(mutant.function, mutant.old, mutant.new):
        by_game = found_by_game(
            method(*given), budget, "toy", classes_of(mutant.plug_in), plays=plays_of(mutant.plug_in, mutant.options)
        )
        return by_game or found_by_neighbours(mutant.plug_in, method(*given), budget)


def marked(mutant: Mutant) -> Any:
    return pytest.param(mutant, marks=() if mutant.name in QUICK else pytest.mark.thorough, id=mutant.name)


@pytest.mark.parametrize("mutant", [marked(mutant) for mutant in MUTANTS])
def test_planted_fault_is_found(mutant: Mutant) -> None:
    assert found(mutant) or mutant.name in MISSED


MISSED: set[str] = set()
"""Faults that neither finds; at most one in twenty of each table."""


def test_few_faults_are_missed() -> None:
    assert len(MISSED) <= len(MUTANTS) / 20 and {mutant.name for mutant in MUTANTS} >= MISSED | QUICK


@pytest.mark.thorough
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted(settings: Settings) -> None:
    plug_in, options, variant = settings
    plugin, budget = method(plug_in, dict(options), variant), budget_of(plug_in)
    assert found_by_game(plugin, budget, "toy", classes_of(plug_in), plays=plays_of(plug_in, dict(options))) is None
    assert found_by_neighbours(plug_in, plugin, budget) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", CORRECT, ids=str)
def test_correct_code_is_accepted_at_twenty_seeds(settings: Settings) -> None:
    plug_in, options, variant = settings
    plugin, budget, plays = (
        method(plug_in, dict(options), variant),
        budget_of(plug_in),
        plays_of(plug_in, dict(options)),
    )
    verdicts = [found_by_game(plugin, budget, "toy", classes_of(plug_in), seed, plays) for seed in range(20)]
    assert verdicts == [None] * 20
