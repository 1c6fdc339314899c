"""Planted faults in code that touches private data, and which tests find them: the game, or runs on neighbouring data.

Prints the tables of docs/audits.md: every fault that is planted into a step function, and the test that finds it; and
how often the game accepts each correct method. Faults are in tests/privacy/mutants_*.py. A few minutes of one core
each.

python benchmarks/mutants.py --seeds 20
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "privacy")]

import checks_training  # noqa: E402
import checks_votes  # noqa: E402
from mutation import Mutant, planted_in_source  # noqa: E402

CHECKS: list[ModuleType] = [checks_training, checks_votes]
"""Modules with `MUTANTS`, `CORRECT`, `plays_of`, `by_game` and `by_neighbours`."""


def main() -> None:
    """Print both tables, for the given plug-ins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name, and plug-ins whose settings, hold this text")
    parser.add_argument("--seeds", type=int, default=0, help="audits of each method without a fault; 0: none")
    parser.add_argument("--no-faults", action="store_true")
    given = parser.parse_args()
    if not given.no_faults:
        faults = [(checks, each) for checks in CHECKS for each in checks.MUTANTS if given.only in each.name]
        _faults(faults)
    if given.seeds:
        for checks in CHECKS:
            _correct(checks, [each for each in checks.CORRECT if given.only in str(each)], given.seeds)


def _faults(faults: list[tuple[ModuleType, Mutant]]) -> None:
    print("| plug-in | function | fault | found by | plays | s |\n|---|---|---|---|--:|--:|")
    counts = {"game": 0, "neighbours": 0, "missed": 0}
    for checks, mutant in faults:
        settings = (mutant.plug_in, mutant.options, mutant.variant)
        start = time.process_time()
        with planted_in_source(mutant.function, mutant.old, mutant.new):
            found = "game" if checks.by_game(settings) else "neighbours" if checks.by_neighbours(settings) else "missed"
        counts[found] += 1
        name = f"`{mutant.plug_in}`" + (f", {mutant.variant}" if mutant.variant else "")
        plays, seconds = checks.plays_of(settings), time.process_time() - start
        where = f"`{mutant.name.split(': ')[1]}`"
        print(f"| {name} | {where} | {mutant.what} | {found} | {plays:,} | {seconds:.1f} |", flush=True)
    print(f"\n{len(faults)} faults: {', '.join(f'{count} {what}' for what, count in counts.items())}.\n")


def _correct(checks: ModuleType, methods: list, seeds: int) -> None:
    print(f"| plug-in | options | plays | accepted at {seeds} seeds | s each |\n|---|---|--:|--:|--:|")
    for settings in methods:
        plug_in, options, variant = settings
        start = time.process_time()
        accepted = sum(checks.by_game(settings, seed) is None for seed in range(seeds))
        seconds = (time.process_time() - start) / seeds
        name = f"`{plug_in}`" + (f", {variant}" if variant else "")
        given = ", ".join(f"{key} {value}" for key, value in options.items())
        print(f"| {name} | {given} | {checks.plays_of(settings):,} | {accepted} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
