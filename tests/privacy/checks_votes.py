"""Checks that look for the faults of mutants_votes.py and mutants_papers.py; `benchmarks/mutants.py` makes the
table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mutants_papers import PAPERS
from mutants_votes import LABELS, VOTES
from mutation import found_by_game
from neighbours import OWN, method
from neighbours_votes import RESPONSES, found_by_neighbours

from bench.config import Variant
from bench.privacy import Budget, Unit
from bench.testing import CLASSES

MUTANTS = [*VOTES, *LABELS, *PAPERS]
Settings = tuple[str, dict[str, Any], Variant | None]
"""A plug-in, its options, its variant."""
CORRECT: list[Settings] = [
    (mutant.plug_in, mutant.options, mutant.variant)
    for mutant in {f"{each.plug_in} {each.options} {each.variant}": each for each in MUTANTS}.values()
]
"""Each plug-in with its options in the tables, without a fault."""
PLAYS, BATCHES, CLUSTERS = 2_500, 1_000, 100_000


def plays_of(settings: Settings) -> int:
    """How often the game is played: a play that is a whole batch takes milliseconds."""
    plug_in, options, _ = settings
    if plug_in == "cluster-rr":  # whose faults move the chances of rare labels
        return CLUSTERS
    whole = plug_in == "dpdfd" and (options.get("shared") or "batch" in options) and not options.get("teachers")
    return BATCHES if whole else PLAYS


def by_game(settings: Settings, seed: int = 0) -> str | None:
    """The finding of the game; None where it finds nothing."""
    classes = 6 if settings[0] == "lp-2st" else CLASSES  # half of them are candidates, and two would be too easy
    return found_by_game(_method(settings), _budget(settings), "toy", classes, seed, plays_of(settings))


def by_neighbours(settings: Settings) -> str | None:
    """The finding of neighbouring runs; None where they find nothing."""
    return found_by_neighbours(settings[0], _method(settings), _budget(settings))


def _method(settings: Settings) -> Any:
    return method(*settings)


def _budget(settings: Settings) -> Budget:
    return replace(OWN, unit=Unit.LABEL) if settings[0] in RESPONSES else OWN
