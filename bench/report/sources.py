"""What a report is made of: published records and audits, those of runs, their pictures, the papers' numbers."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench import boards as board_files
from bench import registry
from bench.errors import BenchError, unknown
from bench.storage.records import AUDIT, RECORD, Audit, Record

PNG = b"\x89PNG\r\n\x1a\n"
REPORTED = "reported.csv"
Kept = TypeVar("Kept", Record, Audit)


@dataclass(frozen=True)
class Recipe:
    """What is shown of a recipe: its file's name and its title."""

    file: str
    title: str


@dataclass(frozen=True)
class Sources:
    """All that a report shows.

    Attributes:
        records, audits: one per hash, sorted by hash.
        pictures: hash of a record to name to the bytes of a PNG file.
        reported: rows of the papers' own numbers, as in leaderboards/reported.csv.
        remarks: a line each about what was left out.
        recipes: paper and table, or figure, to the recipe that runs it.
        dataset: the only data set that is shown; None for all.
    """

    records: list[Record]
    audits: list[Audit] = field(default_factory=list)
    pictures: dict[str, dict[str, bytes]] = field(default_factory=dict)
    reported: list[dict[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    recipes: dict[tuple[str, str], Recipe] = field(default_factory=dict)
    dataset: str | None = None


def gather(boards: Path | None, runs: Sequence[Path], dataset: str | None = None) -> Sources:
    """Read everything. A published record stands before a run's record of the same hash.

    Args:
        boards: a folder of boards with records, audits and perhaps reported.csv; None for no boards.
        runs: directories as `bench run --out` writes them: records/HASH/record.json beside its pictures.
        dataset: show this data set only.

    Raises:
        BenchError: a directory that is not what it should be; a published file that is damaged; nothing to show; an
            unknown data set.
    """
    published = [] if boards is None else _published(boards, board_files.read_records)
    remarks: list[str] = []
    local = {record.hash: (record, path.parent) for path, record in _readable(Record.read, _below(runs), remarks)}
    records = _unique([*published, *(record for record, _ in local.values())])
    audited = [] if boards is None else _published(boards, board_files.read_audits)
    audit_paths = sorted(path for run in runs for path in run.glob(f"audits/[!.]*/{AUDIT}"))
    audits = _unique([*audited, *(audit for _, audit in _readable(Audit.read, audit_paths, remarks))])
    if not records:
        damage = f": {remarks[0]}" if remarks else ""
        raise BenchError(
            f"no records in {boards or 'leaderboards'}{damage}; give runs with --runs DIR or boards with --boards"
        )
    pictures = _pictures({record.hash: record for record in published}, local, remarks)
    known = sorted({board_files.dataset(record) for record in records})
    if dataset is not None and dataset not in known:
        raise unknown("data set with records", dataset, known)
    reported = _reported(boards, dataset)
    return Sources(_of(dataset, records), _of(dataset, audits), pictures, reported, remarks, recipes(), dataset)


def recipes(folder: Path = registry.ROOT / "recipes") -> dict[tuple[str, str], Recipe]:
    """Paper and table to the recipe of it; recipes of no paper's table are left out."""
    found = {}
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if content.get("paper"):
            found[content["paper"], content["table"]] = Recipe(f"recipes/{path.name}", content["title"])
    return found


def _of(dataset: str | None, kept: list[Kept]) -> list[Kept]:
    return [one for one in kept if dataset in (None, board_files.dataset(one))]


def _unique(kept: Iterable[Kept]) -> list[Kept]:
    """The first of every hash, sorted by hash."""
    found: dict[str, Kept] = {}
    for one in kept:
        found.setdefault(one.hash, one)
    return [found[name] for name in sorted(found)]


def _readable(read: Callable[[Path], Kept], paths: Iterable[Path], remarks: list[str]) -> Iterator[tuple[Path, Kept]]:
    """What can be read of one's own runs; a remark for each that is damaged or of an older version of the bench."""
    for path in paths:
        try:
            yield path, read(path)
        except (OSError, ValueError) as error:
            remarks.append(f"{error}; left out, run it again or remove it")


def _published(boards: Path, read: Callable[[Path], list[Kept]]) -> list[Kept]:
    if not boards.is_dir():
        raise BenchError(f"--boards {boards}: no such directory; run from the project's directory or give --runs DIR")
    try:
        return read(boards)
    except (OSError, ValueError) as error:
        raise BenchError(f"{error}; remove it or make it again") from None


def _below(runs: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for run in runs:
        paths = sorted(run.glob(f"records/[!.]*/{RECORD}"))
        if not paths:
            raise BenchError(f"--runs {run}: no records/HASH/{RECORD} below it; give the --out of `bench run`")
        found += paths
    return found


def _pictures(
    published: dict[str, Record], local: dict[str, tuple[Record, Path]], remarks: list[str]
) -> dict[str, dict[str, bytes]]:
    """The PNG files that records name; not those of a run whose published record has other numbers."""
    found: dict[str, dict[str, bytes]] = {}
    for name, (record, folder) in sorted(local.items()):
        shown = published.get(name, record)
        if any(record.metrics[key] != shown.metrics[key] for key in record.metrics.keys() & shown.metrics.keys()):
            remarks.append(f"{folder}: its numbers are not those published for {name}; shown are the published ones")
            continue
        for key, file in sorted(record.artifacts.items()):
            data = _png(folder, file)
            if data is None:
                remarks.append(f"{folder}: '{file}' is missing or no PNG file; left out")
            else:
                found.setdefault(name, {})[key] = data
    return found


def _png(folder: Path, file: str) -> bytes | None:
    path = folder / file
    if Path(file).name != file or not path.is_file():
        return None
    data = path.read_bytes()
    return data if data.startswith(PNG) else None


def _reported(boards: Path | None, dataset: str | None) -> list[dict[str, str]]:
    path = boards / REPORTED if boards else None
    if path is None or not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [{str(key): value or "" for key, value in row.items()} for row in csv.DictReader(stream)]
    except (OSError, ValueError, csv.Error) as error:
        raise BenchError(f"{path}: not a CSV file: {error}; mend it, or take it from the repository again") from None
    return [row for row in rows if dataset in (None, row.get("dataset"))]
