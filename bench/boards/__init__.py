"""Boards: one CSV file per data set, built from records and from nothing else."""

from bench.boards.audit_bounds import (
    audited_release,
    bounds,
    by_release,
    is_refuted,
    strongest,
    with_all_options,
)
from bench.boards.board_csv import lines, to_csv
from bench.boards.columns import COLUMNS
from bench.boards.flags import flags
from bench.boards.information import information
from bench.boards.publish import differences, expected, publish, read, read_audits, rebuild, refresh
from bench.boards.row_members import dataset, identity, row_key, seed
from bench.boards.rows import Rows, table

__all__ = [
    "COLUMNS",
    "Rows",
    "audited_release",
    "bounds",
    "by_release",
    "dataset",
    "differences",
    "expected",
    "flags",
    "identity",
    "information",
    "is_refuted",
    "lines",
    "publish",
    "read",
    "read_audits",
    "rebuild",
    "refresh",
    "row_key",
    "seed",
    "strongest",
    "table",
    "to_csv",
    "with_all_options",
]
