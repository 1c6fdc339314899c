"""`bench papers compare`: compare each number of a paper's table with the boards."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.cli.parsing import file_path
from bench.config import TIERS
from bench.core.epsilon import format_epsilon
from bench.errors import BenchError
from bench.escape import csv_cell
from bench.progress import Screen, out, print_error

if TYPE_CHECKING:
    from bench.papers.comparison import Line
    from bench.papers.reasons import Controls

COMPARE = (
    "Print every accuracy of a table with the row of the boards that has the same data set, method, claimed epsilon, "
    "mode and ablation, one row for each variant that was run: accuracy over seeds, tier, accounted epsilon, upper "
    "bound in nats on what the responses carry, difference, the reason where ours is more than two points behind "
    "(docs/papers.md), and flags; and the accuracy that the paper's own settings allow, where they bound it "
    "(docs/information.md). A number without ours is marked planned (the bench has no such method or data) or not "
    "run, or with what the paper leaves out, such as its epsilon."
)
WIDTH = 220
Cell = str | float | None
FIELDS = (
    "paper", "table", "dataset", "method", "ablation", "unit", "epsilon", "reported", "variant", "ours", "ours_std",
    "seeds", "tier", "setting", "epsilon_claimed", "claim_unit", "epsilon_accounted", "accounted_unit", "information",
    "printed_information", "printed_allows", "difference", "reason", "closes", "state", "flags",
)  # fmt: skip
COLUMNS = (
    "data set", "method", "eps", "paper prints", "its settings allow", "our variant", "ours", "difference", "reason",
    "tier", "eps accounted", "nats", "setting", "flags",
)  # fmt: skip


class Papers:
    """The command `bench papers`, with its only action `compare`."""

    HELP = "the published numbers of four papers, compared with ours"
    DESCRIPTION = "Compare the numbers of the papers DP-DFD, DPDFD, DGD and DPSD with the boards (docs/papers.md)."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        made = actions.add_parser("compare", help="one table of a paper", description=COMPARE, allow_abbrev=False)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(parser=made)
        add_arguments(made)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        """Run the command. Returns the exit status."""
        return execute(given)


class Compare:
    """`bench compare`, the old name of `bench papers compare`; no list shows it."""

    HELP = ""
    DESCRIPTION = f"Old name of `bench papers compare`. {COMPARE}"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        add_arguments(parser)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        """Run the command. Returns the exit status."""
        print_error("bench: `bench compare` is an old name; use `bench papers compare`")
        return execute(given)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench papers compare`."""
    parser.add_argument("--paper", required=True, metavar="NAME", help="dp-dfd, dpdfd, dgd or dpsd (required)")
    parser.add_argument("--table", required=True, metavar="NAME", help='as printed, as in "Table I" (required)')
    parser.add_argument("--tier", choices=TIERS, help="only our rows of this tier (default: the largest)")
    parser.add_argument("--dataset", metavar="NAME", help="only this data set of the table")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--boards", type=file_path, metavar="DIR", help="the boards (default leaderboards, else the installed ones)"
    )
    where.add_argument("--out", type=file_path, metavar="DIR", help="the boards of your own runs in this directory")
    parser.add_argument("--csv", action="store_true", help="write the comparison as CSV to stdout")


def execute(given: argparse.Namespace) -> int:
    """Compare and print; return the exit status."""
    from bench.boards.records import boards_folder
    from bench.boards.results import of_tier, results
    from bench.boards.tables import read_boards
    from bench.papers.comparison import compare
    from bench.papers.printed_numbers import table
    from bench.papers.reasons import without_noise

    entries = table(given.paper, given.table)
    present = list(dict.fromkeys(entry.dataset for entry in entries))
    if given.dataset is not None and given.dataset not in present:
        raise BenchError(
            f"--dataset {given.dataset}: not in {given.paper} {given.table}, which has {', '.join(present)}"
        )
    entries = [entry for entry in entries if given.dataset in (None, entry.dataset)]
    folder = boards_folder(given.boards) if given.out is None else given.out / "leaderboards"
    ours = of_tier([result for board in read_boards(folder) for result in results(board)], given.tier)
    lines, controls = compare(entries, ours), without_noise(ours)
    if given.csv:
        _write([_cells(line, controls) for line in lines])
    else:
        _print(f"{entries[0].source}  (ours: {folder})", lines, controls)
    return 0


def _cells(line: Line, controls: Controls) -> dict[str, Cell]:
    """Return the cells of a line, under `FIELDS`; None for an empty cell."""
    from bench.papers import information
    from bench.papers.reasons import reason

    entry, result, why = line.entry, line.result, reason(line, controls)
    found: dict[str, Cell] = dict.fromkeys(FIELDS)
    found |= {
        "paper": entry.paper,
        "table": entry.table,
        "dataset": entry.dataset,
        "method": entry.method,
        "ablation": " ".join(part for part in (entry.ablation, entry.teacher) if part),
        "unit": entry.unit,
        "epsilon": entry.epsilon,
        "reported": entry.printed,
        "printed_information": _rounded(information.carried(entry)),
        "printed_allows": _rounded(information.allowed(entry)),
        "difference": line.difference,
        "reason": None if why is None else why.code,
        "closes": None if why is None else why.closes,
        "state": line.state or "measured",
        "flags": " ".join(line.flags),
    }
    if result is not None:
        found |= {
            "variant": result.release.variant,
            "ours": result.accuracy,
            "ours_std": result.deviation,
            "seeds": " ".join(str(run.seed) for run in result.runs),
            "tier": result.release.tier,
            "setting": result.setting,
            "epsilon_claimed": result.claimed,
            "claim_unit": result.release.claimed_unit,
            "epsilon_accounted": result.accounted,
            "accounted_unit": result.release.unit,
            "information": result.information,
        }
    return found


def _write(found: Sequence[Mapping[str, Cell]]) -> None:
    """Write lines as CSV, without cells that a spreadsheet would execute."""
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(cell) for key, cell in line.items()} for line in found)


def _print(title: str, lines: Sequence[Line], controls: Controls) -> None:
    from rich.table import Table

    from bench.papers.information import allowed
    from bench.papers.reasons import reason

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in COLUMNS:
        table.add_column(column)
    for line in lines:
        entry, result, why = line.entry, line.result, reason(line, controls)
        most = allowed(entry)
        ours = ["", line.state, "", "", "", "", "", ""]
        if result is not None:
            release, spread = result.release, f" ±{result.deviation:.4f}" if result.deviation else ""
            ours = [
                release.variant, f"{result.accuracy:.4f}{spread}", f"{line.difference:+.4f}", str(why) if why else "",
                release.tier, _number(result.accounted) + (f" per {release.unit}" if release.unit else ""),
                _number(result.information), result.setting,
            ]  # fmt: skip
        table.add_row(
            entry.dataset,
            " ".join(part for part in (entry.method, entry.ablation, entry.teacher) if part),
            "-" if entry.epsilon is None else f"{entry.epsilon:g}",
            entry.printed,
            "" if most is None else f"<= {most:.4f}",
            *ours,
            " ".join(line.flags),
        )
    Screen(width=max(out.width, WIDTH), highlight=False, markup=False, emoji=False).print(table)
    with_ours = {line.entry: line.result is not None for line in lines}
    count = f"{sum(with_ours.values())} of {len(with_ours)} numbers have one of ours"
    out.print(f"{count}; another tier is another size, and no paper prints the variant working", soft_wrap=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _number(value: float | None) -> str:
    """Format nats or an epsilon; "-" where it is not known."""
    return "-" if value is None else format_epsilon(value)
