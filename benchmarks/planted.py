"""Number of plays that the mechanism audit needs for each planted fault, and its rate of false refutations.

Prints the two tables of docs/audits.md. With one thread: a minute for the faults; for the correct mechanisms a minute
per hundred seeds of 20,000 plays, and per ten audits of a million.

python benchmarks/planted.py --seeds 100 --plays 20000
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "privacy")]

import planted_counts  # noqa: E402
import planted_noise  # noqa: E402
from planted import Planted  # noqa: E402
from planted_correct import CORRECT, Correct  # noqa: E402

from bench.privacy.audit import audit  # noqa: E402

PLAYS = (2_000, 10_000, 50_000, 1_000_000)
FAULTS = [*planted_noise.REPORTED, *planted_counts.REPORTED, *planted_noise.ADDED, *planted_counts.ADDED]


def main() -> None:
    """Print both tables, or those of the given names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults and mechanisms whose name holds this text")
    parser.add_argument("--seed", type=int, default=0, help="of the audits of faults")
    parser.add_argument("--seeds", type=int, default=100, help="audits of each correct mechanism; 0: none")
    parser.add_argument("--plays", type=int, default=20_000, help="of the audits of correct mechanisms")
    parser.add_argument("--no-faults", action="store_true")
    given = parser.parse_args()
    if not given.no_faults:
        _faults([fault for fault in FAULTS if given.only in fault.name], given.seed)
    if given.seeds:
        _correct([each for each in CORRECT if given.only in each.name], given.seeds, given.plays)


def _faults(faults: list[Planted], seed: int) -> None:
    print("| fault | plays | bound | promised | truth | found by |\n|---|--:|--:|--:|---|---|")
    refuted = 0
    for fault in faults:
        for plays in PLAYS:
            found = audit(fault.game, plays, seed)
            if found.verdict == "refuted":
                refuted += 1
                break
        needed = f"{plays:,}" if found.verdict == "refuted" else "never"
        bounds = f"{found.lower_bound:.2f} | {fault.promised:.2f}"
        print(f"| {fault.name} | {needed} | {bounds} | {fault.truth} | {found.scorer} |", flush=True)
    print(f"\n{refuted} of {len(faults)} are refuted.\n")


def _correct(mechanisms: list[Correct], seeds: int, plays: int) -> None:
    print(f"| correct mechanism, {seeds} seeds of {plays:,} plays | epsilon | accepted | bounds: mean | largest | s |")
    print("|---|--:|--:|--:|--:|--:|")
    for each in mechanisms:
        start = time.process_time()
        found = [audit(each.game, plays, seed) for seed in range(seeds)]
        seconds = (time.process_time() - start) / seeds
        bounds = [one.lower_bound for one in found]
        accepted = sum(one.verdict == "not refuted" for one in found)
        shown = f"{sum(bounds) / seeds:.2f} | {max(bounds):.2f} | {seconds:.2f}"
        print(f"| {each.name} | {each.epsilon:.3f} | {accepted} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
