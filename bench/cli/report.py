"""`bench report`: one static page of boards, charts, pictures and runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.console import out
from bench.errors import BenchError

HELP = "write boards, charts, pictures and a page for every run into one static HTML file"
DESCRIPTION = (
    "One self-contained page, OUT/index.html, that opens from a file and fetches nothing. It shows the published "
    "records in --boards and, with --runs, the records and pictures of your own runs."
)
BOARDS = Path("leaderboards")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench report`."""
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="where to write (default site)")
    parser.add_argument(
        "--boards", type=Path, metavar="DIR", help=f"published boards (default {BOARDS}, if it is there)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="an --out of `bench run`, with pictures; may be given several times",
    )
    parser.add_argument("--dataset", metavar="NAME", help="this data set only")


def execute(given: argparse.Namespace) -> int:
    """Write the page. Returns the exit status."""
    from bench.report import gather, render

    boards = given.boards or (BOARDS if BOARDS.is_dir() else None)
    sources = gather(boards, given.runs, given.dataset)
    path = given.out / "index.html"
    text = render(sources)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BenchError(f"--out {given.out}: cannot write there ({error.strerror}); give another directory") from None
    for remark in sources.remarks:
        out.print(remark, markup=False, soft_wrap=True)
    size = len(text.encode()) / 1e6
    out.print(f"wrote {path}: {len(sources.records)} runs, {size:.1f} MB", markup=False, soft_wrap=True)
    return 0
