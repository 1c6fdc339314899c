"""Boards as files: the one beside the runs, and the committed ones."""

from __future__ import annotations

import gc
import math
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from bench import progress
from bench.boards.audit_bounds import by_release, note
from bench.boards.board_csv import Line, lines, to_csv
from bench.boards.columns import keys
from bench.boards.row_members import dataset
from bench.boards.rows import Published, Rows
from bench.errors import BenchError
from bench.privacy import Ledger
from bench.privacy.accountant import VERSION, EmptyLedger, account
from bench.privacy.budget import as_unit, epsilon_from_json
from bench.storage.atomic_write import write_atomically
from bench.storage.records import AUDIT, RECORD, Audit, Record

Kept = TypeVar("Kept", Record, Audit)
PART = 4_000
"""Records that one process reads before it hands over what their rows need."""


def read(paths: Iterable[Path]) -> list[Record]:
    """The records in files, sorted by hash. Raises ValueError naming a file that is not a record."""
    return sorted((Record.read(path) for path in paths), key=lambda record: record.hash)


def read_audits(paths: Iterable[Path]) -> list[Audit]:
    """The audits in files, sorted by hash. Raises ValueError naming a file that is not an audit."""
    return sorted((Audit.read(path) for path in paths), key=lambda audit: audit.hash)


def refresh(out: Path, name: str) -> Path:
    """Rebuild `<out>/leaderboards/<name>.csv` from records and audits below `out`; safe with several processes.

    A record whose release has been audited is given the bound first, as `privacy.audited`. Records and audits that
    cannot be read, damaged ones and those of an older version of the bench, are left out, and the user is told.
    """
    path = out / "leaderboards" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        unreadable: list[Path] = []
        audits = [a for _, a in _readable(Audit.read, out.glob(f"audits/[!.]*/{AUDIT}"), unreadable)]
        audits = [a for a in audits if dataset(a) == name]
        rows, released = Rows(audits), by_release(audits)
        for place, record in _readable(Record.read, out.glob(f"records/[!.]*/{RECORD}"), unreadable):
            if dataset(record) == name:
                note(record, released, place)
                rows.add(record)
        heads = keys(rows.filled)
        write_atomically(path, to_csv(lines(rows.rows(), heads), heads))
    if unreadable:
        progress.say(
            f"left out of the board: {len(unreadable)} records or audits that are damaged or of an older version, "
            f"such as {unreadable[0]}; run them again, or remove them"
        )
    return path


def _readable(
    read: Callable[[Path], Kept], paths: Iterable[Path], unreadable: list[Path]
) -> Iterator[tuple[Path, Kept]]:
    """What can be read of some files, with its place; the others are noted."""
    for path in paths:
        try:
            kept = read(path)
        except (ValueError, OSError):
            unreadable.append(path)
            continue
        yield path, kept


def publish(boards: Path, runs: Iterable[Path], published: Published | None = None) -> list[Path]:
    """Copy records into `boards/records/`, audits into `boards/audits/`, and rebuild the CSV files there.

    Args:
        boards: the committed directory.
        runs: directories of runs or audits, or their record.json and audit.json.
        published: as for `Rows`.

    Raises:
        BenchError: not a record; a smoke run; a failed run; code that was not committed when it ran.
    """
    chosen = [_publishable(path) for path in runs]
    for found in chosen:
        folder = "audits" if isinstance(found, Audit) else "records"
        place = boards / folder / f"{found.hash}.json"
        if line := _replaced(place, found):
            progress.say(line)
        write_atomically(place, found.to_json())
    return rebuild(boards, published)


def _replaced(place: Path, found: Record | Audit) -> str:
    """How the run of the same spec that was published before differs; "" where there is none, or nothing does."""
    try:
        before = _numbers(type(found).read(place))
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return f"{error}; replaced"
    now = _numbers(found)
    unlike = [
        f"{name} {before[name]:.4g} is now {now[name]:.4g}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name] and not name.endswith((".lo", ".hi"))
    ]
    if not unlike:
        return ""
    more = f" and {len(unlike) - 3} more" if len(unlike) > 3 else ""
    return f"{place} is replaced by another run of the same settings: {', '.join(unlike[:3])}{more}"


def _numbers(kept: Record | Audit) -> dict[str, float]:
    """A record's metrics that have a value, or the lower bounds of an audit."""
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
    if dirty := [name for name, made in provenance.get("steps", {}).items() if _of_uncommitted_code(made)]:
        steps = f"{dirty[0]} and {len(dirty) - 1} more" if len(dirty) > 1 else dirty[0]
        raise BenchError(f"--publish {path}: its step {steps} was made by uncommitted code; run it again with --fresh")
    if isinstance(record, Record) and (fault := _contradiction(record)):
        raise BenchError(f"--publish {path}: {fault}; it was edited, or is damaged: run it again with --fresh")
    return record


def _of_uncommitted_code(made: dict[str, Any] | None) -> bool:
    """Of a step that came from elsewhere: None of one from before steps said where, without "git" of the same code."""
    return made is not None and "git" in made and not made["git"]["clean"]


def _contradiction(record: Record) -> str:
    """Where a record's numbers are not what it holds beside them; "" if all is well.

    An epsilon is recomputed from the ledger, if the installed accountant is the one that wrote it.
    """
    for name in (name for name in record.metrics if name.endswith("accuracy")):
        value, low, high = (record.metrics.get(f"{name}{end}") for end in ("", ".lo", ".hi"))
        if value is not None and not (low or 0.0) <= value <= (1.0 if high is None else high):
            return f"its {name} of {value:g} is no share, or outside its interval"
    main = record.privacy["accounted"]
    for unit, promise in [*record.privacy["accounted_units"].items(), (main["unit"], main)]:
        if promise.get("version") != VERSION:
            continue
        delta = record.spec["release"]["budget"].get("delta", promise["delta"])
        try:
            found = account(Ledger.from_json(record.privacy.get("events")), as_unit(unit), delta).epsilon
        except (BenchError, EmptyLedger) as error:
            return f"its epsilon per {unit} does not come of its ledger ({error})"
        if not math.isclose(found, epsilon_from_json(promise["epsilon"]), rel_tol=1e-6):
            return f"its epsilon per {unit} is {promise['epsilon']}, where its ledger gives {found:.6g}"
    return ""


def rebuild(boards: Path, published: Published | None = None) -> list[Path]:
    """Write every data set's CSV from `boards/records/` and `boards/audits/`, and what audits say into the records."""
    released, paths = by_release(read_audits((boards / "audits").glob("*.json"))), []
    for place in (boards / "records").glob("*.json") if released else ():
        note(Record.read(place), released, place)
    for name, text in expected(boards, published).items():
        paths.append(boards / f"{name}.csv")
        write_atomically(paths[-1], text)
    return paths


def expected(boards: Path, published: Published | None = None) -> dict[str, str]:
    """Data set to the CSV text that the committed records and audits give.

    Many records are read by several processes, which then share the lines among them.

    Raises:
        ValueError: a file that is not a record or an audit; it is named.
    """
    audits = read_audits((boards / "audits").glob("*.json"))
    paths = list((boards / "records").glob("*.json"))
    parts = [paths[start : start + PART] for start in range(0, len(paths), PART)]
    jobs = min(len(parts), os.cpu_count() or 1)
    board: dict[str, list[Line]] = defaultdict(list)
    filled: dict[str, set[str]] = defaultdict(set)
    with _no_collection(), _mapping(jobs) as each:
        read = list(each(_shares, parts, repeat(audits), repeat(jobs), repeat(published)))
        for _, some in read:
            for name, columns in some.items():
                filled[name] |= columns
        heads = {name: keys(columns) for name, columns in filled.items()}
        for found in each(_lines, zip(*(shares for shares, _ in read), strict=True), repeat(heads)):
            for name, part in found.items():
                board[name] += part
        return {name: to_csv(whole, heads[name]) for name, whole in sorted(board.items())}


def _shares(
    paths: list[Path], audits: list[Audit], number: int, published: Published | None
) -> tuple[list[bytes], dict[str, set[str]]]:
    """What some records give: data set to `Rows`, pickled, a share for each of `number` processes; data set to the
    plug-ins' columns that are filled."""
    found: dict[str, Rows] = {}
    for path in paths:
        record = Record.read(path)
        name = dataset(record)
        if name not in found:
            found[name] = Rows((audit for audit in audits if dataset(audit) == name), published)
        found[name].add(record)
    split = {name: rows.split(number) for name, rows in found.items()}
    shares = [pickle.dumps({name: of[one] for name, of in split.items()}) for one in range(number)]
    return shares, {name: rows.filled for name, rows in found.items()}


def _lines(shares: tuple[bytes, ...], heads: dict[str, list[str]]) -> dict[str, list[Line]]:
    """Data set to the lines of what one process got from all parts."""
    found: dict[str, Rows] = {}
    for share in shares:
        for name, rows in pickle.loads(share).items():
            if name in found:
                found[name].merge(rows)
            else:
                found[name] = rows
    return {name: lines(rows.rows(), heads[name]) for name, rows in found.items()}


@contextmanager
def _mapping(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map`, by several processes if there are to be several."""
    if jobs < 2:
        yield map
        return
    with ProcessPoolExecutor(jobs, initializer=gc.disable) as pool:
        yield pool.map


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which would look for cycles among a million dictionaries that have none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def differences(boards: Path, published: Published | None = None) -> list[str]:
    """One line per committed CSV that is not exactly what the records give; empty when all is well."""
    wanted = expected(boards, published)
    there = {p.stem: p.read_text(encoding="utf-8") for p in boards.glob("*.csv")}
    lines = [f"{boards}/{name}.csv is missing" for name in wanted if name not in there]
    lines += [f"{boards}/{name}.csv has no records" for name in there if name not in wanted]
    lines += [
        f"{boards}/{name}.csv is not what its records give"
        for name in wanted
        if name in there and wanted[name] != there[name]
    ]
    return lines
