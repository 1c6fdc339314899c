"""A content-addressed store of finished steps: one directory a step, named by its spec's hash, published by renaming.

There is no half-done state: a step's directory exists only when it is complete, with `step.json` listing its files and
their SHA-256. A step that is found is looked at before it is believed: small files are read, large ones only where
their size or time have changed, so that a run on images larger than memory starts without reading them all. A lock per
step makes a second process wait for the first and then take its result; the operating system drops the lock of a
process that was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout
from safetensors.torch import load, load_file, save_file

from bench.errors import BenchError, disk_is_full
from bench.storage.atomic_write import write_through
from bench.storage.mirror import Mirror
from bench.storage.provenance import Followed, Origin
from bench.storage.specs import canonical, digest

MANIFEST = "step.json"
FOLDERS = ("steps", "records", "leaderboards", "audits", "sweeps")
"""What an output directory holds."""
LARGE = 2**28
"""Bytes from which on a file is believed while its size and time are those that it was written with."""
Tensors = dict[str, Any]


def load_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file; a path that is not UTF-8, which the library refuses, is read as bytes."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return load(path.read_bytes())
    return load_file(path)


@dataclass(frozen=True)
class Manifest:
    """What a step says of itself.

    Attributes:
        files: name to SHA-256.
        large: bytes and time of the last change of files that are not read again while these stay.
        seconds: that making it took.
        made: its origin; None where it was made for no run that says its own.
        within: the steps that were taken to make it, by kind and hash, and the origin of each.
    """

    files: dict[str, str]
    seconds: float
    large: dict[str, list[int]] = field(default_factory=dict)
    made: Origin | None = None
    within: dict[str, Origin | None] = field(default_factory=dict)

    @classmethod
    def read(cls, step: Path) -> Manifest:
        """Raises OSError, ValueError or TypeError where there is none."""
        return cls(**json.loads((step / MANIFEST).read_text(encoding="utf-8")))

    def damaged(self, step: Path) -> list[str]:
        """The files that are not what it says, nothing for a whole step. Raises OSError where one is missing."""
        return [
            name
            for name, sha in self.files.items()
            if not (name in self.large and self.large[name] == _stamp(step / name)) and _sha256(step / name) != sha
        ]


@dataclass(frozen=True)
class Step:
    """A published step: its directory, whether it was there already, and the seconds that making it took."""

    path: Path
    cached: bool
    seconds: float

    def json(self, name: str) -> Any:
        """A JSON file of the step."""
        return json.loads((self.path / name).read_text(encoding="utf-8"))


class Store:
    """Finished steps below `root`; safe for several processes at once.

    Args:
        root: the output directory; made if missing.
        fresh: make every step again, once, and replace what was there.
        notify: called with a line when something unusual happens (waiting for another process, a damaged step).
        scratch: where steps are made that are not there, so that `root` is left as it is, or not there at all.

    Raises:
        BenchError: `root` cannot be written.
    """

    def __init__(
        self,
        root: Path,
        fresh: bool = False,
        notify: Callable[[str], None] = print,
        scratch: Path | None = None,
    ) -> None:
        self.root = root
        self._fresh = fresh
        self._notify = notify
        self._made: set[Path] = set()
        self._followed: list[Followed] = []
        self._mirror = Mirror.named(MANIFEST, notify)
        self._scratch = None if scratch is None else Store(scratch, fresh, notify)
        if self._scratch is not None:
            self._scratch._followed = self._followed
        else:
            self._begin()
        for name in FOLDERS:
            if (root / name).exists() and not (root / name).is_dir():
                raise BenchError(f"--out {root}: {name} in it is no directory, where results go; give another one")

    def _begin(self) -> None:
        """Make the root, and see whether it can be written."""
        root = self.root
        probe = root / f".probe-{os.getpid()}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            if disk_is_full(error):
                raise
            raise BenchError(
                f"--out {root}: cannot write there ({error.strerror}); give a directory you may write to"
            ) from None

    def step(self, kind: str, spec: dict[str, Any], make: Callable[[Path], None]) -> Step:
        """The step of `spec`, made by `make(directory)` unless it is there. A step that fails leaves nothing behind."""
        final = self.root / "steps" / kind / digest(spec)
        if self._scratch is not None:
            damaged, manifest = inspect(final)
            return self._scratch.step(kind, spec, make) if damaged else self._found(final, manifest)
        final.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(final):
            if final.exists() and not (self._fresh and final not in self._made):
                found = self._read(final)
                if found is not None:
                    return found
            if self._mirror is None:
                return self._make(final, spec, make)
            found = None if self._fresh else self._downloaded(final, self._mirror)
            if found is None:
                found = self._make(final, spec, make)
                self._mirror.upload(final)
            return found

    def _downloaded(self, final: Path, mirror: Mirror) -> Step | None:
        """A step from the mirror, in place; None if there is none that is whole. Call it with the lock held."""
        with self._workplace(final) as work:
            if not mirror.download(final.parent.name, final.name, work):
                return None
            damaged, _ = inspect(work)
            if damaged:
                self._notify(f"{final.parent.name} {final.name} of the mirror is damaged ({', '.join(damaged)})")
                return None
            publish(work, final)
        return self._read(final)

    def names(self, kind: str) -> set[str]:
        """The hashes of all steps of a kind that are there, whole or damaged."""
        try:
            return {name for name in os.listdir(self.root / "steps" / kind) if not name.startswith(".")}
        except FileNotFoundError:
            return set()

    def _locked(self, final: Path) -> AcquireReturnProxy:
        lock = FileLock(final.with_name(f".{final.name}.lock"))
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            self._notify(f"waiting for another process that is making {final.parent.name} {final.name}")
            return lock.acquire()

    def _read(self, final: Path) -> Step | None:
        """The step if its files are what its manifest says; otherwise move it aside and say so."""
        damaged, manifest = inspect(final)
        if not damaged:
            return self._found(final, manifest)
        aside = final.with_name(f".damaged-{final.name}-{time.time_ns()}")
        final.rename(aside)
        self._notify(f"{final} is damaged ({', '.join(damaged)}); moved to {aside.name}, making it again")
        return None

    def _found(self, final: Path, manifest: Manifest) -> Step:
        if self._followed:
            self._followed[-1].taken.update({**manifest.within, _name(final): manifest.made})
        return Step(final, cached=True, seconds=manifest.seconds)

    def _make(self, final: Path, spec: dict[str, Any], make: Callable[[Path], None]) -> Step:
        with self._workplace(final) as work:
            start = time.perf_counter()
            within = self._make_followed(work, make)
            seconds = round(time.perf_counter() - start, 3)
            write_through(work / "spec.json", canonical(spec))
            files = {p.relative_to(work).as_posix(): _sha256(p) for p in sorted(work.rglob("*")) if p.is_file()}
            times = {name: stamp for name in files if (stamp := _stamp(work / name))[0] >= LARGE}
            made = self._followed[-1].origin if self._followed else None
            write_through(work / MANIFEST, canonical(asdict(Manifest(files, seconds, times, made, within))))
            publish(work, final)
        self._made.add(final)
        if self._followed:
            self._followed[-1].taken.update({**within, _name(final): made})
        return Step(final, cached=False, seconds=seconds)

    @contextmanager
    def following(self, origin: Origin) -> Iterator[Followed]:
        """While a run is made: steps that it makes say its origin, and what it takes is noted."""
        self._followed.append(Followed(origin))
        try:
            yield self._followed[-1]
        finally:
            self._followed.pop()

    def _make_followed(self, work: Path, make: Callable[[Path], None]) -> dict[str, Origin | None]:
        """Make a step; what it took for that, where a run is followed."""
        if not self._followed:
            make(work)
            return {}
        with self.following(self._followed[-1].origin) as inner:
            make(work)
        return inner.taken

    @staticmethod
    @contextmanager
    def _workplace(final: Path) -> Iterator[Path]:
        """An empty directory beside `final`, after clearing what killed processes left. Enter it with the lock held."""
        for stale in [*final.parent.glob(f".making-{final.name}-*"), *final.parent.glob(f".old-{final.name}-*")]:
            shutil.rmtree(stale)
        work = final.with_name(f".making-{final.name}-{os.getpid()}")
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @contextmanager
    def exclusive(self, final: Path) -> Iterator[Path]:
        """A work directory for `final` under its lock; the caller ends with `publish(work, final)`."""
        final.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(final), self._workplace(final) as work:
            yield work

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], Tensors]) -> Tensors:
        """Tensors made once for a key (the `Artifacts` of a Context), such as an attacker's GAN."""

        def save(path: Path) -> None:
            save_file({name: t.detach().cpu().contiguous() for name, t in make().items()}, path / "tensors.safetensors")

        step = self.step(kind, {"kind": kind, **key}, save)
        return load_tensors(step.path / "tensors.safetensors")


def inspect(final: Path) -> tuple[list[str], Manifest]:
    """What of a step is not as its manifest says, nothing for a whole step, and the manifest, empty where none is."""
    manifest = Manifest({}, 0.0)
    try:
        manifest = Manifest.read(final)
        return manifest.damaged(final), manifest
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return [f"{MANIFEST}: {error}"], manifest


def publish(work: Path, final: Path) -> None:
    """Rename a finished directory into place, replacing an older one; never leaves `final` half written.

    Where that fails or is interrupted, the older one is put back: a release of `--noise os` cannot be drawn again.
    """
    old = final.with_name(f".old-{final.name}-{os.getpid()}")
    try:
        if final.exists():
            final.rename(old)
        work.rename(final)
    except BaseException:
        if old.exists() and not final.exists():
            old.rename(final)
        raise
    if old.exists():
        shutil.rmtree(old)


def _name(final: Path) -> str:
    """Kind and hash of a step."""
    return f"{final.parent.name} {final.name}"


def _stamp(path: Path) -> list[int]:
    """Bytes and time of the last change."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
