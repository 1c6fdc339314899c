"""Boards: one CSV file per data set, built from records and from nothing else."""

from bench.leaderboard.audited import audited_release, bounds, by_release, is_refuted, strongest
from bench.leaderboard.columns import AVERAGED, COLUMNS, REFERENCE, REFERENCES
from bench.leaderboard.flagged import dispute, flags
from bench.leaderboard.members import dataset, row_key, seed, without_seeds
from bench.leaderboard.publish import differences, expected, publish, read, read_audits, rebuild, refresh
from bench.leaderboard.rows import Rows, table
from bench.leaderboard.text import lines, to_csv

__all__ = [
    "AVERAGED",
    "COLUMNS",
    "REFERENCE",
    "REFERENCES",
    "Rows",
    "audited_release",
    "bounds",
    "by_release",
    "dataset",
    "differences",
    "dispute",
    "expected",
    "flags",
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
    "without_seeds",
]
