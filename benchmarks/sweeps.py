"""Time of `bench sweep` to plan many cells: a recipe of many settings, each with five seeds.

    python benchmarks/sweeps.py --cells 10000

Five methods, with and without attacks, at budgets from 1 upwards. A first plan, not counted, imports the plug-ins and
loads digits. Then every plan is made from the start; the script prints processor seconds, which exclude other programs
on the machine, and wall seconds. About a third is the methods' own check of their budgets.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from _timing import machine, positive, run, spread

from bench.cli.sweep import SettingsParser
from bench.sweeps.plan import Cell, plan
from bench.sweeps.recipe import read

METHODS, ATTACKS, SEEDS = ["dpsd", "dgd", "dpdfd", "dp-dfd", "dp-merf"], ["none", "gmi", "mi-face", "loss-threshold"], 5


def recipe(folder: Path, cells: int) -> Path:
    """Write a recipe file of at least `cells` cells."""
    budgets = -(-cells // (len(METHODS) * len(ATTACKS) * SEEDS))
    epsilons = [round(1 + 19 * i / budgets, 4) for i in range(budgets)]
    path = folder / "many.toml"
    lists = {"method": METHODS, "attack": ATTACKS, "epsilon": epsilons, "seeds": list(range(SEEDS))}
    lines = [f"{name} = {values}" for name, values in lists.items()]
    path.write_text("\n".join(["[[grid]]", 'dataset = "digits"', *lines]) + "\n", encoding="utf-8")
    return path


def planned(path: Path, out: Path) -> list[Cell]:
    """Return the plan, as `bench sweep --dry-run` makes it."""
    return plan(read(path), ["--tier", "smoke", "--out", str(out)], [], out, SettingsParser())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=positive, default=10_000)
    parser.add_argument("--repeats", type=positive, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        planned(recipe(folder, 1), folder / "runs")
        path, wall, worked = recipe(folder, given.cells), [], []
        for _ in range(given.repeats):
            start, before = time.perf_counter(), time.process_time()
            cells = planned(path, folder / "runs")
            wall.append(time.perf_counter() - start)
            worked.append(time.process_time() - before)
    states = ", ".join(f"{count} {state}" for state, count in Counter(cell.state for cell in cells).items())
    print(machine(torch.device("cpu")))
    print(f"{len(cells)} cells ({states}): {spread(worked)} s of processor time, {spread(wall)} s in all")


if __name__ == "__main__":
    run(main)
