"""Boards as files: the ones next to the runs, and the committed ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from bench import progress
from bench.boards.audit_bounds import by_release, with_audit_result
from bench.boards.build import build
from bench.boards.gaps import Gap, findings, gaps_without_board, read_gaps
from bench.boards.records import (
    add,
    dataset,
    file_of,
    locked,
    migrate,
    read_audits,
    read_records,
    readable,
    record_groups,
    without_collection,
)
from bench.boards.tables import ATTACKS, RELEASES, RUNS, Board
from bench.errors import BenchError
from bench.privacy import Ledger
from bench.privacy.accountant import VERSION, EmptyLedger, account
from bench.privacy.budget import as_unit, epsilon_from_json
from bench.storage.atomic_write import write_atomically
from bench.storage.records import AUDIT, RECORD, Audit, Record

Kept = TypeVar("Kept", Record, Audit)


def refresh(out: Path, name: str) -> Path:
    """Rebuild a data set's board in `<out>/leaderboards` from records and audits below `out`; safe for several
    processes.

    If the release of a record was audited, the record first gets the bound as `privacy.audited`. Unreadable records and
    audits, damaged or from an older version of the bench, are left out, and the user is warned.

    Returns:
        The table of releases.
    """
    boards = out / "leaderboards"
    boards.mkdir(parents=True, exist_ok=True)
    with FileLock(boards / f".{name}.lock"):
        unreadable: list[Path] = []
        audits = [a for _, a in _readable(Audit.read, out.glob(f"audits/[!.]*/{AUDIT}"), unreadable)]
        audits = [audit for audit in audits if dataset(audit) == name]
        released, records = by_release(audits), []
        for path, record in _readable(Record.read, out.glob(f"records/[!.]*/{RECORD}"), unreadable):
            if dataset(record) == name:
                news = with_audit_result(record, released)
                if news is not None:
                    write_atomically(path, news.to_json())
                records.append(news or record)
        _write(boards, build(records, audits, has_audits=True, name=name))
    if unreadable:
        progress.notify(
            f"left out of the board: {len(unreadable)} records or audits that are damaged or of an older version, "
            f"such as {unreadable[0]}; run them again, or remove them"
        )
    return boards / RELEASES / f"{name}.csv"


def _write(boards: Path, board: Board) -> None:
    for folder, text in board.texts().items():
        write_atomically(boards / folder / f"{board.dataset}.csv", text)


def _readable(
    read: Callable[[Path], Kept], paths: Iterable[Path], unreadable: list[Path]
) -> Iterator[tuple[Path, Kept]]:
    """Yield the files that can be read, each with its path; collect the others with their errors."""
    for path in paths:
        try:
            kept = read(path)
        except (ValueError, OSError):
            unreadable.append(path)
            continue
        yield path, kept


def publish(boards: Path, runs: Iterable[Path]) -> list[Path]:
    """Add records and audits to a folder of boards, and rebuild its tables; several processes wait for each other.

    Args:
        boards: the committed directory.
        runs: directories of runs or audits, or their record.json and audit.json.

    Returns:
        The tables of releases.

    Raises:
        BenchError: not a record; a smoke run; a failed run; code that was not committed when it ran.
    """
    chosen = [_publishable(path) for path in runs]
    with locked(boards):
        migrate(boards)
        before = {kept.hash: kept for kind in {type(kept) for kept in chosen} for _, kept in readable(kind, boards)}
        for found in chosen:
            then, now = _numbers(before.get(found.hash, found)), _numbers(found)
            changes = [
                f"{name} {then[name]:.4g} is now {now[name]:.4g}"
                for name in sorted(then.keys() & now.keys())
                if then[name] != now[name] and not name.endswith((".lo", ".hi"))
            ]
            if changes:
                more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
                place = f"{found.hash} in {file_of(boards, found)}"
                words = f"{', '.join(changes[:3])}{more}"
                progress.notify(f"{place} is replaced by another run of the same settings: {words}")
        add(boards, chosen)
        return _rebuild(boards)


def _numbers(kept: Record | Audit) -> dict[str, float]:
    """Return a record's metrics that have a value, or the lower bounds of an audit."""
    if isinstance(kept, Record):
        return {name: value for name, value in kept.metrics.items() if value is not None}
    return {f"{name} epsilon": line["epsilon_lower"] for name, line in kept.lines.items()}


def _publishable(given: Path) -> Record | Audit:
    name = AUDIT if AUDIT in (given.name, *(child.name for child in given.glob(AUDIT))) else RECORD
    path = given / name if given.is_dir() else given
    try:
        record = Audit.read(path) if name == AUDIT else Record.read(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path} ")
        raise BenchError(f"--publish {path}: {why}; give the directory of a run, such as runs/records/HASH") from None
    provenance = record.provenance
    git = provenance.get("git", {})
    if record.spec["tier"] == "smoke":
        raise BenchError(f"--publish {path}: a smoke run, its numbers mean nothing; run tier quick, standard or paper")
    if isinstance(record, Record) and record.status == "failed":
        raise BenchError(f"--publish {path}: the run failed ({record.reason}); publish finished runs only")
    if not git.get("clean"):
        raise BenchError(f"--publish {path}: made by uncommitted code; commit, then run again with --fresh")
    # A reused step is None if it is older than origins, and has no "git" if the run's own code made it
    made_by = {name: made["git"] for name, made in provenance.get("steps", {}).items() if made and "git" in made}
    if dirty := [name for name, git in made_by.items() if not git["clean"]]:
        steps = f"{dirty[0]} and {len(dirty) - 1} more" if len(dirty) > 1 else dirty[0]
        raise BenchError(f"--publish {path}: its step {steps} was made by uncommitted code; run it again with --fresh")
    if isinstance(record, Record) and (fault := _contradiction(record)):
        raise BenchError(f"--publish {path}: {fault}; it was edited, or is damaged: run it again with --fresh")
    return record


def _contradiction(record: Record) -> str:
    """Return which numbers of a record contradict its own data; "" if none do.

    An epsilon is recomputed from the ledger, if the installed accountant is the one that wrote it.
    """
    for name in (name for name in record.metrics if name.endswith("accuracy")):
        value, low, high = (record.metrics.get(f"{name}{end}") for end in ("", ".lo", ".hi"))
        if value is not None and not (low or 0.0) <= value <= (1.0 if high is None else high):
            return f"its {name} of {value:g} is not a share, or is outside its interval"
    main = record.privacy["accounted"]
    for unit, guarantee in [*record.privacy["accounted_units"].items(), (main["unit"], main)]:
        if guarantee.get("version") != VERSION:
            continue
        delta = record.spec["release"]["budget"].get("delta", guarantee["delta"])
        try:
            found = account(Ledger.from_json(record.privacy.get("events")), as_unit(unit), delta).epsilon
        except (BenchError, EmptyLedger) as error:
            return f"its epsilon per {unit} does not come of its ledger ({error})"
        if not math.isclose(found, epsilon_from_json(guarantee["epsilon"]), rel_tol=1e-6):
            return f"its epsilon per {unit} is {guarantee['epsilon']}, where its ledger gives {found:.6g}"
    return ""


def rebuild(boards: Path) -> list[Path]:
    """Write every data set's tables from the records and audits of a folder of boards, and add the audits' results to
    the records.

    Returns:
        The tables of releases.
    """
    with locked(boards):
        migrate(boards)
        return _rebuild(boards)


def _rebuild(boards: Path) -> list[Path]:
    released = by_release(read_audits(boards))
    news = [with_audit_result(record, released) for record in read_records(boards)] if released else []
    add(boards, [record for record in news if record is not None])
    found = expected(boards)
    for board in found:
        _write(boards, board)
    return [boards / RELEASES / f"{board.dataset}.csv" for board in found]


@without_collection()  # all that was read is freed before the garbage collector is enabled again
def expected(boards: Path, only: str | None = None) -> list[Board]:
    """Build the boards of the committed records and audits, sorted by name of the data set.

    Args:
        only: build the board of this data set only, as `read_records`; None = all.

    Raises:
        ValueError: a record or an audit is damaged; it is named.
    """
    records: dict[str, list[Record]] = defaultdict(list)
    audits: dict[str, list[Audit]] = defaultdict(list)
    for audit in read_audits(boards, only):
        audits[dataset(audit)].append(audit)
    for record in read_records(boards, only):
        records[dataset(record)].append(record)
    return [build(of, audits[name], has_audits=True) for name, of in sorted(records.items())]


@dataclass(frozen=True)
class Check:
    """Findings on a folder of boards, one line each.

    Attributes:
        differences: committed tables that differ from their records.
        uncovered: attacks that are missing on recommended releases, and known gaps that are none.
    """

    differences: list[str]
    uncovered: list[str]


def differences(boards: Path, processes: int = 1) -> list[str]:
    """Return one line per committed table that differs from the records; empty if all are equal. As `check`."""
    return check(boards, processes).differences


def check(boards: Path, processes: int = 1) -> Check:
    """Compare the committed tables with the records. In a folder with known gaps (`bench.boards.gaps`), also look for
    attacks that are missing on recommended releases.

    Args:
        processes: number of processes that compare data sets; more than one are forked, so that the caller must have
            only one thread.

    Raises:
        BenchError: the file of known gaps is damaged.
        ValueError: as `expected`.
    """
    gaps = read_gaps(boards)
    compare, groups = partial(_compare_tables, boards, gaps), record_groups(boards)
    if processes == 1 or len(groups) < 2:
        compared = [compare(group) for group in groups]
    else:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(min(processes, len(groups)), multiprocessing.get_context("fork")) as pool:
            compared = list(pool.map(compare, groups))
    found = {path: fault for each in compared for path, fault in each.faults.items()}
    there = [path for folder in (RELEASES, ATTACKS, RUNS) for path in sorted((boards / folder).glob("*.csv"))]
    lines = [f"{path} {fault}" for path, fault in sorted(found.items()) if fault]
    uncovered = [line for each in compared for line in each.uncovered]
    return Check(
        lines + [f"{path} has no records" for path in there if path not in found],
        uncovered + gaps_without_board(gaps or (), {path.stem for path in found}),
    )


@dataclass(frozen=True)
class Comparison:
    """The tables of some data sets, compared with their records.

    Attributes:
        faults: the path of each table to what is wrong with it; "" if it is equal.
        uncovered: as in `Check`.
    """

    faults: Mapping[Path, str]
    uncovered: Sequence[str]


def _compare_tables(boards: Path, gaps: Sequence[Gap] | None, only: str | None) -> Comparison:
    """Compare the tables of a data set with its records, and its coverage with the known gaps.

    Args:
        gaps: None = do not check the coverage.
        only: name of the data set; None = all.
    """
    faults: dict[Path, str] = {}
    uncovered: list[str] = []
    for board in expected(boards, only):
        uncovered += [] if gaps is None else findings(board, gaps)
        for folder, text in board.texts().items():
            path = boards / folder / f"{board.dataset}.csv"
            is_same = path.exists() and path.read_bytes() == text.encode()
            faults[path] = "" if is_same else "is not what its records give" if path.exists() else "is missing"
    return Comparison(faults, uncovered)
