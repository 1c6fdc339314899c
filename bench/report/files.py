"""The report's files: scripts that each set one variable, which work from a disk as well as from a server.

A page opened from a disk may not fetch other files, but it may load scripts. So every part of the data is a script
`data/NAME.js` that puts one value into the variable `REPORT`, and the page loads the parts it needs.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench.core.epsilon import epsilon_to_json
from bench.errors import BenchError
from bench.escape import visible

DATA, PICTURES, WEB, PAGE = "data", "pictures", "web", "index.html"
START = b'REPORT["'
FIRST, LONG = "index", 10_000
"""The part that the page loads first, and the length in characters from which other parts are compressed."""
MARK = b"<title>dp-distill-bench report</title>"
"""The text that identifies the page of an earlier report, which may be replaced."""
PICTURE = re.compile(r"[0-9a-f]{16}\.png")
if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Shorter = TypeVar("Shorter", bound="DataclassInstance")
Files = dict[str, bytes]
"""File contents by path below the report's directory, with slashes."""


def readable(name: str) -> str:
    """Return the letters and digits of a name, for names that are known to differ in them.

    >>> readable("dpsd Table IV")
    'dpsd-table-iv'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def slug(name: str) -> str:
    """Return a file name for any text: its letters and digits, plus a digest of the text if anything was removed.

    >>> slug("digits"), slug("npz-My/own")
    ('digits', 'npz-my-own-07d6681c')
    """
    plain = readable(name)
    return plain if plain and plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def script(name: str, value: Any) -> bytes:
    """Return the script of a part: `value` as JSON in a string, which the browser parses; compressed if it is long.

    Text in a JSON string cannot end it, for any content, and a key such as "__proto__" is an ordinary key.
    Hidden characters are written as visible escapes, since a browser would obey a bidirectional override. A compressed
    part is the base64 text of gzip data, a sixth of the size (`part` in web/elements.js); the first part is read before
    anything can wait, and is never compressed.

    Raises:
        ValueError: NaN or -inf.
    """
    text = json.dumps(plain_data(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if name != FIRST and len(text) > LONG:
        packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
        return f"REPORT[{json.dumps(name)}] = '{packed}';\n".encode()
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"REPORT[{json.dumps(name)}] = JSON.parse('{quoted}');\n".encode()


def plain_data(value: Any) -> Any:
    """Return data for JSON: hidden characters of texts and keys as escapes, infinity as "inf"."""
    if isinstance(value, str):
        return visible(value, keep="\n\t")
    if isinstance(value, float):
        return epsilon_to_json(value)
    if isinstance(value, dict):
        return {plain_data(key): plain_data(inner) for key, inner in value.items()}
    return [plain_data(inner) for inner in value] if isinstance(value, list | tuple) else value


def shorten(kind: type[Shorter], value: object) -> Shorter:
    """Return the fields of a dataclass that a shorter dataclass has."""
    return kind(**{each.name: getattr(value, each.name) for each in fields(kind)})


def check_free(folder: Path) -> None:
    """Refuse a folder with other files; called before the report is made.

    Raises:
        BenchError: the path is a file, or a directory that holds files but no earlier report.
    """
    if folder.exists() and not folder.is_dir():
        raise BenchError(f"--out {folder}: is a file; give a new or an empty directory")
    page = folder / PAGE
    if folder.is_dir() and any(folder.iterdir()) and not (page.is_file() and MARK in page.read_bytes()):
        raise BenchError(f"--out {folder}: has files in it, and no earlier report; give a new or an empty directory")


def write(folder: Path, files: Files) -> None:
    """Write a report's files and remove those of an earlier report in the same directory.

    Only data scripts and pictures are removed, which are recognised by their beginning and their names. The page is
    written first: if writing is interrupted, the next report recognises the directory by its page.

    Raises:
        BenchError: the directory cannot be written to, or holds other files.
    """
    check_free(folder)
    try:
        scripts = [path for path in (folder / DATA).rglob("*.js") if path.read_bytes().startswith(START)]
        pictures = [path for path in (folder / PICTURES).glob("*.png") if PICTURE.fullmatch(path.name)]
        for path in scripts + pictures:
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
        for name in sorted(files, key=lambda name: (name != PAGE, name)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
    except OSError as error:
        raise BenchError(f"--out {folder}: cannot write there ({error.strerror}); give another directory") from None
