"""Groups of records in a user's own data: the patient, user or writer of every record.

Whole groups are in the training part or in the test part. Without a test part a group is held out if the SHA-256 of its
name is in the lowest sixth, so that no group decides about another one.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from bench.data.images import ONE_IN
from bench.errors import BadData, NotFound

FILE = "groups.csv"
"""Name of the file in an image folder that is read without an option."""
PATH, GROUP = "path", "group"
"""Columns of the file."""


def read_groups(file: Path, problem: str) -> dict[str, str]:
    """Read the group of every image file: {path below the image folder: name of its group}.

    Args:
        file: CSV with a header, UTF-8; other columns than `path` and `group` are not read.
        problem: beginning of error messages: the data set.

    Raises:
        NotFound: no such file.
        BadData: no such columns, an empty cell, or a path in two groups.
    """
    if not file.is_file():
        raise NotFound(f"{problem}: no file {file}; expected a CSV file with the columns {PATH} and {GROUP}")
    found: dict[str, str] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            if missing := [name for name in (PATH, GROUP) if name not in (reader.fieldnames or ())]:
                raise BadData(f"{problem}: {file} has no column {missing[0]}; expected the columns {PATH} and {GROUP}")
            for row in reader:
                path, group = (str(row[name] or "").strip() for name in (PATH, GROUP))
                if not path or not group:
                    raise BadData(f"{problem}: line {reader.line_num} of {file} has no {PATH if not path else GROUP}")
                if found.setdefault(path.removeprefix("./"), group) != group:
                    raise BadData(f"{problem}: {file} puts {path} into two groups; keep one of its lines")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{problem}: {file} cannot be read as CSV ({error}); save it as UTF-8 with commas") from error
    return found


def number_groups(parts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the number of each record's group, part by part: its position among all sorted names.

    >>> number_groups([["b", "a"], ["c"]])
    [[1, 0], [2]]
    """
    numbers = {name: number for number, name in enumerate(sorted({name for part in parts for name in part}))}
    return [[numbers[name] for name in part] for part in parts]


def is_held_out(group: str) -> bool:
    """Return whether a group is in the test set of data without a test part; one in six is, by the hash of its name."""
    digest = hashlib.sha256(f"test group:{group}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") * ONE_IN < 1 << 64
