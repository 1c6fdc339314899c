"""Every number of the boards before the three tables, one CSV file of 72 columns per data set, is in the tables."""

import csv
import hashlib
import io
import json
import lzma
from collections import Counter, defaultdict
from pathlib import Path

from conftest import ROOT

from bench.boards import read_boards, read_records
from bench.boards.records import as_line, dataset
from bench.boards.tables import RENAMED_FLAGS
from bench.renamed import present_names
from bench.report.boards import rows
from bench.report.columns import ALL
from bench.storage.records import described

FROZEN = Path(__file__).with_name("boards_of_72_columns.csv.xz")
"""The last boards of that form, without the papers' columns; `content` is a digest of the records behind a row."""
PUBLISHED = ROOT / "leaderboards"


def test_tables_hold_every_cell_of_the_older_boards() -> None:
    """Rows whose records have been replaced since are left out."""
    lines = {record.hash: as_line(record) for record in read_records(PUBLISHED)}
    of = defaultdict(list)
    for record in read_records(PUBLISHED):
        of[dataset(record)].append(record.hash)
    found = {}
    for board in read_boards(PUBLISHED):
        for row in rows(board):
            texts = {name: " ".join(cell) if isinstance(cell, list) else str(cell) for name, cell in row.items()}
            cells = {column.key: texts.get(column.key, "") for column in ALL} | {"dataset": board.dataset}
            found[key_of(cells)] = cells
    seen: Counter[str] = Counter()
    for old in csv.DictReader(io.StringIO(lzma.decompress(FROZEN.read_bytes()).decode())):
        names = old["runs"].split() or of[old["dataset"]]
        content = "\n".join(lines.get(name, "") for name in names)
        if old.pop("content") == hashlib.sha256(content.encode()).hexdigest()[:8]:
            groups = {group: present_names(given) for group, given in json.loads(old["options"] or "{}").items()}
            if groups:
                old["setting"] = described(groups)
            new = found[key_of(old)]
            assert json.loads(new["options"] or "{}") == groups
            old["options"] = new["options"]
            old["flags"] = " ".join(sorted(RENAMED_FLAGS.get(flag, flag) for flag in old["flags"].split()))
            flags = " ".join(flag for flag in new["flags"].split() if flag != "older-version")
            assert (new | {"flags": flags}) == {**dict.fromkeys(new, ""), **old}, key_of(old)
            seen.update(name for name, value in old.items() if value)
    assert len(seen) > 60 and seen.total() > 10_000, "else delete this test: the records have been replaced"


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    """Return the key of an older board's row: its runs, or the kind of its reference images."""
    return tuple(row[name] for name in ("dataset", "runs", "tier", "split", "setting", "attack", "attack_variant"))
