"""The report's files: scripts that each set one variable, which open from a disk as well as from a server.

A page that was opened from a file may not fetch another file, but it may load a script. So every part of the data is a
script `data/NAME.js` that puts one value into the variable `REPORT`, and the page loads the parts it needs.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.escape import visible_data

DATA, PICTURES, WEB, PAGE = "data", "pictures", "web", "index.html"
START = b'REPORT["'
MARK = b"<title>dp-distill-bench report</title>"
"""What tells the page of an earlier report, which may be replaced."""
PICTURE = re.compile(r"[0-9a-f]{16}\.png")
Files = dict[str, bytes]
"""Path below the report's directory, with slashes, to content."""


def readable(name: str) -> str:
    """The letters and digits of a name, for names that are known to differ in them.

    >>> readable("dpsd Table IV")
    'dpsd-table-iv'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def slug(name: str) -> str:
    """A file name for any text: its letters and digits, and where that is not all of it a digest of the whole.

    >>> slug("digits"), slug("npz-My/own")
    ('digits', 'npz-my-own-07d6681c')
    """
    plain = readable(name)
    return plain if plain and plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def script(name: str, value: Any) -> bytes:
    """The script of a part: `value` as JSON, in a string that the browser parses.

    Text in a JSON string cannot end it, whatever it holds, and a key such as "__proto__" is a key like any other.
    Hidden characters are written as visible escapes, since a browser would follow a bidirectional override.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(visible_data(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"REPORT[{json.dumps(name)}] = JSON.parse('{quoted}');\n".encode()


def check_free(folder: Path) -> None:
    """Refuse a place of somebody else's, which can be told before a report is made.

    Raises:
        BenchError: a file, or a directory that holds files and no earlier report.
    """
    if folder.exists() and not folder.is_dir():
        raise BenchError(f"--out {folder}: is a file; give a new or an empty directory")
    page = folder / PAGE
    if folder.is_dir() and any(folder.iterdir()) and not (page.is_file() and MARK in page.read_bytes()):
        raise BenchError(f"--out {folder}: has files in it, and no earlier report; give a new or an empty directory")


def write(folder: Path, files: Files) -> None:
    """Write a report's files and remove what an earlier report left in the same directory.

    Removed are scripts of data and pictures alone, which are known by how they begin and what they are called. The page
    is written first: by it the next report knows its place again where this one is cut short.

    Raises:
        BenchError: the directory cannot be written to, or holds files of somebody else's.
    """
    check_free(folder)
    try:
        for path in _earlier(folder):
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
        for name in sorted(files, key=lambda name: (name != PAGE, name)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
    except OSError as error:
        raise BenchError(f"--out {folder}: cannot write there ({error.strerror}); give another directory") from None


def _earlier(folder: Path) -> list[Path]:
    scripts = [path for path in (folder / DATA).rglob("*.js") if _begins(path, START)]
    return scripts + [path for path in (folder / PICTURES).glob("*.png") if PICTURE.fullmatch(path.name)]


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start
