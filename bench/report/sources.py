"""The sources of a report: published records and audits, those of local runs, and their pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench import boards as board_files
from bench.errors import BenchError, unknown
from bench.storage.records import AUDIT, RECORD, Audit, Record

PNG = b"\x89PNG\r\n\x1a\n"
Kept = TypeVar("Kept", Record, Audit)


@dataclass(frozen=True)
class Sources:
    """All content of a report.

    Attributes:
        records, audits: one per hash, sorted by hash.
        pictures: hash of a record to the bytes of its PNG files, by name.
        remarks: a line for each file that was left out.
        dataset: the only data set to show; None for all.
    """

    records: list[Record]
    audits: list[Audit] = field(default_factory=list)
    pictures: dict[str, dict[str, bytes]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    dataset: str | None = None


def gather(boards: Path | None, runs: Sequence[Path], dataset: str | None = None) -> Sources:
    """Read all sources. A published record takes precedence over a run's record of the same hash.

    Args:
        boards: a folder of boards with records and audits; None for no boards.
        runs: directories as `bench run --out` writes them: records/HASH/record.json next to its pictures.
        dataset: show only this data set.

    Raises:
        BenchError: a directory without the expected files; a damaged published file; nothing to show; an unknown data
            set.
    """
    published = [] if boards is None else _published(boards, board_files.read_records)
    remarks: list[str] = []
    run_paths = []
    for run in runs:
        paths = sorted(run.glob(f"records/[!.]*/{RECORD}"))
        if not paths:
            raise BenchError(f"--runs {run}: no records/HASH/{RECORD} below it; give the --out of `bench run`")
        run_paths += paths
    local = {record.hash: (record, path.parent) for path, record in _readable(Record.read, run_paths, remarks)}
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
    return Sources(_of(dataset, records), _of(dataset, audits), pictures, remarks, dataset)


def _of(dataset: str | None, kept: list[Kept]) -> list[Kept]:
    return [one for one in kept if dataset in (None, board_files.dataset(one))]


def _unique(kept: Iterable[Kept]) -> list[Kept]:
    """Return the first of every hash, sorted by hash."""
    found: dict[str, Kept] = {}
    for one in kept:
        found.setdefault(one.hash, one)
    return [found[name] for name in sorted(found)]


def _readable(read: Callable[[Path], Kept], paths: Iterable[Path], remarks: list[str]) -> Iterator[tuple[Path, Kept]]:
    """Yield the readable files of local runs; add a remark for each that is damaged or of an older version."""
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


def _pictures(
    published: dict[str, Record], local: dict[str, tuple[Record, Path]], remarks: list[str]
) -> dict[str, dict[str, bytes]]:
    """Return the PNG files that records name; not those of a run whose published record has other numbers."""
    found: dict[str, dict[str, bytes]] = {}
    for name, (record, folder) in sorted(local.items()):
        shown = published.get(name, record)
        if any(record.metrics[key] != shown.metrics[key] for key in record.metrics.keys() & shown.metrics.keys()):
            remarks.append(f"{folder}: its numbers are not those published for {name}; shown are the published ones")
            continue
        for key, file in sorted(record.artifacts.items()):
            is_file = Path(file).name == file and (folder / file).is_file()
            data = (folder / file).read_bytes() if is_file else b""
            if not data.startswith(PNG):
                remarks.append(f"{folder}: '{file}' is missing or not a PNG file; left out")
            else:
                found.setdefault(name, {})[key] = data
    return found
