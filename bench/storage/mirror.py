"""A mirror of trained networks for machines without a shared folder: a copy of their steps below an fsspec URL.

`BENCH_MIRROR` holds the URL, such as `s3://bucket/bench` or `file:///mnt/bench`. A step that is missing locally is
downloaded if the mirror has it; otherwise it is made and uploaded. The URL has no locks: if two machines miss a step at
the same time, both make it, and the first upload wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from bench.errors import BenchError

VARIABLE = "BENCH_MIRROR"
SHARED = ("teacher", "evaluator", "ensemble")
"""Kinds of steps that are copied; releases are never copied."""


class Mirror:
    """Copies of steps below a URL.

    Args:
        url: a URL of any file system that fsspec and its installed extensions know.
        manifest: the name of the file that lists a step's files; it is written last.
        notify: called with a line when the URL fails; the run then continues without it.

    Raises:
        BenchError: no file system is known for the URL.
    """

    def __init__(self, url: str, manifest: str, notify: Callable[[str], None]) -> None:
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise BenchError(f"{VARIABLE}={url}: {error}; give a URL that fsspec can open, or unset it") from None
        self._url, self._manifest, self._notify = url, manifest, notify

    @classmethod
    def named(cls, manifest: str, notify: Callable[[str], None]) -> Mirror | None:
        """Return the mirror that the environment names, or None."""
        url = os.environ.get(VARIABLE)
        return cls(url, manifest, notify) if url else None

    def download(self, kind: str, name: str, work: Path) -> bool:
        """Copy a step into an empty directory. Returns False if it is not in the mirror, or could not be read."""
        return kind in SHARED and self._attempt(lambda: self._download(self._location(kind, name), work))

    def upload(self, step: Path) -> None:
        """Copy a finished step `KIND/HASH`, unless the URL has it."""
        if step.parent.name in SHARED:
            self._attempt(lambda: self._upload(step, self._location(step.parent.name, step.name)))

    def _location(self, kind: str, name: str) -> str:
        return f"{self._root.rstrip('/')}/{kind}/{name}"

    def _download(self, location: str, work: Path) -> bool:
        if not self._files.exists(f"{location}/{self._manifest}"):
            return False
        manifest = self._files.cat_file(f"{location}/{self._manifest}")
        for file in json.loads(manifest)["files"]:
            if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
                raise ValueError(f"{file!r} is outside of the step")
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{location}/{file}", str(work / file))
        (work / self._manifest).write_bytes(manifest)
        return True

    def _upload(self, step: Path, location: str) -> bool:
        if self._files.exists(f"{location}/{self._manifest}"):
            return False
        manifest = (step / self._manifest).read_bytes()
        for file in json.loads(manifest)["files"]:
            self._files.makedirs(str(PurePosixPath(location, file).parent), exist_ok=True)
            self._files.put_file(str(step / file), f"{location}/{file}")
        self._files.pipe_file(f"{location}/{self._manifest}", manifest)
        return True

    def _attempt(self, copy: Callable[[], bool]) -> bool:
        """Copy; if that fails, notify the user and return False."""
        try:
            return copy()
        except Exception as error:  # file systems raise their own errors; the run continues without a copy
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._notify(f"{VARIABLE}={self._url}: {line}; continuing without it")
            return False
