"""The process in which a user's script runs: its settings are restored, and its memory allocator can be tuned."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.progress import reporter

Progress = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all)."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2
"""Parameters of glibc's `mallopt`."""
RESERVED = 2**26
"""Number of bytes by which the heap grows at least."""

logger = logging.getLogger("bench")
logger.addHandler(logging.NullHandler())  # without a handler, logging prints warnings to stderr


class _CallbackFailed(BaseException):
    """Ends a run after an exception of the caller's progress callback, without recording the run as failed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class _Listener:
    """Sends notices to the logger and progress to a callback."""

    progress: Progress | None

    def step(self, stage: str, done: int, total: int) -> None:
        """Report progress, as `bench.progress.Reporter`."""
        if self.progress is None:
            return
        try:
            self.progress(stage, done, total)
        except Exception as error:  # any exception of the callback is raised unchanged to the caller
            raise _CallbackFailed(error) from error

    def notice(self, line: str) -> None:
        """Log a notice, as `bench.progress.Reporter`."""
        logger.info(line)


@contextmanager
def preserve_process_state(progress: Progress | None = None) -> Iterator[None]:
    """Print nothing inside the context, and restore the global settings of the process at its end.

    Restored are the random generators of Python, NumPy and torch; torch's threads, default dtype, default device and
    gradient mode; the filters of warnings; and the handlers of signals.

    Args:
        progress: a callback; an exception that it raises ends the context and is raised to the caller.
    """
    token = reporter.set(_Listener(progress))
    try:
        with warnings.catch_warnings(), _random_generators(), _torch_settings(), _signal_handlers():
            yield
    except _CallbackFailed as failed:
        raise failed.cause from None
    finally:
        reporter.reset(token)


@contextmanager
def _random_generators() -> Iterator[None]:
    """Restore the random generators of Python, NumPy and torch."""
    import numpy as np
    import torch

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    had_cuda = torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if had_cuda else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.set_rng_state(cpu)
        if had_cuda:
            torch.cuda.set_rng_state_all(cuda)
        elif torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.initial_seed())  # as torch seeds a GPU at its first use


@contextmanager
def _torch_settings() -> Iterator[None]:
    """Restore torch's threads, dtype, device and gradient mode; inside, use float32, the CPU and gradients."""
    import torch

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


@contextmanager
def _signal_handlers() -> Iterator[None]:
    """Restore the handlers of signals, which only the main thread can set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for later tensors, which makes work on large tensors 4 to 5 times faster.

    The C library returns every large block to the kernel, which clears it page by page before the next use; a training
    step allocates the same hundred megabytes each time (`benchmarks/heap.py`). The process then keeps at most as much
    memory as it ever used at once. The setting cannot be undone.

    Returns:
        Whether the setting was made: False if the C library is not glibc, or if a variable `MALLOC_...` in the
            environment configures the allocator.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, RESERVED))
    return all(mallopt(name, value) == 1 for name, value in settings)
