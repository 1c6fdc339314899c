"""Print the recipe of all missing ablations: every departure of every method or attack reverted, one at a time.

    python benchmarks/departures.py --dataset digits > departures.toml      # --kind attack: of the attacks
    bench sweep departures.toml --out ABLATIONS
    python benchmarks/ablations.py ABLATIONS

A departure is missing if its plug-in states no effect, its options can revert it, and
leaderboards/papers/ablations has no result on the data set at the plug-in's present version. Budgets are
those of recipes/board.toml. Attacks run on the undefended teacher; options that only matter for a student or a
generator (`TELLS_NOTHING`) are left out.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from typing import Any

from bench import registry
from bench.config import Departure, Description
from bench.papers.effects import Kind, measure_effects, reverting_options

BOARD = registry.ROOT / "recipes" / "board.toml"
BUDGET = ("epsilon", "unit", "account")
HEAD = """title = "Departures of the working variants taken back, one at a time, on {dataset}"

[defaults]
dataset = "{dataset}"
seeds = [0, 1, 2]
"""
CONTROL = {"attack": "random-guess"}
VICTIM = {"method": "no-defence", "epsilon": "none"}
TELLS_NOTHING = {"reference_kind"}
"""Options that change nothing in an attack on a teacher."""


def budgets() -> dict[str, dict[str, Any]]:
    """Return the budget of each method's first grid on the board that sets no options of the method."""
    found: dict[str, dict[str, Any]] = {}
    for grid in tomllib.loads(BOARD.read_text(encoding="utf-8"))["grid"]:
        names = [grid["method"]] if isinstance(grid["method"], str) else grid["method"]
        if not any(key.startswith("method.") for key in grid):
            given = {key: grid[key] for key in BUDGET if key in grid}
            given["epsilon"] = given["epsilon"][0] if isinstance(given["epsilon"], list) else given["epsilon"]
            for name in names:
                found.setdefault(name, given)
    return found


def missing(name: str, described: Description, dataset: str, kind: Kind = "method") -> Iterator[Departure]:
    """Return the departures of a method or an attack without a result on a data set that an ablation could measure."""
    for departure in described.departures:
        undone = reverting_options(described, departure)
        if undone and not departure.worth and not (kind == "attack" and undone.keys() <= TELLS_NOTHING):
            known = [each for each in measure_effects(name, undone, kind) if each.dataset == dataset]
            if not any(each.version == described.facts["version"] for each in known):
                yield departure


def grids(dataset: str, wanted: list[str], kind: Kind = "method") -> Iterator[dict[str, Any]]:
    """Yield a cell of each method or attack unchanged, then one for each missing departure, reverted."""
    budget = budgets()
    for name in wanted or list(registry.entries(kind)):
        if registry.variants(kind, name)[-1] != "working":
            continue
        described = registry.describe(kind, name)
        if lacking := list(missing(name, described, dataset, kind)):
            if described.facts.get("access") in ("samples", "generator"):
                continue  # attacks a generator or images, which the target does not release
            cell = {kind: name, **(CONTROL | budget[name] if kind == "method" else VICTIM)}
            yield cell | {"note": "as it is"}
            for departure in lacking:
                undone = {
                    f"{kind}.{option}": value for option, value in reverting_options(described, departure).items()
                }
                yield cell | undone | {"note": f"without: {departure.what}"}


def text(key: str, value: Any) -> str:
    """Format a line of TOML."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, int | float) else None
    if shown is None:
        shown = '"' + str(value).replace("\\", "\\\\").replace('"', "'") + '"'
    return f'"{key}" = {shown}' if "." in key else f"{key} = {shown}"


def main() -> None:
    """Print the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", metavar="NAME", help="of all cells (default digits)")
    parser.add_argument("--kind", choices=("method", "attack"), default="method", help="of these (default method)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    given = parser.parse_args()
    print(HEAD.format(dataset=given.dataset))
    for grid in grids(given.dataset, given.names, given.kind):
        print("[[grid]]", *(text(key, value) for key, value in grid.items()), "", sep="\n")


if __name__ == "__main__":
    main()
