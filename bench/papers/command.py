"""`bench papers compare`: a table of a paper, number by number, compared with the boards."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.cli import paths
from bench.config import TIERS
from bench.errors import BenchError
from bench.escape import csv_cell
from bench.progress import Screen, complain, out

if TYPE_CHECKING:
    from bench.papers.comparison import Line

DESCRIPTION = (
    "Prints every accuracy of a table with the row of the boards that has the same data set, method, claimed epsilon, "
    "mode and ablation, one for each variant that was run: accuracy over seeds, tier, accounted epsilon, nats that the "
    "answers carry at most, difference, the reason where ours is more than two points behind (docs/report.md), and "
    "flags; and the accuracy that the paper's own settings allow, where they bound it (docs/information.md). What we "
    "lack is marked planned (the bench has no such method or data) or not run; what a paper leaves out, such as "
    "its epsilon, is said."
)
WIDTH = 220
FIELDS = (
    "paper", "table", "dataset", "method", "ablation", "unit", "epsilon", "reported", "variant", "ours", "ours_std",
    "seeds", "tier", "setting", "epsilon_claimed", "claim_unit", "epsilon_accounted", "accounted_unit", "information",
    "printed_information", "printed_allows", "difference", "reason", "state", "flags",
)  # fmt: skip


class Papers:
    """The sub-command `papers`."""

    HELP = "the published numbers of four papers, compared with ours"
    DESCRIPTION = "Compares the numbers of the papers DP-DFD, DPDFD, DGD and DPSD with the boards (docs/papers.md)."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        made = actions.add_parser("compare", help="one table of a paper", description=DESCRIPTION)
        made.allow_abbrev = False
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(parser=made)
        add_arguments(made)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        return execute(given)


class Compare:
    """The old name of `bench papers compare`, which no list shows."""

    HELP = ""
    DESCRIPTION = f"An old name of `bench papers compare`. {DESCRIPTION}"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        complain("bench: `bench compare` is an old name; use `bench papers compare`")
        return execute(given)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench papers compare`."""
    parser.add_argument("--paper", required=True, metavar="NAME", help="dp-dfd, dpdfd, dgd or dpsd (required)")
    parser.add_argument("--table", required=True, metavar="NAME", help='as printed, as in "Table I" (required)')
    parser.add_argument("--tier", choices=TIERS, help="only our rows of this tier (default: the largest)")
    parser.add_argument("--dataset", metavar="NAME", help="only this data set of the table")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--boards", type=paths.named, metavar="DIR", help="the boards (default leaderboards, else the installed ones)"
    )
    where.add_argument("--out", type=paths.named, metavar="DIR", help="the boards of your own runs in this directory")
    parser.add_argument("--csv", action="store_true", help="write the comparison as CSV to stdout")


def execute(given: argparse.Namespace) -> int:
    """Compare and show. Returns the exit status."""
    from bench.boards import board_files
    from bench.papers import comparison, printed_numbers
    from bench.papers.reasons import without_noise

    entries = printed_numbers.table(given.paper, given.table)
    present = list(dict.fromkeys(entry.dataset for entry in entries))
    if given.dataset is not None:
        if given.dataset not in present:
            raise BenchError(
                f"--dataset {given.dataset}: not in {given.paper} {given.table}, which has {', '.join(present)}"
            )
        entries = [entry for entry in entries if entry.dataset == given.dataset]
    folder = board_files.boards_folder(given.boards) if given.out is None else given.out / "leaderboards"
    rows = comparison.of_tier(board_files.boards(folder), given.tier)
    lines, controls = comparison.compare(entries, rows, _exists), without_noise(rows)
    cells = [_cells(line, controls) for line in lines]
    if given.csv:
        _write(cells)
    else:
        _show(f"{entries[0].source}  (ours: {folder})", lines, cells)
    return 0


def _exists(method: str, dataset: str) -> bool:
    from bench import data, registry

    return method in registry.entries("method") and dataset in data.names()


def _cells(line: Line, controls: Mapping[object, Mapping[str, Any]]) -> dict[str, Any]:
    """A line as FIELDS; None for an empty cell."""
    from bench.papers import information
    from bench.papers.reasons import reason

    entry, row, why = line.entry, line.row or {}, reason(line, controls)
    found: dict[str, Any] = {
        "paper": entry.paper,
        "table": entry.table,
        "dataset": entry.dataset,
        "method": entry.method,
        "ablation": " ".join(part for part in (entry.ablation, entry.teacher) if part),
        "unit": entry.unit,
        "epsilon": entry.epsilon,
        "reported": entry.printed,
        "ours": row.get("accuracy_mean"),
        "ours_std": row.get("accuracy_std"),
        "difference": line.difference,
        "reason": None if why is None else why.code,
        "accounted_unit": row.get("unit"),
        "state": line.state or "measured",
        "flags": line.flags,
        "printed_information": _rounded(information.carried(entry)),
        "printed_allows": _rounded(information.allowed(entry)),
    }
    return found | {key: row.get(key) for key in FIELDS if key not in found}


def _write(found: Sequence[Mapping[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in line.items()} for line in found)


def _show(title: str, lines: Sequence[Line], found: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    columns = (
        "data set",
        "method",
        "eps",
        "paper prints",
        "its settings allow",
        "our variant",
        "ours",
        "difference",
        "reason",
        "tier",
        "eps accounted",
        "nats",
        "setting",
        "flags",
    )
    for column in columns:
        table.add_column(column)
    for line, cells in zip(lines, found, strict=True):
        epsilon = "-" if cells["epsilon"] is None else f"{cells['epsilon']:g}"
        name = f"{cells['method']} {cells['ablation']}".strip()
        if line.row is None:
            ours = ("", line.state, "", "", "", "", "", "")
        else:
            spread = f" ±{float(cells['ours_std']):.4f}" if cells["ours_std"] else ""
            ours = (
                cells["variant"],
                f"{float(cells['ours']):.4f}{spread}",
                f"{cells['difference']:+.4f}",
                cells["reason"] or "",
                cells["tier"],
                _number(cells["epsilon_accounted"]) + f" per {cells['accounted_unit']}" * bool(cells["accounted_unit"]),
                _number(cells["information"]),
                cells["setting"],
            )
        allowed = "" if cells["printed_allows"] is None else f"<= {cells['printed_allows']:.4f}"
        table.add_row(cells["dataset"], name, epsilon, cells["reported"], allowed, *ours, cells["flags"])
    Screen(width=max(out.width, WIDTH), highlight=False, markup=False, emoji=False).print(table)
    entries = {line.entry: line.row is not None for line in lines}
    done = f"{sum(entries.values())} of {len(entries)} numbers have one of ours"
    out.print(f"{done}; another tier is another size, and working is not what the paper prints", soft_wrap=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _number(cell: str | None) -> str:
    """A board's cell of nats or of an epsilon: "-" where it is empty, as it is where nothing is known."""
    return f"{float(cell):.4g}".replace("inf", "infinite") if cell else "-"
