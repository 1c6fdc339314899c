"""Recipes: TOML files that name many runs, such as all cells of a paper's table.

    title = "DPSD, Table I: accuracy at epsilon 1 and 10"
    paper = "dpsd"            # as in reported.csv; "" if the recipe is not a table of a paper
    table = "Table I"

    [defaults]                # options that every run has unless a grid says otherwise
    teacher = "resnet34"
    seeds = [0, 1, 2]

    [dataset.mnist]           # options of one data set's runs, over the defaults
    "teacher.epochs" = 20

    [[grid]]                  # every combination of the lists is a cell
    method = ["dpsd", "dp-merf"]
    dataset = ["mnist", "fmnist"]
    epsilon = [1, 10]
    "method.sigma" = 2.0      # a plug-in's own option; such a key needs its quotes
    note = "..."              # shown with the grid's cells

A key is an option of `bench run` without its dashes; a value is what would be typed, or a list of alternatives.
An option that takes no value is true, or false to leave it out. `seeds` is a list of whole numbers, a run each.

The cells of a grid are runs, unless the grid or [defaults] names another command, whose options the keys then are:

    [[grid]]
    command = "audit release"
    method = "dpsd"
    canaries = 200
    overfit = true
    "teacher.epochs" = 20
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.seeds import LARGEST_SEED

KEYS = {"title", "paper", "table", "defaults", "dataset", "grid"}
SWEEP_OPTIONS = ("out", "devices", "tier", "data-root", "help", "debug")
FORBIDDEN = {name: f"give --{name} to `bench sweep`" for name in SWEEP_OPTIONS} | {
    "fresh": "give `bench sweep` another --out",
    "device": "give --devices to `bench sweep`",
    "download": "fetch the data by `bench run --download` before",
}
"""Keys that recipes must not contain, to the alternative for the user."""
COMMANDS = {"run": "prepare", "audit release": "audit prepare"}
"""Commands that cells may have, with the command that makes their shared steps."""


@dataclass(frozen=True)
class RecipeCell:
    """One cell of a recipe as written.

    Attributes:
        options: option of the command to its value as typed, in the recipe's order; without seeds and tier.
        seeds: at least one seed.
        note: the recipe's note about it.
        command: one of COMMANDS.
    """

    options: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    note: str = ""
    command: str = "run"

    def get(self, option: str) -> str:
        """Return the value of an option, or ""."""
        return dict(self.options).get(option, "")

    @property
    def name(self) -> str:
        """The cell in a line."""
        return ("" if self.command == "run" else f"{self.command}: ") + describe(self.options)

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of the cell: equal for two cells that are the same run, in any order of options."""
        return self.command, frozenset(self.options)

    @property
    def arguments(self) -> list[str]:
        """Return the options as command-line arguments.

        >>> RecipeCell((("method", "dpsd"), ("overfit", "true"), ("method.secure", "true")), (0,)).arguments
        ['--method', 'dpsd', '--overfit', '--method.secure', 'true']
        """
        typed: list[str] = []
        for option, value in self.options:
            bare = "." not in option and value in ("true", "false")  # a plug-in's own option is typed with its value
            typed += [f"--{option}"] * (value == "true") if bare else [f"--{option}", value]
        return typed


@dataclass(frozen=True)
class Recipe:
    """The content of a recipe file; `path` is the file."""

    path: Path
    title: str
    paper: str
    table: str
    cells: tuple[RecipeCell, ...]


def read(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        BenchError: no such file, invalid TOML, an unknown key, or a value of another type; the message names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"recipe {path}: {error.strerror}; recipes are in recipes/") from None
    except UnicodeDecodeError:
        raise BenchError(f"recipe {path}: not a text file; expected TOML") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"recipe {path}: not TOML: {error}") from None
    unknown = sorted(set(content) - KEYS)
    if unknown:
        raise BenchError(f"recipe {path}: no key '{unknown[0]}'; expected {', '.join(sorted(KEYS))}")
    defaults, grids, own = content.get("defaults", {}), content.get("grid", []), content.get("dataset", {})
    if not isinstance(defaults, dict) or not isinstance(grids, list) or not grids:
        raise BenchError(f"recipe {path}: expected at least one [[grid]], and [defaults] as a table")
    if not isinstance(own, dict) or not all(isinstance(each, dict) for each in own.values()):
        raise BenchError(f"recipe {path}: expected tables [dataset.NAME]; a data set itself is named in [defaults]")
    cells = [cell for grid in grids for cell in _cells(path, defaults, own, grid)]
    unused = sorted(set(own) - {cell.get("dataset") for cell in cells})
    if unused:
        raise BenchError(f"recipe {path}: [dataset.{unused[0]}]: no cell has this data set; name it in a [[grid]] too")
    seen: set[tuple[Any, ...]] = set()
    for cell in cells:
        if cell.key in seen:
            raise BenchError(f"recipe {path}: the cell {cell.name} appears twice; remove one")
        seen.add(cell.key)
    title = str(content.get("title", path.stem))
    return Recipe(path, title, str(content.get("paper", "")), str(content.get("table", "")), tuple(cells))


def _cells(path: Path, defaults: Mapping[str, Any], own: Mapping[str, Any], grid: Any) -> Iterator[RecipeCell]:
    """Yield every combination of a grid's lists, completed by its data set's options and the defaults."""
    if not isinstance(grid, dict):
        raise BenchError(f"recipe {path}: expected a table as [[grid]]")
    flat = {key: value for key, value in {**defaults, **grid}.items() if key != "note"}
    for key, value in [*flat.items(), *(item for each in own.values() for item in each.items())]:
        if isinstance(value, dict):
            raise BenchError(f'recipe {path}: write the option "{key}.{next(iter(value), "name")}" in quotes')
        if value == []:
            raise BenchError(f"recipe {path}: {key} is an empty list; expected a value or some")
        if key in FORBIDDEN:
            raise BenchError(f"recipe {path}: a recipe cannot have the key '{key}'; {FORBIDDEN[key]}")
    seeds, command = flat.pop("seeds", [0]), flat.pop("command", "run")
    if command not in list(COMMANDS):
        raise BenchError(f"recipe {path}: command is {command!r}; expected {' or '.join(map(repr, COMMANDS))}")
    if isinstance(seeds, list) and len(set(map(str, seeds))) < len(seeds):
        raise BenchError(f"recipe {path}: seeds is {seeds}; expected each seed once")
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int and 0 <= s <= LARGEST_SEED for s in seeds):
        raise BenchError(f"recipe {path}: seeds is {seeds}; expected a list of whole numbers from 0 to {LARGEST_SEED}")
    if "method" not in flat:
        raise BenchError(f"recipe {path}: a [[grid]] names no method; it has {', '.join(flat) or 'nothing'}")
    lists = [value if isinstance(value, list) else [value] for value in flat.values()]
    for combination in product(*lists):
        chosen = dict(zip(flat, combination, strict=True))
        of_dataset = own.get(str(chosen.get("dataset")), {})
        added = {key: value for key, value in of_dataset.items() if key not in grid}
        options = tuple((key, _typed(path, key, value)) for key, value in {**chosen, **added}.items())
        yield RecipeCell(options, tuple(seeds), str(grid.get("note", "")), command)


def _typed(path: Path, key: str, value: Any) -> str:
    """Format a value as it would be typed. Raises BenchError for a date, a table or a nested list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return _number(value) if isinstance(value, float) else str(value)
    raise BenchError(f"recipe {path}: {key} is {value!r}; expected text, a number, or true or false")


def _number(value: float) -> str:
    """Format all significant digits of a number.

    >>> _number(2.0), _number(1e-5), _number(1.23456789), _number(float("inf"))
    ('2', '1e-05', '1.23456789', 'inf')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def describe(options: tuple[tuple[str, str], ...]) -> str:
    """Format a cell in a line: `dpsd mnist epsilon=1 method.mode=label`.

    >>> describe((("method", "dpsd"), ("dataset", "mnist"), ("epsilon", "1")))
    'dpsd mnist epsilon=1'
    """
    named = dict(options)
    first = [named[key] for key in ("method", "dataset") if key in named]
    return " ".join(first + [f"{key}={value}" for key, value in options if key not in ("method", "dataset")])
