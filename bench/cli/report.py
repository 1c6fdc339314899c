"""`bench report`: a static site of boards, charts, pictures, methods and runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.config import TIERS
from bench.errors import BadOption
from bench.progress import out, tell

if TYPE_CHECKING:
    from bench.report import Sources

HELP = "write a static site with the boards, charts, and a page for every method and run"
DESCRIPTION = (
    "A site below OUT: open OUT/index.html from the disk, or put the directory on any web server. It shows the "
    "published records in --boards and, with --runs, the records and pictures of your own runs. Nothing is loaded from "
    "elsewhere."
)
BOARDS = Path("leaderboards")
SPLIT = "iid"
"""The split of a picture: the split of the published boards."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench report`."""
    parser.add_argument(
        "--out", type=paths.named, default=Path("site"), metavar="DIR", help="where to write (default site)"
    )
    parser.add_argument(
        "--boards",
        type=paths.named,
        metavar="DIR",
        help=f"published boards (default {BOARDS}, else the installed ones)",
    )
    parser.add_argument(
        "--runs",
        type=paths.named,
        action="append",
        default=[],
        metavar="DIR",
        help="an --out of `bench run`, with pictures; may be given several times",
    )
    parser.add_argument("--dataset", metavar="NAME", help="this data set only")
    parser.add_argument(
        "--picture",
        type=paths.named,
        metavar="FILE",
        help="instead of the site, a PNG of one data set: accuracy against the proved epsilon and against --attack",
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
        return _picture(given, sources)
    files = render(sources)
    write(given.out, files)
    for remark in sources.remarks:
        out.print(remark, markup=False, soft_wrap=True)
    size = sum(map(len, files.values())) / 1e6
    path = given.out / "index.html"
    told = f"wrote {path}: {len(sources.records)} runs, {len(files)} files, {size:.1f} MB; open it in a browser"
    out.print(told, markup=False, soft_wrap=True)
    tell(f"read: published boards {boards}; your runs: {', '.join(map(str, given.runs)) or 'none (--runs DIR)'}")
    return 0


def _picture(given: argparse.Namespace, sources: Sources) -> int:
    from bench.boards import dataset
    from bench.report.picture import draw

    names = sorted({dataset(record) for record in sources.records})
    if len(names) != 1:
        raise BadOption(f"--picture {given.picture}: records of {', '.join(names)}; choose one with --dataset")
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
    out.print(f"wrote {given.picture}: {len(records)} runs", markup=False, soft_wrap=True)
    return 0
