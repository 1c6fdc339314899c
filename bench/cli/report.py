"""`bench report`: a static site of boards, charts, pictures, methods and runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.config import TIERS
from bench.errors import BadOption
from bench.progress import print_line

if TYPE_CHECKING:
    from bench.report import Sources

BOARDS = Path("leaderboards")
SPLIT = "iid"
"""The split of a picture, which is that of the published boards."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench report`."""
    parser.add_argument(
        "--out", type=file_path, default=Path("site"), metavar="DIR", help="folder to write (default site)"
    )
    parser.add_argument(
        "--boards",
        type=file_path,
        metavar="DIR",
        help=f"published boards (default: the folder {BOARDS}, else the installed ones)",
    )
    parser.add_argument(
        "--runs",
        type=file_path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of your runs, the --out of `bench run`; may be repeated",
    )
    parser.add_argument("--dataset", metavar="NAME", help="only this data set")
    parser.add_argument(
        "--picture",
        type=file_path,
        metavar="FILE",
        help="write only a PNG for one data set: accuracy against the accounted epsilon, and against --attack",
    )
    parser.add_argument("--attack", default="gmi", metavar="NAME", help="attack in the picture (default gmi)")
    parser.add_argument("--tier", choices=TIERS, default="quick", help="tier in the picture (default quick)")


def execute(given: argparse.Namespace) -> int:
    """Write the site, or the picture. Returns the exit status."""
    from bench.boards.records import boards_folder
    from bench.report import check_free, gather, render, write

    if given.picture and given.picture.suffix.lower() != ".png":
        raise BadOption(f"--picture {given.picture}: expected a file that ends in .png")
    if not given.picture:
        check_free(given.out)
    boards = boards_folder(given.boards)
    sources = gather(boards, given.runs, given.dataset)
    if given.picture:
        return draw_picture(given, sources)
    files = render(sources)
    write(given.out, files)
    for remark in sources.remarks:
        print_line(remark)
    size = sum(map(len, files.values())) / 1e6
    path = given.out / "index.html"
    print_line(f"wrote {path}: {len(sources.records)} runs, {len(files)} files, {size:.1f} MB; open it in a browser")
    print_line(f"read: published boards {boards}; your runs: {', '.join(map(str, given.runs)) or 'none (--runs DIR)'}")
    return 0


def draw_picture(given: argparse.Namespace, sources: Sources) -> int:
    """Draw the picture of one data set. Returns the exit status."""
    from bench.boards import dataset
    from bench.report.picture import draw

    names = sorted({dataset(record) for record in sources.records})
    if len(names) != 1:
        raise BadOption(
            f"--picture {given.picture}: the records are of {', '.join(names)}; give one of them as --dataset"
        )
    records = [
        record
        for record in sources.records
        if record.spec["tier"] == given.tier and record.spec["release"]["teacher"]["data"]["split"] == SPLIT
    ]
    seeds = sorted({record.spec["release"]["seed"] for record in records})
    title = f"{names[0]}, tier {given.tier}, {len(records)} runs, seeds {' '.join(map(str, seeds))}"
    try:
        draw(given.picture, title, records, given.attack)
    except OSError as error:
        raise BadOption(f"--picture {given.picture}: cannot write it ({error.strerror}); give another file") from None
    print_line(f"wrote {given.picture}: {len(records)} runs")
    return 0


REPORT = Command(
    "Writes a web site: open OUT/index.html in a browser, or put the directory on any web server. It shows the "
    "published records of --boards and, with --runs, the records and pictures of your own runs. It loads nothing from "
    "other servers.",
    add_arguments,
    execute,
)
