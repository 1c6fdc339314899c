"""Write files atomically: a reader sees the whole file or none."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        write_through(work, text)
        work.replace(path)
    except BaseException:  # an interrupt or a full disk leaves nothing behind
        work.unlink(missing_ok=True)
        raise


def write_through(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
