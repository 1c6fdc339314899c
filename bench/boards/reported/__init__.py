"""What the four papers print (`leaderboards/reported.csv`), and which of it belongs beside a row of a board."""

from bench.boards.reported.ablations import ablation
from bench.boards.reported.beside_rows import ONE_OF_TWO, difference, find, join
from bench.boards.reported.board_files import OWN, PUBLISHED, boards, boards_folder, own_folder
from bench.boards.reported.comparison import Line, compare, most_measured, of_tier
from bench.boards.reported.printed_numbers import (
    FILE,
    NAMES,
    TEACHERS,
    UNNAMED,
    Reported,
    beside,
    load,
    papers,
    table,
)

__all__ = [
    "FILE",
    "NAMES",
    "ONE_OF_TWO",
    "OWN",
    "PUBLISHED",
    "TEACHERS",
    "UNNAMED",
    "Line",
    "Reported",
    "ablation",
    "beside",
    "boards",
    "boards_folder",
    "compare",
    "difference",
    "find",
    "join",
    "load",
    "most_measured",
    "of_tier",
    "own_folder",
    "papers",
    "table",
]
