"""`bench papers compare`: a table of a paper, number by number, compared with the boards."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.cli.parsing import file_path
from bench.config import TIERS
from bench.errors import BenchError
from bench.escape import csv_cell
from bench.progress import Screen, out, print_error

if TYPE_CHECKING:
    from bench.papers.comparison import Line
    from bench.papers.printed_numbers import PrintedNumber
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
FIELDS = (
    "paper", "table", "dataset", "method", "ablation", "unit", "epsilon", "reported", "variant", "ours", "ours_std",
    "seeds", "tier", "setting", "epsilon_claimed", "claim_unit", "epsilon_accounted", "accounted_unit", "information",
    "printed_information", "printed_allows", "difference", "reason", "state", "flags",
)  # fmt: skip
COLUMNS = (
    "data set", "method", "eps", "paper prints", "its settings allow", "our variant", "ours", "difference", "reason",
    "tier", "eps accounted", "nats", "setting", "flags",
)  # fmt: skip


class Papers:
    """The command `bench papers`, with its only action so far."""

    HELP = "the published numbers of four papers, compared with ours"
    DESCRIPTION = "Compare the numbers of the papers DP-DFD, DPDFD, DGD and DPSD with the boards (docs/papers.md)."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        made = actions.add_parser("compare", help="one table of a paper", description=COMPARE, allow_abbrev=False)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(parser=made)
        add_arguments(made)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        return execute(given)


class Compare:
    """`bench compare`, the old name of `bench papers compare`; no list shows it."""

    HELP = ""
    DESCRIPTION = f"Old name of `bench papers compare`. {COMPARE}"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        print_error("bench: `bench compare` is an old name; use `bench papers compare`")
        return execute(given)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench papers compare`."""
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
    """Compare and print. Returns the exit status."""
    from bench.boards.board_files import boards, boards_folder
    from bench.papers.comparison import compare
    from bench.papers.reasons import without_noise
    from bench.papers.results import read_results

    entries = _read_entries(given)
    folder = boards_folder(given.boards) if given.out is None else given.out / "leaderboards"
    results = read_results(boards(folder), given.tier)
    lines, controls = compare(entries, results), without_noise(results)
    cells = [_cells(line, controls) for line in lines]
    if given.csv:
        _write(cells)
    else:
        _print(f"{entries[0].source}  (ours: {folder})", lines, cells)
    return 0


def _read_entries(given: argparse.Namespace) -> list[PrintedNumber]:
    """The chosen published numbers. Raises BenchError for an unknown table or data set."""
    from bench.papers.printed_numbers import table

    entries = table(given.paper, given.table)
    present = list(dict.fromkeys(entry.dataset for entry in entries))
    if given.dataset is not None and given.dataset not in present:
        raise BenchError(
            f"--dataset {given.dataset}: not in {given.paper} {given.table}, which has {', '.join(present)}"
        )
    return [entry for entry in entries if given.dataset in (None, entry.dataset)]


def _cells(line: Line, controls: Controls) -> dict[str, Any]:
    """A line as FIELDS; None for an empty cell."""
    from bench.papers import information
    from bench.papers.reasons import reason

    entry, result, why = line.entry, line.result, reason(line, controls)
    found: dict[str, Any] = dict.fromkeys(FIELDS)
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
        "state": line.state or "measured",
        "flags": " ".join(line.flags),
    }
    if result is not None:
        found |= {
            "variant": result.variant,
            "ours": result.accuracy,
            "ours_std": result.deviation,
            "seeds": result.seed_names,
            "tier": result.tier,
            "setting": result.setting,
            "epsilon_claimed": result.claimed,
            "claim_unit": result.claim_unit,
            "epsilon_accounted": result.accounted,
            "accounted_unit": result.unit,
            "information": result.information,
        }
    return found


def _write(found: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines as CSV, without cells that a spreadsheet would run."""
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in line.items()} for line in found)


def _print(title: str, lines: Sequence[Line], found: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in COLUMNS:
        table.add_column(column)
    for cells in found:
        epsilon = "-" if cells["epsilon"] is None else f"{cells['epsilon']:g}"
        allowed = "" if cells["printed_allows"] is None else f"<= {cells['printed_allows']:.4f}"
        name = f"{cells['method']} {cells['ablation']}".strip()
        table.add_row(cells["dataset"], name, epsilon, cells["reported"], allowed, *_ours(cells), cells["flags"])
    Screen(width=max(out.width, WIDTH), highlight=False, markup=False, emoji=False).print(table)
    with_ours = {line.entry: line.result is not None for line in lines}
    count = f"{sum(with_ours.values())} of {len(with_ours)} numbers have one of ours"
    out.print(f"{count}; another tier is another size, and no paper prints the variant working", soft_wrap=True)


def _ours(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of our result, from "our variant" to "setting"."""
    if cells["ours"] is None:
        return ("", cells["state"], "", "", "", "", "", "")
    spread = f" ±{cells['ours_std']:.4f}" if cells["ours_std"] else ""
    unit = f" per {cells['accounted_unit']}" if cells["accounted_unit"] else ""
    return (
        cells["variant"], f"{cells['ours']:.4f}{spread}", f"{cells['difference']:+.4f}", cells["reason"] or "",
        cells["tier"], _number(cells["epsilon_accounted"]) + unit, _number(cells["information"]), cells["setting"],
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _number(value: float | None) -> str:
    """Nats or an epsilon; "-" where it is not known."""
    return "-" if value is None else f"{value:.4g}".replace("inf", "infinite")
