"""Limit memory and time of the check of an untrusted bundle, which runs in a separate process that may be killed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.bundle.schema import Failed

MIB = 2**20
STARTING = 300
"""Seconds of real time to start Python and import libraries from a slow disk; not counted as computation."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that limit libraries to one thread: each thread's stack and heap count as memory used."""


@dataclass(frozen=True)
class Limits:
    """Memory and time for the check of one bundle.

    Attributes:
        mib: MiB of memory in addition to the libraries.
        seconds: seconds of one core, without the import of libraries.
    """

    mib: int = 224
    seconds: int = 20

    def exceeded(self) -> Failed:
        """Return the error for an exceeded limit."""
        return Failed(
            f"the check takes more than {self.mib} MiB of memory or {self.seconds} s; give more by --mib and --seconds "
            "if you trust the author of the bundle"
        )


def run_limited(arguments: Sequence[str], limits: Limits) -> str:
    """Run a Python module with arguments in another process; return the last line that it prints.

    Raises:
        Failed: the process exceeded its limits, which it set itself by `limited`.
        RuntimeError: the process failed for another reason.
    """
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1") | {"MALLOC_ARENA_MAX": "2", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *arguments]
    most = limits.seconds + STARTING
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=most, check=False)
    except subprocess.TimeoutExpired:
        raise limits.exceeded() from None
    if done.returncode < 0:
        raise limits.exceeded()
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


@contextmanager
def limited(limits: Limits, spent: int = 0) -> Iterator[None]:
    """Limit this process to its current use plus `limits`; the memory limit is removed at the end.

    Args:
        spent: seconds already used by the same check.

    Raises:
        Failed: the memory was exceeded. Exceeded time kills the process by a signal.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + max(1, limits.seconds - spent) + 1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.mib * MIB)
    try:
        yield
    except MemoryError:
        raise limits.exceeded() from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
