"""The game or neighbouring runs find faults planted into the code of methods, and accept correct code."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import checks_training
import checks_votes
import pytest
from mutation import Mutant, planted_in_source

from bench.privacy import mechanisms

CHECKS = (checks_votes, checks_training)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "audits.md"
MISSED = {"cluster-rr: draw_again: labels kept too often", "dp-sinkhorn: clipped: each image clipped to C"}
"""Faults that neither finds."""
QUICK = {
    "dpsd: Dpsd._annotate: noise halved",
    "dpsd: Dpsd._bounded_gradient: no normalisation",
    "dpsd: Dpsd._responses: candidates of the teacher",
    "dpsd: Dpsd._annotate: soft label",
    "dpdfd: noisy_mean_of_teachers: noise used again",
    "dgd: Dgd.label: soft label",
    "pate: release_counts: one draw for all images",
    "rr: randomised_response: kept as among two classes, for any k",
    "private-features: clipped_sum: long gradients not clipped",
    "class-moments: noisy_moments: noise halved",
    "dp-merf: noisy_embedding: noise halved",
    "label-protocol: of_last_layer: wrong sensitivity of a label",
}
MUTANTS = [
    pytest.param(checks, mutant, marks=() if mutant.name in QUICK else pytest.mark.thorough, id=mutant.name)
    for checks in CHECKS
    for mutant in checks.MUTANTS
]
CORRECT = [pytest.param(checks, settings, id=str(settings)) for checks in CHECKS for settings in checks.CORRECT]


@pytest.mark.parametrize(("checks", "mutant"), MUTANTS)
def test_planted_fault_is_found(checks: ModuleType, mutant: Mutant) -> None:
    settings = (mutant.plug_in, mutant.options, mutant.variant)
    with planted_in_source(mutant.function, mutant.old, mutant.new):
        found = checks.by_game(settings) or checks.by_neighbours(settings)
    assert bool(found) == (mutant.name not in MISSED)


def test_audits_page_lists_every_planted_fault() -> None:
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    listed = {f"{row[0].split(',')[0].strip('`')}: {row[1]}: {row[2]}" for row in rows if len(row) == 6}
    names = {mutant.name for checks in CHECKS for mutant in checks.MUTANTS}
    assert names <= listed


def test_few_planted_faults_are_missed() -> None:
    names = [str(each.id) for each in MUTANTS]
    assert len(MISSED) <= len(names) / 20 and set(names) >= MISSED | QUICK
    trained = [mutant.name for mutant in checks_training.MUTANTS]
    assert len(set(trained)) == len(trained)


@pytest.mark.thorough
@pytest.mark.parametrize(("checks", "settings"), CORRECT)
def test_correct_code_is_accepted(checks: ModuleType, settings: Any) -> None:
    assert checks.by_game(settings) is None and checks.by_neighbours(settings) is None


@pytest.mark.slow
@pytest.mark.parametrize(("checks", "settings"), CORRECT)
def test_correct_code_is_accepted_at_twenty_seeds(checks: ModuleType, settings: Any) -> None:
    assert [checks.by_game(settings, seed) for seed in range(20)] == [None] * 20


class Base:
    def doubled(self, value: int) -> int:
        return 2 * value


class Derived(Base):
    def doubled(self, value: int) -> int:
        return super().doubled(value) + 1


def test_planted_in_source_changes_and_restores_importers() -> None:
    from bench.privacy.mechanisms import flip_probability as imported

    right = float(imported(1.0, 2))
    with planted_in_source(mechanisms.flip_probability, "math.exp(-epsilon)", "math.exp(epsilon)"):
        assert float(imported(1.0, 2)) != right
    assert float(imported(1.0, 2)) == right


def test_planted_in_source_keeps_closures() -> None:
    with planted_in_source(Derived.doubled, "+ 1", "+ 2"):
        assert Derived().doubled(3) == 8
    assert Derived().doubled(3) == 7


@pytest.mark.parametrize("old", ["not there", "epsilon"])
def test_planted_in_source_fragment_not_once_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match="occurs"), planted_in_source(mechanisms.flip_probability, old, "x"):
        pass
