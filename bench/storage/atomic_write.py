"""Write files atomically: a reader sees the whole file or none."""

from __future__ import annotations

import os
from pathlib import Path

from bench.errors import BenchError, disk_is_full


def check_writable(folder: Path, option: str) -> None:
    """Create an output folder, and check that files can be written there.

    Args:
        folder: the folder.
        option: the option by which the user gave it, for the message.

    Raises:
        BenchError: it cannot be created or written.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        if disk_is_full(error):
            raise
        raise BenchError(
            f"{option} {folder}: cannot write there ({error.strerror}); give a directory to which you may write"
        ) from None


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
