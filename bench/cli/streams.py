"""Standard output and standard error of the command, which never end a run.

A run takes hours and prints some lines. Where a line cannot be written, since its reader has gone (`| head -1`), the
disk behind `> log` is full or the terminal is closed, the command continues without it. `main` turns a lost standard
output into the exit status. A character outside the terminal's encoding is shown as "?".
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

BROKEN_PIPE = 141
"""Exit status of a command whose reader has gone: 128 and the number of SIGPIPE, as shells report it."""


class _Lenient(io.FileIO):
    """A descriptor whose first failed write is kept in `lost`; nothing more is written to it then."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """As FileIO, and wait where the reader of a non-blocking pipe is slow."""
        try:
            while self.lost is None:
                if (written := super().write(data)) is not None:
                    return written
                select.select((), (self,), ())
        except OSError as error:
            self.lost = error
        return len(memoryview(data).cast("B"))


def make_lenient() -> None:
    """Replace the process's own standard output and error; streams that a caller has put there stay."""
    _open_closed_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _lenient(stream))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _open_closed_descriptors() -> None:
    """Point those of 0, 1 and 2 that are closed to nothing.

    The next file that is opened would get such a number, and with it the lines that libraries print.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free


def _lenient(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, with a `_Lenient` descriptor."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lenient(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def lost_output() -> OSError | None:
    """Why standard output could not be written to the end; None where it was."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return None
    sys.stdout.flush()
    raw = getattr(sys.stdout.buffer, "raw", None)
    return raw.lost if isinstance(raw, _Lenient) else None


def status_of_lost(error: OSError) -> int:
    """The exit status for a lost standard output; standard error says why, except where the reader has gone."""
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    print(f"bench: failed: standard output cannot be written: {error.strerror}; all else is done", file=sys.stderr)
    return 1
