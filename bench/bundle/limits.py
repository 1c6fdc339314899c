"""A limit of memory and time for what libraries compute from a bundle, in a process that may come to an end by it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.bundle.strict_json import Failed

MIB = 2**20
STARTING = 300
"""Seconds of real time to start Python and to import libraries from a slow disk, which are not counted."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A thread reserves address space for its stack and its heap, which is counted."""


@dataclass(frozen=True)
class Limits:
    """Memory and time of the check of one bundle.

    Attributes:
        mib: MiB of memory beyond the libraries'.
        seconds: of one core, the import of libraries left out.
    """

    mib: int = 224
    seconds: int = 20

    def too_much(self) -> Failed:
        """The error where one of them does not do."""
        return Failed(
            f"the check takes more than {self.mib} MiB of memory or {self.seconds} s; give more by --mib and --seconds "
            "if you trust who made the bundle"
        )


def run_limited(arguments: Sequence[str], limits: Limits) -> str:
    """The last line that a Python module prints, which is run with arguments in another process.

    Raises:
        Failed: the process was ended since it took more than its limits, which it set itself by `limited`.
        RuntimeError: it ended with an error of another kind.
    """
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1") | {"MALLOC_ARENA_MAX": "2", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *arguments]
    most = limits.seconds + STARTING
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=most, check=False)
    except subprocess.TimeoutExpired:
        raise limits.too_much() from None
    if done.returncode < 0:
        raise limits.too_much()
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


@contextmanager
def limited(limits: Limits, spent: int = 0) -> Iterator[None]:
    """Hold this process to the limits, from what it has taken so far; the memory is lifted again at the end.

    Args:
        spent: seconds that were already computed for the same check.

    Raises:
        Failed: the memory did not do. More time than allowed ends the process by a signal.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + max(1, limits.seconds - spent) + 1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    _lower(resource.RLIMIT_AS, _address_space() + limits.mib * MIB)
    try:
        yield
    except MemoryError:
        raise limits.too_much() from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
