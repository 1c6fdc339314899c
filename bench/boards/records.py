"""Published records and audits: JSON Lines files, one for each data set and method, sorted by hash.

`FOLDER/records/DATASET/METHOD.jsonl` holds one record per line, `FOLDER/audits/DATASET/METHOD.jsonl` one audit per
line: the canonical JSON of `Record.to_json` without spaces and line breaks. The spec of a record determines its file.
The previous format, one file `records/HASH.json` per record, can be read too; `migrate` converts it.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import orjson
from filelock import FileLock

from bench import registry
from bench.boards.spec_keys import SpecDigest
from bench.boards.tables import RELEASES
from bench.errors import BenchError, NotFound
from bench.storage.atomic_write import write_atomically
from bench.storage.records import Audit, Record

Kept = TypeVar("Kept", Record, Audit)
FOLDERS: dict[type[Record] | type[Audit], str] = {Record: "records", Audit: "audits"}
LOCK = ".publishing.lock"
PUBLISHED, OWN = Path("leaderboards"), Path("boards")
"""Default names of the folders of boards: this project's, and a user's."""
INSTALLED = registry.ROOT / PUBLISHED
CHECKOUT = Path("bench", "boards")
"""A folder that only a checkout of this project has next to its boards."""


def boards_folder(given: Path | None) -> Path:
    """Return the folder of published boards: the given one, else `leaderboards` of a checkout, else the installed one.

    A folder of that name without the project's source next to it is a user's.
    """
    return given or (PUBLISHED if PUBLISHED.is_dir() and CHECKOUT.is_dir() else INSTALLED)


def own_folder(given: Path | None) -> Path | None:
    """Return the folder of a user's boards: the given one, else `boards` in the working directory if it exists."""
    return given or (OWN if any(OWN.glob(f"{RELEASES}/*.csv")) else None)


def dataset(record: Record | Audit) -> str:
    """Return the data set of a record or an audit."""
    return str(record.spec["release"]["teacher"]["data"]["dataset"])


def seed(record: Record) -> int:
    """Return the seed of a record's release."""
    return int(record.spec["release"]["seed"])


def record_groups(folder: Path) -> Sequence[str | None]:
    """List the data sets of the records and audits of a folder of boards, for `read_records` and `read_audits`.

    Returns:
        Their names, the largest first; [None] if there are files of the previous format, whose names do not show it.
    """
    places = [folder / name for name in FOLDERS.values()]
    if any(file for place in places for file in place.glob("*.json")):
        return [None]
    sizes: dict[str, int] = defaultdict(int)
    for path in (path for place in places for path in place.glob("*/*.jsonl")):
        sizes[path.parent.name] += path.stat().st_size
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def read_records(folder: Path, only: str | None = None) -> list[Record]:
    """Read the records of a folder of boards, sorted by hash, and check every field and the hash of each spec.

    Args:
        only: read the lines of this data set only, and no file of the previous format; None = of all.

    Raises:
        ValueError: a line or a file is not a record; the message names it.
    """
    return sorted(_by_hash(Record, folder, only).values(), key=lambda record: record.hash)


def read_audits(folder: Path, only: str | None = None) -> list[Audit]:
    """Read the audits of a folder of boards, sorted by hash, as `read_records`."""
    return sorted(_by_hash(Audit, folder, only).values(), key=lambda audit: audit.hash)


def readable(kind: type[Record] | type[Audit], folder: Path) -> Iterator[tuple[Path, Record | Audit]]:
    """Yield the records or the audits of a folder of boards, each with its file; damaged ones are left out."""
    digest_of = SpecDigest()
    for path, name, text in _texts(folder / FOLDERS[kind]):
        try:
            yield path, kind.decode(text, name, digest_of)
        except ValueError:
            continue


def has_records(folder: Path) -> bool:
    """Whether a folder of boards holds any record, of either format."""
    place = folder / FOLDERS[Record]
    return any(place.glob("*/*.jsonl")) or any(place.glob("*.json"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change a folder of boards; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK, is_singleton=True):  # the process that holds a singleton lock may acquire it again
        yield


def add(folder: Path, found: Iterable[Record | Audit]) -> None:
    """Add records and audits to a folder of boards, replacing those of the same hash; call it while `locked`.

    A file is replaced as a whole, so that nothing is lost if the process ends in between: records that were not added
    are still in their source, and publishing again adds them.

    Raises:
        BenchError: the name of a data set or a method cannot be a file name.
        ValueError: an existing file has a line that is not JSON; the message names it.
    """
    by_file: dict[Path, list[Record | Audit]] = defaultdict(list)
    for kept in found:
        by_file[file_of(folder, kept)].append(kept)
    for path, new in sorted(by_file.items()):
        lines = {_hash_of(line, name): line.decode() for _, name, line in _lines(path)} if path.exists() else {}
        lines |= {kept.hash: as_line(kept) for kept in new}
        write_atomically(path, "".join(f"{lines[name]}\n" for name in sorted(lines)))


def file_of(folder: Path, kept: Record | Audit) -> Path:
    """Return the file in which a folder of boards keeps a record or an audit. Raises BenchError as `add`."""
    names = dataset(kept), str(kept.spec["release"]["method"])
    for name in names:
        if not name or name.startswith(".") or Path(name).name != name:
            raise BenchError(f"{name!r} cannot name a file of published records; expected a plain name")
    return folder / FOLDERS[type(kept)] / names[0] / f"{names[1]}.jsonl"


def as_line(kept: Record | Audit) -> str:
    """Return a record or an audit as a line of a file, without the line break."""
    plain = json.loads(kept.to_json())
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def migrate(folder: Path) -> tuple[int, int]:
    """Convert records and audits of the previous format, one file each, to lines. A second call changes nothing.

    A file is removed only after its line is on the disk. An existing line of the same hash is kept.

    Returns:
        The numbers of converted records and audits.

    Raises:
        NotFound: no such folder.
        ValueError: a file is not a record or an audit; the message names it, and nothing is changed.
    """
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder; give a folder of boards, such as leaderboards")
    with locked(folder):
        numbers = (_migrate(Record, folder), _migrate(Audit, folder))
    return numbers


def _migrate(kind: type[Kept], folder: Path) -> int:
    paths = sorted((folder / FOLDERS[kind]).glob("*.json"))
    if not paths:
        return 0
    digest_of = SpecDigest()
    found = [kind.decode(path.read_bytes(), str(path), digest_of) for path in paths]
    there = {_hash_of(line, name) for _, name, line in _texts(folder / FOLDERS[kind], lines_only=True)}
    add(folder, [kept for kept in found if kept.hash not in there])
    for path in paths:
        path.unlink()
    return len(paths)


def _by_hash(kind: type[Kept], folder: Path, only: str | None) -> dict[str, Kept]:
    """Return records by hash; a line takes precedence over a file of the same hash."""
    digest_of, found = SpecDigest(), dict[str, Kept]()
    place = folder / FOLDERS[kind]
    with without_collection():
        for path, name, text in _texts(place) if only is None else _texts_of(place / only):
            kept = kind.decode(text, name, digest_of)
            if only is not None and dataset(kept) != only:
                raise ValueError(f"{name} is a record of {dataset(kept)}; move it to {path.parent.parent}")
            found.setdefault(kept.hash, kept)
    return found


def _texts(place: Path, lines_only: bool = False) -> Iterator[tuple[Path, str, bytes]]:
    """Yield every record's text with its file and its name for messages: lines first, then files of the previous
    format."""
    for folder in sorted(place.glob("*/")):
        yield from _texts_of(folder)
    for path in () if lines_only else sorted(place.glob("*.json")):
        yield path, str(path), path.read_bytes()


def _texts_of(folder: Path) -> Iterator[tuple[Path, str, bytes]]:
    """Yield the lines of a data set's folder, as `_texts`."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from _lines(path)


def _lines(path: Path) -> Iterator[tuple[Path, str, bytes]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line:
            yield path, f"{path}, line {number},", line


def _hash_of(line: bytes, name: str) -> str:
    try:
        return str(orjson.loads(line)["hash"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{name} is not a record; remove the line") from None


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector, which would search a million dictionaries for cycles that do not exist."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
