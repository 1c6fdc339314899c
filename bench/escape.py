r"""Escape untrusted text in the media that this project writes: terminal, Markdown, pages and CSV.

Names, reasons and messages may come from a file, a data set or a third-party plug-in. A line break, an escape
sequence, a bidirectional override or a zero-width character in them can change what a reader sees. Every medium is
written in one place, which calls one of these functions:

| medium | written by | function |
|---|---|---|
| terminal, stdout and stderr | `bench.progress` and `bench.cli` | `visible` |
| Markdown of cards and of docs/ | `bench.bundle.card`, `docs.tables.cells` | `markdown`, `visible` |
| pages of `bench report` | `bench.report.files.script` | `visible`; markup also by `html.escape` |
| report of `bench assess` | `bench.assess.report` | `visible`; markup also by `html.escape` |
| CSV of boards and of comparisons | `bench.boards.tables`, `bench papers compare` | `csv_cell`, `csv_value` |
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~#&]")
"""Characters with a meaning in Markdown or in HTML within it."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
"""First characters that make a spreadsheet read a cell as a formula, also full-width, and the mark of an escape."""
_ESCAPE = re.compile(r"\\(\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Invisible characters that Unicode counts as printable."""


def is_hidden(letter: str) -> bool:
    """Whether a character acts instead of being visible: control, format (bidirectional, zero-width), or a line
    break."""
    if letter.isascii():
        return not letter.isprintable()
    return letter in _INVISIBLE or (not letter.isprintable() and unicodedata.category(letter) != "Zs")


def has_hidden(text: str) -> bool:
    """Whether a text contains a hidden character."""
    return not (text.isascii() and text.isprintable()) and any(map(is_hidden, text))


def visible(text: str, keep: str = "") -> str:
    r"""Return the text on one line, each hidden character as its escape.

    Args:
        keep: hidden characters to keep, such as a line break in text of several lines.

    >>> visible("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    if not has_hidden(text):
        return text
    return "".join(
        letter.encode("unicode_escape").decode() if is_hidden(letter) and letter not in keep else letter
        for letter in text
    )


def markdown(text: str) -> str:
    r"""Escape text for Markdown, so that it shows as written: it cannot end a table cell or begin a link, tag or
    heading.

    >>> markdown("a|b <script>")
    'a\\|b &lt;script&gt;'
    """
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return _MARKUP.sub(lambda found: entities.get(found[0]) or f"\\{found[0]}", visible(text))


def csv_cell(value: Any) -> Any:
    """Escape a cell: text that a spreadsheet would execute, or with hidden characters, gets a leading apostrophe.

    Numbers are unchanged, also as text; `csv_value` reverses the escape.

    >>> csv_cell("-0.5"), csv_cell("-1+1"), csv_cell("dpsd")
    ('-0.5', "'-1+1", 'dpsd')
    """
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    if not value.startswith(_FORMULA) and not has_hidden(value):
        return value
    return "'" + visible(value.replace("\\", "\\\\"))


def csv_value(cell: str) -> str:
    """Return the text that `csv_cell` escaped.

    >>> csv_value(csv_cell("=1+1"))
    '=1+1'
    """
    if not cell.startswith("'"):
        return cell
    letters = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
    return _ESCAPE.sub(lambda found: letters.get(found[1]) or chr(int(found[1][1:], 16)), cell[1:])
