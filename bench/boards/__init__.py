"""Boards: three tables per data set, built from records only."""

from bench.boards.audit_bounds import audited_release, by_release, is_refuted, strongest, with_all_options
from bench.boards.build import build
from bench.boards.flags import flags
from bench.boards.information import information
from bench.boards.publish import differences, publish, rebuild, refresh
from bench.boards.records import dataset, read_audits, read_records, seed
from bench.boards.results import results
from bench.boards.spec_keys import identity
from bench.boards.tables import Board, read_attacks, read_boards, read_releases

__all__ = [
    "Board",
    "audited_release",
    "build",
    "by_release",
    "dataset",
    "differences",
    "flags",
    "identity",
    "information",
    "is_refuted",
    "publish",
    "read_attacks",
    "read_audits",
    "read_boards",
    "read_records",
    "read_releases",
    "rebuild",
    "refresh",
    "results",
    "seed",
    "strongest",
    "with_all_options",
]
