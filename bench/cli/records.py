"""`bench records migrate`: convert records of older formats to the current one."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli import paths
from bench.errors import BenchError, disk_is_full
from bench.progress import out

HELP = "turn published records of an older format into today's"
DESCRIPTION = (
    "Records and audits of a folder of boards were a file each (records/HASH.json) before they were lines of one file "
    "per data set and method. This turns the files into lines; done twice it changes nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench records`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    migrate = actions.add_parser("migrate", help=HELP, description=DESCRIPTION, allow_abbrev=False)
    migrate.add_argument("--debug", action="store_true", help="show the traceback of an error")
    migrate.add_argument("folder", type=paths.named, metavar="FOLDER", help="a folder of boards, such as leaderboards")
    migrate.set_defaults(parser=migrate)


def execute(given: argparse.Namespace) -> int:
    """Migrate. Returns the exit status."""
    from bench.boards.records import migrate

    folder: Path = given.folder
    try:
        records, audits = migrate(folder)
    except (ValueError, OSError) as error:
        if isinstance(error, BenchError) or disk_is_full(error):
            raise
        raise BenchError(f"{folder}: {error}; nothing was changed: repair or remove it") from None
    out.print(f"{folder}: {records} records and {audits} audits are lines now", markup=False, soft_wrap=True)
    return 0
