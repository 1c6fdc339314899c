"""`bench sweep`: all runs of a recipe, in parallel, on this machine, a Slurm cluster or a Ray cluster."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.cli.boards import expect_boards
from bench.cli.parsing import Command, Parsers, file_path, join_numbers
from bench.cli.settings import read_seeds
from bench.config import DATASET, TIERS
from bench.errors import BadOption, UnknownName, unknown
from bench.interface.backends import BACKENDS, Backend
from bench.progress import Screen, notify, out, plain_text, print_heading, print_line

if TYPE_CHECKING:
    from bench.pipeline.canary_game import CanaryGame
    from bench.pipeline.settings import Settings
    from bench.sweeps.plan import Cell
    from bench.sweeps.recipe import Recipe
    from bench.sweeps.results import CellResult
    from bench.sweeps.run_sweep import Summary

PLUGIN_OPTIONS = (
    *("--method", "--attack", "--teacher", "--tier", "--variant", "--attack-variant"),
    *("--teacher.recipe", "--evaluator.recipe"),
)
"""Options that decide which further options exist, or their help text."""
LIST_WIDTH, RESULT_WIDTH = 140, 160
MOST_CELLS = 30
"""Number of cells whose results are printed; the others are in the written table."""
STATES = ("ok", "inconclusive", "skipped", "cached", "published", "ready", "failed", "refused", "planned")
"""States of cells, in the order in which they are counted."""
Words = tuple[str, ...]
Values = Mapping[str, object]
"""Attributes of parsed arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench sweep`."""
    parser.add_argument("recipe", type=file_path, help="a TOML file, such as recipes/dpsd-table1.toml")
    parser.add_argument(
        "--dry-run", action="store_true", help="only list the cells with their state and estimated time"
    )
    what = parser.add_argument_group("which cells, and how large").add_argument
    what("--tier", choices=TIERS, default="quick", help="size of every run (default quick)")
    what(
        "--dataset", metavar="LIST", default="", help="only cells of these data sets, separated by commas (default all)"
    )
    what("--seeds", metavar="LIST", help="seeds to use instead of those in the recipe")
    what(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="an option for all cells that replaces the recipe's, as in --set teacher=resnet18; may be repeated",
    )
    where = parser.add_argument_group("where and how").add_argument
    where("--data-root", type=file_path, metavar="DIR", help="folder of the data sets, as for `bench run`")
    where("--out", type=file_path, default=Path("runs"), metavar="DIR", help="folder of all results (default runs)")
    where("--boards", type=file_path, metavar="DIR", help="skip runs that these boards have, such as leaderboards")
    where("--backend", choices=BACKENDS, default="local", help="this machine, or a cluster (default local)")
    where("--executor", choices=("local", "ray"), help=argparse.SUPPRESS)
    where("--jobs", type=int, metavar="N", help="number of runs at once (default: one per GPU, else per two cores)")
    where(
        "--within",
        type=float,
        metavar="MINUTES",
        help="time limit: start no run that would exceed it, and interrupt runs that do (default: no limit)",
    )
    where("--devices", metavar="LIST", default="", help="devices used in turn, as in cuda:0,cuda:1 (default: all GPUs)")
    where(
        "--address", default="", help="address of a running Ray cluster, or auto (default: start one on this machine)"
    )
    where("--slurm", metavar="OPTION=VALUE", action="append", default=[], help="option of sbatch, as in partition=gpu")
    where("--cpus", type=float, default=1, metavar="N", help="cores that a cluster reserves for each run (default 1)")
    where("--gpus", type=float, default=0, metavar="N", help="GPUs that a cluster reserves for each run (default 0)")


def execute(given: argparse.Namespace) -> int:
    """Plan the cells and, unless it is a dry run, run them. Returns the exit status."""
    backend = read_backend(given)
    if given.within is not None and not 0 < given.within < math.inf:
        raise BadOption(f"--within {given.within:g}: expected a number of minutes above 0")
    until = None if given.within is None else time.monotonic() + 60 * given.within
    existing = next(path for path in (given.out, *given.out.parents) if path.exists())
    if not existing.is_dir():  # checked here, as a dry run writes nothing
        raise BadOption(f"--out {given.out}: not a directory; give one that you may write to")
    if given.boards is not None:
        expect_boards(given.boards)
    recipe, datasets = read_recipe(given)
    from bench.sweeps.plan import plan

    arguments = ["--tier", given.tier, "--out", str(given.out)]
    arguments += ["--data-root", str(given.data_root)] if given.data_root else []
    # Published seconds are used for the estimate, and differ between CPU and GPU
    on_gpu = given.boards is not None and backend.is_on_gpu
    make_plan = partial(
        plan, recipe, arguments, datasets, given.out, SettingsParser(), boards=given.boards, on_gpu=on_gpu
    )
    if given.dry_run:
        with TemporaryDirectory(prefix="bench-dry-run-") as scratch:
            show_plan(recipe.title, make_plan(Path(scratch)))
        return 0
    from bench.cli import main
    from bench.storage.store import Store
    from bench.sweeps.processes import as_interrupts
    from bench.sweeps.results import cell_results, write_results
    from bench.sweeps.run_sweep import run_sweep

    Store(given.out)  # one error if it cannot be written, instead of one per cell
    cells = make_plan()
    path = given.out / "sweeps" / f"{given.recipe.stem}-{given.tier}.json"
    with as_interrupts():
        summary = run_sweep(given.recipe.stem, cells, backend.executor(main, given.out), path, notify, until)
    table, results = path.with_suffix(".csv"), cell_results(summary.outcomes)
    write_results(table, results)
    show_summary(recipe.title, summary, path)
    show_results(results, table)
    return 1 if summary.failed else 0


def read_backend(given: argparse.Namespace) -> Backend:
    """Return where the runs are computed. Raises BadOption."""
    if given.executor is not None:
        notify(f"--executor was renamed: give --backend {given.executor}")
        given.backend = given.executor
    slurm: dict[str, str] = {}
    for text in given.slurm:
        name, _, value = text.removeprefix("--").partition("=")
        if not name or not value:
            raise BadOption(f"--slurm {text}: expected OPTION=VALUE with an option of sbatch, as in partition=gpu")
        slurm[name] = value
    devices = tuple(given.devices.split(",")) if given.devices else ()
    backend = Backend(given.backend, given.jobs, devices, given.cpus, given.gpus, slurm, given.address)
    backend.check("--")
    if devices:
        backend.local_devices()
    return backend


def read_recipe(given: argparse.Namespace) -> tuple[Recipe, list[str]]:
    """Read the recipe, apply --set and --seeds to its cells, and return it with the data sets of --dataset.

    Imports no torch, so that mistakes are reported at once. Raises BenchError.
    """
    from bench import registry
    from bench.sweeps.recipe import FORBIDDEN, read

    recipe = read(given.recipe)
    datasets = [name for name in given.dataset.split(",") if name]
    if given.dataset and not datasets:
        raise BadOption(f"--dataset {given.dataset}: no name is given; leave it out for all data sets of the recipe")
    present = {cell.get("dataset") or DATASET for cell in recipe.cells}
    if absent := [name for name in datasets if name not in present]:
        raise UnknownName(f"--dataset {absent[0]}: not in {given.recipe}, which has {', '.join(sorted(present))}")
    changes: dict[str, str] = {}
    for text in given.set:
        option, equals, value = text.removeprefix("--").partition("=")
        if instead := (FORBIDDEN | {"seeds": "give --seeds to `bench sweep`"}).get(option):
            raise BadOption(f"--set {text}: cells have no option '{option}'; {instead}")
        if not equals or not option:
            raise BadOption(f"--set {text}: expected OPTION=VALUE with an option of the cells, as in teacher=resnet18")
        if option in ("method", "attack") and value not in {"none", *(known := registry.entries(option))}:
            raise unknown(f"{option} for --set", value, known)
        changes[option] = value
    seeds = None if given.seeds is None else tuple(read_seeds(given.seeds))
    cells = [
        replace(cell, options=tuple((dict(cell.options) | changes).items()), seeds=seeds or cell.seeds)
        for cell in recipe.cells
    ]
    return replace(recipe, cells=tuple({cell.key: cell for cell in cells}.values())), datasets


class SettingsParser:
    """Parses the commands of many cells into settings, and caches parsers and parsed options.

    Options are independent of each other, except for those that name plug-ins, which add further options. So parsers
    are built once for each choice of plug-ins. Each option with its value is parsed once; a plug-in's own option, which
    has a dot in its name, once for each choice of plug-ins.
    """

    def __init__(self) -> None:
        self._parsers: dict[Words, Parsers] = {}
        self._without_plugins: dict[Words, Parsers] = {}
        self._defaults: dict[Words, Values] = {}
        self._changes: dict[tuple[Words, Words], Values] = {}

    def __call__(self, arguments: Sequence[str]) -> tuple[Settings, CanaryGame | None]:
        """Return the settings, and the game if it is an audit. Raises BenchError."""
        from bench.cli import audit, run

        given = self.parse(arguments)
        if given.command == "audit":
            settings, game, _ = audit.read_audit(given)
            return settings, game
        return run.read_run(given)[0], None

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments like `bench.cli.parse`."""
        command, *options = split_options(arguments)
        has_evaluator = any(name.startswith("--evaluator.") for name, *_ in options)
        naming = (*PLUGIN_OPTIONS, "--dataset") if has_evaluator else PLUGIN_OPTIONS
        context: Words = command
        for option in options:
            prefix, dot, _ = option[0].partition(".")
            context += option if option[0] in naming else (prefix,) if dot else ()
        if context not in self._parsers:
            self._parsers[context] = self._parsers_for(command, arguments)
            self._defaults[context] = self._parse_with(context, command)
        values = dict(self._defaults[context])
        for option in options:
            # The values that differ from the defaults if a command has only this option
            key = context if "." in option[0] else command, option
            if key not in self._changes:
                defaults, own = self._defaults[context], self._parse_with(context, (*command, *option))
                changed = {n: value for n, value in own.items() if n not in defaults or value is not defaults[n]}
                self._changes[key] = changed
            values |= self._changes[key]
        return argparse.Namespace(**values)

    def _parsers_for(self, command: Words, arguments: Sequence[str]) -> Parsers:
        """Return parsers like `bench.cli.parsers_for`; command lines without options of plug-ins share one."""
        from bench.cli import find_command, parsers_for

        if any("." in word for word in arguments if word.startswith("--")):
            return parsers_for(list(arguments))
        if command not in self._without_plugins:
            self._without_plugins[command] = parsers_for(list(command))
        parsers, add = self._without_plugins[command], find_command(command[0]).add_plugin_arguments
        if add is not None:
            add(parsers.commands[command[0]], list(arguments))
        return parsers

    def _parse_with(self, context: Words, words: Words) -> Values:
        from bench.cli import parse_with

        return vars(parse_with(self._parsers[context], join_numbers(list(words))))


def split_options(arguments: Sequence[str]) -> list[Words]:
    """Split arguments into the words of the command, then each option with its value, if it has one.

    >>> split_options(["audit", "release", "--method", "dpsd", "--overfit"])
    [('audit', 'release'), ('--method', 'dpsd'), ('--overfit',)]
    """
    found: list[list[str]] = [[]]
    for word in arguments:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return [tuple(words) for words in found]


def show_plan(title: str, cells: Sequence[Cell]) -> None:
    """Print state, estimated time and reason of every cell, and their sums; repeated reasons are numbered."""
    from rich.table import Table

    from bench.sweeps.run_sweep import duration

    repeated = [reason for reason, count in Counter(cell.reason for cell in cells if cell.reason).items() if count > 1]
    numbers = {reason: f"({number})" for number, reason in enumerate(repeated, start=1)}
    table = Table(box=None, header_style="bold", title=plain_text(title), title_justify="left")
    for column in ("state", "cell", "about", "why"):
        table.add_column(column, no_wrap=column in ("state", "about"))
    for each in cells:
        about = "" if each.state != "ready" else "?" if each.seconds is None else duration(each.seconds)
        reason = numbers.get(each.reason, each.reason or each.note)
        table.add_row(each.state, plain_text(each.name), about, plain_text(reason))
    Screen(width=max(out.width, LIST_WIDTH), highlight=False, emoji=False).print(table)
    for reason, number in numbers.items():
        print_line(f"{number} {reason}")
    counts: Counter[str] = Counter(cell.state for cell in cells)
    print_line(f"{', '.join(f'{counts[state]} {state}' for state in STATES if counts[state])}; {len(cells)} in all")
    ready = [cell.seconds for cell in cells if cell.state == "ready"]
    known = [seconds for seconds in ready if seconds is not None]
    unknown_count = len(ready) - len(known)
    parts = [f"about {duration(sum(known))} one after the other"] if known else []
    parts += (
        [f"{unknown_count} run{'s' * (unknown_count != 1)} without a similar finished run"] if unknown_count else []
    )
    if parts:
        print_line(", and ".join(parts))


def show_summary(title: str, summary: Summary, path: Path) -> None:
    """Print the number of cells in each state, and the reasons of failed and planned cells."""
    from bench.sweeps.run_sweep import duration

    print_heading(f"\n{title}")
    counts = summary.counts()
    took = f", in {duration(summary.seconds)}" if summary.seconds else ""
    print_line(", ".join(f"{counts[state]} {state}" for state in STATES if state in counts) + took)
    for outcome in summary.failed:
        print_line(f"{outcome.state}: {outcome.name}: {outcome.reason}")
    for reason in dict.fromkeys(outcome.reason for outcome in summary.outcomes if outcome.state == "planned"):
        print_line(f"planned: {reason}")
    print_line(f"summary {path}")


def show_results(results: Sequence[CellResult], path: Path) -> None:
    """Print accuracy, accounted epsilon and the attack's result of cells with results, and the path of the full
    table."""
    from rich.table import Table
    from rich.text import Text

    measured = [each for each in results if each.accuracy or each.attack]
    table = Table(box=None, header_style="bold")
    for column in ("cell", "state", "accuracy", "epsilon, accounted", "attack"):
        table.add_column(column, no_wrap=True)
    for each in measured[:MOST_CELLS]:
        table.add_row(*map(Text, (each.cell, each.state, each.accuracy, each.epsilon, each.attack)))
    if measured:
        Screen(width=max(out.width, RESULT_WIDTH), highlight=False, emoji=False).print(table)
    left = len(measured) - MOST_CELLS
    print_line(f"{left} more cells in the full table: {path}" if left > 0 else f"table {path}")


SWEEP = Command(
    "Runs every cell of a recipe, a run or an audit, that has no record yet in --out or on --boards. Cells with a "
    "method, attack or data set that does not exist yet are listed as planned. A failed cell does not stop the "
    "others; the exit status is 1 if any failed. The same command resumes an interrupted sweep.",
    add_arguments,
    execute,
    is_resumable=True,
)
