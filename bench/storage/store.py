"""A content-addressed store of finished steps: a directory per step, named by its spec's digest, published by renaming.

A step's directory exists only when it is complete, with `step.json` listing its files and their SHA-256. An existing
step is verified before use: small files are read, large ones only if their size or modification time has changed, so
that a run on images larger than memory starts without reading them all. One lock per step makes a second process wait
for the first and then use its result; the operating system releases the lock of a process that was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from bench.errors import BenchError, disk_is_full
from bench.storage.atomic_write import write_through
from bench.storage.mirror import Mirror
from bench.storage.provenance import Origin, StepLog
from bench.storage.specs import Json, Spec, canonical, digest

MANIFEST, SPEC = "step.json", "spec.json"
TENSORS = "tensors.safetensors"
FOLDERS = ("steps", "records", "leaderboards", "audits", "sweeps")
"""The kinds of content of an output directory."""
LARGE = 2**28
"""Size in bytes above which a file is not read again while its size and modification time are unchanged."""
Tensors = dict[str, Tensor]
StepSpec = Spec | Mapping[str, Json]
"""The spec of a step; plain data for steps of plug-ins and for decoded images."""
Make = Callable[[Path], None]
"""Function that writes the files of a step into an empty directory."""


def load_tensors(path: Path) -> Tensors:
    """Load the tensors of a safetensors file; a path that is not UTF-8, which the library refuses, is read as bytes."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return load(path.read_bytes())
    return load_file(path)


@dataclass(frozen=True)
class Manifest:
    """The contents of a step's `step.json`.

    Attributes:
        files: file name to SHA-256.
        seconds: seconds that making the step took.
        large: size and modification time of files that are not read again while these are unchanged.
        made: the origin of the step; None if it was made outside a run.
        within: the steps that were used to make it, by kind and hash, each with its origin.
    """

    files: dict[str, str]
    seconds: float
    large: dict[str, list[int]] = field(default_factory=dict)
    made: Origin | None = None
    within: dict[str, Origin | None] = field(default_factory=dict)

    @classmethod
    def read(cls, step: Path) -> Manifest:
        """Read the manifest of a step. Raises OSError, ValueError, TypeError or AttributeError if it is not valid."""
        plain = json.loads((step / MANIFEST).read_text(encoding="utf-8"))
        made, within = plain.pop("made", None), plain.pop("within", {})
        origins = {name: each and Origin.from_plain(each) for name, each in within.items()}
        return cls(**plain, made=made and Origin.from_plain(made), within=origins)

    def damaged_files(self, step: Path) -> list[str]:
        """Return the files that do not match the manifest; [] for a valid step. Raises OSError if a file is missing."""
        return [
            name
            for name, sha in self.files.items()
            if not (name in self.large and self.large[name] == _size_and_time(step / name))
            and _sha256(step / name) != sha
        ]


@dataclass(frozen=True)
class Step:
    """A published step: its directory, whether it existed before, and the seconds that making it took."""

    path: Path
    cached: bool
    seconds: float

    def json(self, name: str) -> Any:
        """Read a JSON file of the step."""
        return json.loads((self.path / name).read_text(encoding="utf-8"))


class Store:
    """Finished steps below `root`; safe for several processes at once.

    Args:
        root: the output directory; created if missing.
        fresh: make every step again, once, and replace the stored one.
        notify: called with a line when something unusual happens (waiting for another process, a damaged step).
        scratch: folder for missing steps, so that `root` is not changed; it need not exist then.

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
        self._logs: list[StepLog] = []
        self._mirror = Mirror.named(MANIFEST, notify)
        self._scratch = None if scratch is None else Store(scratch, fresh, notify)
        if self._scratch is None:
            probe = root / f".probe-{os.getpid()}"
            try:
                root.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
            except OSError as error:
                if disk_is_full(error):
                    raise
                raise BenchError(
                    f"--out {root}: cannot write there ({error.strerror}); give a directory to which you may write"
                ) from None
        else:
            self._scratch._logs = self._logs
        for name in FOLDERS:
            if (root / name).exists() and not (root / name).is_dir():
                raise BenchError(f"--out {root}: '{name}' in it must be a directory, for results; give another --out")

    def step(self, kind: str, spec: StepSpec, make: Make) -> Step:
        """Return the step of `spec`, made by `make(directory)` unless it exists.

        A step that fails leaves nothing behind.
        """
        final = self.root / "steps" / kind / digest(spec)
        if self._scratch is not None:
            damaged, manifest = inspect(final)
            return self._scratch.step(kind, spec, make) if damaged else self._reuse(final, manifest)
        final.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(final):
            if final.exists() and not (self._fresh and final not in self._made):
                found = self._read(final)
                if found is not None:
                    return found
            if self._mirror is None:
                return self._make(final, spec, make)
            found = None if self._fresh else self._download(final, self._mirror)
            if found is None:
                found = self._make(final, spec, make)
                self._mirror.upload(final)
            return found

    def get(self, kind: str, key: Mapping[str, Json], make: Callable[[], Tensors]) -> Tensors:
        """Return tensors made once per key (the `Artifacts` of a Context), such as an attacker's GAN."""

        def save(path: Path) -> None:
            save_file({name: t.detach().cpu().contiguous() for name, t in make().items()}, path / TENSORS)

        return load_tensors(self.step(kind, {"kind": kind, **key}, save).path / TENSORS)

    def names(self, kind: str) -> set[str]:
        """Return the hashes of all existing steps of a kind, valid or damaged."""
        try:
            return {name for name in os.listdir(self.root / "steps" / kind) if not name.startswith(".")}
        except FileNotFoundError:
            return set()

    @contextmanager
    def log_steps(self, origin: Origin) -> Iterator[StepLog]:
        """While the context is open: record the steps that a run uses, and store the run's origin with new steps."""
        self._logs.append(StepLog(origin))
        try:
            yield self._logs[-1]
        finally:
            self._logs.pop()

    @contextmanager
    def exclusive(self, final: Path) -> Iterator[Path]:
        """Yield a work directory for `final` under its lock; the caller ends with `publish(work, final)`."""
        final.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(final), self._work_directory(final) as work:
            yield work

    def _locked(self, final: Path) -> AcquireReturnProxy:
        lock = FileLock(final.with_name(f".{final.name}.lock"))
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            self._notify(f"waiting for another process that is making {final.parent.name} {final.name}")
            return lock.acquire()

    @staticmethod
    @contextmanager
    def _work_directory(final: Path) -> Iterator[Path]:
        """Yield an empty directory next to `final`, after removing leftovers of killed processes. Needs the lock."""
        for stale in [*final.parent.glob(f".making-{final.name}-*"), *final.parent.glob(f".old-{final.name}-*")]:
            shutil.rmtree(stale)
        work = final.with_name(f".making-{final.name}-{os.getpid()}")
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _read(self, final: Path) -> Step | None:
        """Return the step if its files match its manifest; otherwise move it aside and notify."""
        damaged, manifest = inspect(final)
        if not damaged and manifest.files.get(SPEC, final.name)[: len(final.name)] != final.name:
            damaged = [f"{SPEC} of another step"]  # a directory that was copied or renamed
        if not damaged:
            return self._reuse(final, manifest)
        aside = final.with_name(f".damaged-{final.name}-{time.time_ns()}")
        final.rename(aside)
        self._notify(f"{final} is damaged ({', '.join(damaged)}); moved to {aside.name}, making it again")
        return None

    def _reuse(self, final: Path, manifest: Manifest) -> Step:
        self._log(final, manifest)
        return Step(final, cached=True, seconds=manifest.seconds)

    def _log(self, final: Path, manifest: Manifest) -> None:
        """Record in the run's log that it used a step and the steps of which that was made."""
        if self._logs:
            self._logs[-1].steps.update({**manifest.within, f"{final.parent.name} {final.name}": manifest.made})

    def _download(self, final: Path, mirror: Mirror) -> Step | None:
        """Install a step from the mirror; None if the mirror has no valid one. Call it with the lock held."""
        with self._work_directory(final) as work:
            if not mirror.download(final.parent.name, final.name, work):
                return None
            damaged, _ = inspect(work)
            if damaged:
                self._notify(f"{final.parent.name} {final.name} of the mirror is damaged ({', '.join(damaged)})")
                return None
            publish(work, final)
        return self._read(final)

    def _make(self, final: Path, spec: StepSpec, make: Make) -> Step:
        origin = self._logs[-1].origin if self._logs else None
        with self._work_directory(final) as work:
            start = time.perf_counter()
            if origin is None:
                within: dict[str, Origin | None] = {}
                make(work)
            else:
                with self.log_steps(origin) as log:
                    make(work)
                within = log.steps
            seconds = round(time.perf_counter() - start, 3)
            write_through(work / SPEC, canonical(spec))
            files = {p.relative_to(work).as_posix(): _sha256(p) for p in sorted(work.rglob("*")) if p.is_file()}
            large = {name: found for name in files if (found := _size_and_time(work / name))[0] >= LARGE}
            manifest = Manifest(files, seconds, large, origin, within)
            write_through(work / MANIFEST, canonical(asdict(manifest)))
            publish(work, final)
        self._made.add(final)
        self._log(final, manifest)
        return Step(final, cached=False, seconds=seconds)


def inspect(final: Path) -> tuple[list[str], Manifest]:
    """Return the files of a step that do not match its manifest ([] if valid), and the manifest (empty if missing)."""
    manifest = Manifest({}, 0.0)
    try:
        manifest = Manifest.read(final)
        return manifest.damaged_files(final), manifest
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return [f"{MANIFEST}: {error}"], manifest


def publish(work: Path, final: Path) -> None:
    """Rename a finished directory into place, replacing an older one; `final` is never incomplete.

    If that fails or is interrupted, the older one is restored: a release of `--noise os` cannot be drawn again.
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


def _size_and_time(path: Path) -> list[int]:
    """Return size in bytes and modification time of a file."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
