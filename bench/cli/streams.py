"""Standard output and standard error of the command; write errors never end a run.

A run takes hours and prints few lines. If a line cannot be written, because its reader has closed (`| head -1`), the
disk behind `> log` is full or the terminal is closed, the command continues without it. `main` turns a lost standard
output into the exit status. Characters outside the terminal's encoding are shown as "?".
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

BROKEN_PIPE = 141
"""Exit status after the reader has closed the pipe: 128 plus the number of SIGPIPE, as shells report it."""


class LenientFile(io.FileIO):
    """A file that stores its first write error in `lost`, and discards all later writes."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write as FileIO, and wait if the reader of a non-blocking pipe is slow."""
        try:
            while self.lost is None:
                if (written := super().write(data)) is not None:
                    return written
                select.select((), (self,), ())
        except OSError as error:
            self.lost = error
        return len(memoryview(data).cast("B"))


def make_lenient() -> None:
    """Replace the process's own standard output and error; streams set by a caller are kept."""
    open_closed_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the calling process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, lenient(stream))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def open_closed_descriptors() -> None:
    """Open /dev/null for those of the descriptors 0, 1 and 2 that are closed.

    The next opened file would otherwise get such a number, and receive lines that libraries print.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open() uses the lowest free number


def lenient(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same file descriptor that discards all writes after an error."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LenientFile(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def lost_output() -> OSError | None:
    """Return why standard output could not be written completely; None if it was."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return None
    sys.stdout.flush()
    raw = getattr(sys.stdout.buffer, "raw", None)
    return raw.lost if isinstance(raw, LenientFile) else None


def status_of_lost(error: OSError) -> int:
    """Return the exit status for a lost standard output; print why, except if the reader has closed it."""
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    print(
        f"bench: failed: standard output cannot be written: {error.strerror}; the rest of the command is done",
        file=sys.stderr,
    )
    return 1
