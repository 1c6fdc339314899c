"""`bench sweep`: all runs of a recipe, in parallel, on this machine, a Slurm cluster or a Ray cluster."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.cli import paths
from bench.cli.boards import expect_boards
from bench.config import DATASET, TIERS
from bench.errors import BadOption, UnknownName, unknown
from bench.progress import Screen, head, out, plain_text, say, tell

if TYPE_CHECKING:
    from bench.cli import Parsers
    from bench.pipeline.canary_game import CanaryGame
    from bench.pipeline.settings import Settings
    from bench.sweeps.executors import Executor
    from bench.sweeps.plan import Cell
    from bench.sweeps.results import CellResult
    from bench.sweeps.run_sweep import Summary

HELP = "run all cells of a recipe (recipes/*.toml)"
DESCRIPTION = (
    "Runs every cell of a recipe, a run or an audit, that has no record yet, in --out or among --boards. Cells whose "
    "method, attack or data the bench lacks are listed as planned. A failed cell does not stop the others; the exit "
    "status is 1 if any failed. "
    "Interrupted, it goes on where it was when it is run again."
)
NAMING = (
    *("--method", "--attack", "--teacher", "--tier", "--variant", "--attack-variant"),
    *("--teacher.recipe", "--evaluator.recipe"),
)
"""Options that decide which further options exist, or their help text."""
BACKENDS = ("local", "slurm", "ray")
OURS = {
    "cpus-per-task": "give --cpus",
    "gpus-per-node": "give --gpus",
    **dict.fromkeys(("output", "error", "job-name", "array"), "leave it out"),
}
"""Options of sbatch that `bench sweep` sets by other options."""
WIDTH = 160
MOST_CELLS = 30
"""Number of cells whose results are printed; the others are in the written table."""
Words = tuple[str, ...]
STATES = ("ok", "inconclusive", "skipped", "cached", "published", "ready", "failed", "refused", "planned")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench sweep`."""
    parser.add_argument("recipe", type=paths.named, help="a TOML file, such as recipes/dpsd-table1.toml")
    parser.add_argument("--dry-run", action="store_true", help="list the cells with their state and time, and stop")
    what = parser.add_argument_group("which cells, and how large")
    what.add_argument("--tier", choices=TIERS, default="quick", help="size of every run (default quick)")
    what.add_argument(
        "--dataset", metavar="LIST", default="", help="only cells of these data sets, with commas (default all)"
    )
    what.add_argument("--seeds", metavar="LIST", help="these seeds instead of the recipe's")
    what.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="an option for all cells, over the recipe's, as in --set teacher=resnet18; may be repeated",
    )
    where = parser.add_argument_group("where and how")
    where.add_argument("--data-root", type=paths.named, metavar="DIR", help="as for `bench run`")
    where.add_argument("--out", type=paths.named, default=Path("runs"), metavar="DIR", help="as for `bench run`")
    where.add_argument(
        "--boards", type=paths.named, metavar="DIR", help="run nothing that these boards have, such as leaderboards"
    )
    where.add_argument(
        "--backend", choices=BACKENDS, default="local", help="processes here, or jobs of a cluster (default local)"
    )
    where.add_argument("--executor", choices=("local", "ray"), help=argparse.SUPPRESS)
    where.add_argument(
        "--jobs", type=int, metavar="N", help="runs at once (default: as many as GPUs, else half the cores)"
    )
    where.add_argument(
        "--within",
        type=float,
        metavar="MINUTES",
        help="end by then: begin nothing that may take longer, and interrupt what still runs (default: no end)",
    )
    where.add_argument(
        "--devices", metavar="LIST", default="", help="devices given out in turn, as in cuda:0,cuda:1 (default: all)"
    )
    where.add_argument(
        "--address", default="", help="of a running Ray cluster; auto finds it (default: start one here)"
    )
    where.add_argument(
        "--slurm", metavar="OPTION=VALUE", action="append", default=[], help="an option of sbatch, as in partition=gpu"
    )
    where.add_argument("--cpus", type=float, default=1, metavar="N", help="cores for a job of a cluster (default 1)")
    where.add_argument("--gpus", type=float, default=0, metavar="N", help="GPUs for a job of a cluster (default 0)")


def execute(given: argparse.Namespace) -> int:
    """Plan, and unless it is a dry run, run the cells. Returns the exit status."""
    if given.executor is not None:
        say(f"--executor is called --backend now: give --backend {given.executor}")
        given.backend = given.executor
    _check_numbers(given)
    until = None if given.within is None else time.monotonic() + 60 * given.within
    there = next(path for path in (given.out, *given.out.parents) if path.exists())
    if not there.is_dir():  # a dry run writes nothing
        raise BadOption(f"--out {given.out}: not a directory; give one that you may write to")
    if given.boards is not None:
        expect_boards(given.boards)
    from bench.sweeps.recipe import read

    recipe = read(given.recipe)  # before torch is imported, so that mistakes are reported at once
    datasets = [name for name in given.dataset.split(",") if name]
    if given.dataset and not datasets:
        raise BadOption(f"--dataset {given.dataset}: names none; leave it out for all of the recipe")
    present = {cell.get("dataset") or DATASET for cell in recipe.cells}
    absent = [name for name in datasets if name not in present]
    if absent:
        raise UnknownName(f"--dataset {absent[0]}: not in {given.recipe}, which has {', '.join(sorted(present))}")
    from bench.sweeps.plan import plan

    recipe, on_gpu = _changed(recipe, given), _is_on_gpu(given)
    asked = partial(plan, recipe, _common(given), datasets, given.out, Settler(), boards=given.boards, on_gpu=on_gpu)
    if given.dry_run:
        with TemporaryDirectory(prefix="bench-dry-run-") as scratch:
            _list(recipe.title, asked(Path(scratch)))
        return 0
    from bench.storage.store import Store

    Store(given.out)  # one error if it cannot be written, instead of one per cell
    cells = asked()
    from bench.sweeps.processes import as_interrupts
    from bench.sweeps.run_sweep import run_sweep

    path = given.out / "sweeps" / f"{given.recipe.stem}-{given.tier}.json"
    with as_interrupts():
        summary = run_sweep(given.recipe.stem, cells, _executor(given), path, say, until)
    from bench.sweeps.results import cell_results, write_results

    table, results = path.with_suffix(".csv"), cell_results(summary.outcomes)
    write_results(table, results)
    _show(recipe.title, summary, path)
    _show_results(results, table)
    return 1 if summary.failed else 0


def _executor(given: argparse.Namespace) -> Executor[Any]:
    from bench.cli import main
    from bench.pipeline.devices import cores
    from bench.sweeps.local import Local
    from bench.sweeps.ray_cluster import Ray
    from bench.sweeps.slurm_cluster import Slurm

    if given.backend == "ray":
        return Ray(main, given.address, given.cpus, given.gpus, jobs=given.jobs or 0)
    if given.backend == "slurm":
        folder = given.out / "sweeps" / "slurm"
        return Slurm(main, folder, given.cpus, given.gpus, given.jobs or 0, _sbatch_options(given))
    devices = _devices(given.devices)
    usual = max(1, cores() // 2) if set(devices) == {"cpu"} else len(devices)
    return Local(main, given.jobs or usual, devices)


def _is_on_gpu(given: argparse.Namespace) -> bool:
    """Whether the runs use a GPU; selects the published seconds for the estimate."""
    if given.boards is None:
        return False
    return given.gpus > 0 if given.backend != "local" else set(_devices(given.devices)) != {"cpu"}


def _check_numbers(given: argparse.Namespace) -> None:
    """Check the numbers, and that the chosen backend reads each given option."""
    if given.devices and given.backend == "local":
        _devices(given.devices)
    for name, least in (("jobs", 1), ("cpus", 0), ("gpus", 0)):
        if (number := getattr(given, name)) is not None and not least <= number < math.inf:
            raise BadOption(f"--{name} {number}: expected a number of at least {least}")
    if given.within is not None and not 0 < given.within < math.inf:
        raise BadOption(f"--within {given.within:g}: expected a number of minutes above 0")
    if given.backend != "local" and given.devices:
        raise BadOption(f"--devices {given.devices} is for processes here; give --gpus to a cluster")
    if given.address and given.jobs:
        raise BadOption(f"--jobs {given.jobs}: a running cluster decides how many tasks it takes; leave it out")
    readers = {
        "--address": (given.address, ("ray",)),
        "--slurm": (given.slurm, ("slurm",)),
        "--cpus": (given.cpus != 1, ("ray", "slurm")),
        "--gpus": (given.gpus, ("ray", "slurm")),
    }
    for flag, (is_given, backends) in readers.items():
        if is_given and given.backend not in backends:
            wanted = " or ".join(f"--backend {name}" for name in backends)
            raise BadOption(f"{flag} is for a cluster; give {wanted}, or leave it out")
    _sbatch_options(given)


def _sbatch_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of sbatch by name. Raises BenchError for one without a value, and for one that we set."""
    found: dict[str, str] = {}
    for text in given.slurm:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals or not name or not value:
            raise BadOption(f"--slurm {text}: expected OPTION=VALUE with an option of sbatch, as in partition=gpu")
        if name in OURS:
            raise BadOption(f"--slurm {text}: {name} is set by `bench sweep`; {OURS[name]}")
        found[name] = value
    return found


def _changed(recipe: Any, given: argparse.Namespace) -> Any:
    """Apply --set and --seeds to every cell of the recipe."""
    from dataclasses import replace

    from bench import registry
    from bench.cli.read_given import read_seeds
    from bench.sweeps.recipe import FORBIDDEN

    changes: dict[str, str] = {}
    for text in given.set:
        option, equals, value = text.removeprefix("--").partition("=")
        if instead := (FORBIDDEN | {"seeds": "give --seeds to `bench sweep`"}).get(option):
            raise BadOption(f"--set {text}: '{option}' is no option of the cells; {instead}")
        if not equals or not option:
            raise BadOption(f"--set {text}: expected OPTION=VALUE with an option of the cells, as in teacher=resnet18")
        if option in ("method", "attack") and value not in {"none", *(known := registry.entries(option))}:
            raise unknown(f"{option} for --set", value, known)
        changes[option] = value
    seeds = None if given.seeds is None else tuple(read_seeds(given.seeds))
    cells = (
        replace(cell, options=tuple((dict(cell.options) | changes).items()), seeds=seeds or cell.seeds)
        for cell in recipe.cells
    )
    return replace(recipe, cells=tuple({cell.key: cell for cell in cells}.values()))


def _common(given: argparse.Namespace) -> list[str]:
    root = ["--data-root", str(given.data_root)] if given.data_root else []
    return ["--tier", given.tier, "--out", str(given.out), *root]


class Settler:
    """Parses the commands of many cells, which repeat the same options.

    Options are independent of each other, except for those that name plug-ins, which add further options. So parsers
    are made once for each choice of plug-ins, and each option with its value is parsed once: a plug-in's own option,
    which has a dot in its name, once per choice, any other one by the first parser.
    """

    def __init__(self) -> None:
        self._parsers: dict[Words, Parsers] = {}
        self._plain: dict[Words, Parsers] = {}
        self._usual: dict[Words, dict[str, Any]] = {}
        self._said: dict[tuple[Words, Words], dict[str, Any]] = {}

    def __call__(self, arguments: Sequence[str]) -> tuple[Settings, CanaryGame | None]:
        """Return the settings, and the game if it is an audit. Raises BenchError."""
        from bench.cli import audit, run

        given = self._read(arguments)
        if given.command == "audit":
            settings, game, _ = audit.settle(given)
            return settings, game
        return run.settle(given)[0], None

    def _read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments as `bench.cli.read`."""
        command, *options = _options(arguments)
        naming = (*NAMING, "--dataset") if any(name.startswith("--evaluator.") for name, *_ in options) else NAMING
        context = (*command, *(word for option in options for word in _naming(option, naming)))
        if context not in self._parsers:
            self._parsers[context] = self._parser(command, arguments)
            self._usual[context] = self._parsed(context, command)
        found = dict(self._usual[context])
        for option in options:
            found |= self._by(context, command, option)
        return argparse.Namespace(**found)

    def _parser(self, command: Words, arguments: Sequence[str]) -> Parsers:
        """Return a parser as `bench.cli.parser_for`; commands without plug-in options share one."""
        from bench.cli import PLUGGABLE, parser_for

        if any("." in word for word in arguments if word.startswith("--")):
            return parser_for(list(arguments))
        if command not in self._plain:
            self._plain[command] = parser_for(list(command))
        PLUGGABLE[command[0]].add_plugin_arguments(self._plain[command][1][command[0]], list(arguments))
        return self._plain[command]

    def _by(self, context: Words, command: Words, option: Words) -> dict[str, Any]:
        """Return the changes that an option makes to the parsed values of a command without options."""
        key = context if "." in option[0] else command, option
        if key not in self._said:
            usual, said = self._usual[context], self._parsed(context, [*command, *option])
            self._said[key] = {n: value for n, value in said.items() if n not in usual or value is not usual[n]}
        return self._said[key]

    def _parsed(self, context: Words, words: Sequence[str]) -> dict[str, Any]:
        from bench.cli import joined, read_by

        return vars(read_by(self._parsers[context], joined(words)))


def _options(arguments: Sequence[str]) -> list[Words]:
    """Split arguments into the command's words, then each option with its value, if it takes one."""
    found: list[list[str]] = [[]]
    for word in arguments:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return [tuple(words) for words in found]


def _naming(option: Words, naming: Words) -> Words:
    """Return the whole option if `naming` has it; for a plug-in's option, its prefix."""
    prefix, dot, _ = option[0].partition(".")
    return option if option[0] in naming else (prefix,) if dot else ()


def _devices(text: str) -> tuple[str, ...]:
    from bench.pipeline.devices import pick_device

    if text:
        return tuple(str(pick_device(name)) for name in text.split(","))
    import torch

    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) or ("cpu",)


def _list(title: str, cells: Sequence[Cell]) -> None:
    from rich.table import Table

    from bench.sweeps.run_sweep import duration

    shared = _shared_reasons(cells)
    table = Table(box=None, header_style="bold", title=plain_text(title), title_justify="left")
    for column in ("state", "cell", "about", "why"):
        table.add_column(column, no_wrap=column in ("state", "about"))
    for each in cells:
        about = "" if each.state != "ready" else "?" if each.seconds is None else duration(each.seconds)
        why = f"({shared[each.reason]})" if each.reason in shared else each.reason or each.note
        table.add_row(each.state, plain_text(each.name), about, plain_text(why))
    Screen(width=max(out.width, 140), highlight=False, emoji=False).print(table)
    for reason, number in shared.items():
        out.print(f"({number}) {reason}", markup=False, soft_wrap=True)
    ready = [cell for cell in cells if cell.state == "ready"]
    known = [cell.seconds for cell in ready if cell.seconds is not None]
    counts = {state: sum(cell.state == state for cell in cells) for state in STATES}
    out.print(", ".join(f"{count} {state}" for state, count in counts.items() if count) + f"; {len(cells)} in all")
    if ready:
        rest = len(ready) - len(known)
        told = [f"about {duration(sum(known))} one after the other"] if known else []
        told += [f"{rest} run{'s' * (rest != 1)} of which no like is known"] if rest else []
        out.print(", and ".join(told))


def _shared_reasons(cells: Sequence[Cell]) -> dict[str, int]:
    """Number the reasons that several cells have, so that each sentence is printed once."""
    count = Counter(cell.reason for cell in cells if cell.reason)
    return {reason: number for number, reason in enumerate((r for r, n in count.items() if n > 1), start=1)}


def _show(title: str, summary: Summary, path: Path) -> None:
    from bench.sweeps.run_sweep import duration

    head(f"\n{title}")
    counts = summary.counts()
    took = f", in {duration(summary.seconds)}" if summary.seconds else ""
    out.print(", ".join(f"{counts[state]} {state}" for state in STATES if state in counts) + took)
    for outcome in summary.failed:
        out.print(f"{outcome.state}: {outcome.name}: {outcome.reason}", markup=False, soft_wrap=True)
    for reason in dict.fromkeys(outcome.reason for outcome in summary.outcomes if outcome.state == "planned"):
        out.print(f"planned: {reason}", markup=False, soft_wrap=True)
    out.print(f"summary {path}", markup=False, soft_wrap=True)


def _show_results(results: Sequence[CellResult], path: Path) -> None:
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
        Screen(width=max(out.width, WIDTH), highlight=False, emoji=False).print(table)
    left = len(measured) - MOST_CELLS
    tell(f"{left} more cells; the whole table: {path}" if left > 0 else f"table {path}")
