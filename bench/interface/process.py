"""Work in the caller's process, which is left as it was found."""

from __future__ import annotations

import logging
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

logger = logging.getLogger("bench")
logger.addHandler(logging.NullHandler())  # else logging would print to stderr where a user has set up nothing


class _Stopped(BaseException):
    """Ends a run for an exception of the caller's progress callback; it is not recorded as a failure of the run."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class _Listener:
    """Sends notices to the logger and progress to a callback."""

    progress: Progress | None

    def step(self, stage: str, done: int, total: int) -> None:
        """As `bench.progress.Reporter`."""
        if self.progress is None:
            return
        try:
            self.progress(stage, done, total)
        except Exception as error:  # a callback may raise anything; the caller gets it back unchanged
            raise _Stopped(error) from error

    def notice(self, line: str) -> None:
        """As `bench.progress.Reporter`."""
        logger.info(line)


@contextmanager
def undisturbed(progress: Progress | None = None) -> Iterator[None]:
    """Work in a process that belongs to the caller: silent, and with all of its settings as they were afterwards.

    These are the random generators of Python, NumPy and torch, torch's threads, default dtype, default device and
    gradient mode, the filters of warnings, and the handlers of signals.

    Args:
        progress: a callback; its exceptions end the work and go on to the caller.
    """
    token = reporter.set(_Listener(progress))
    try:
        with ExitStack() as restored:
            restored.enter_context(warnings.catch_warnings())
            restored.enter_context(_generators())
            restored.enter_context(_torch_settings())
            restored.enter_context(_handlers())
            yield
    except _Stopped as stopped:
        raise stopped.cause from None
    finally:
        reporter.reset(token)


@contextmanager
def _generators() -> Iterator[None]:
    """The random generators of Python, NumPy and torch."""
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
            torch.cuda.manual_seed_all(torch.initial_seed())  # as torch seeds a GPU that is first used after this


@contextmanager
def _torch_settings() -> Iterator[None]:
    """Threads, dtype, device and gradient mode; inside, those that the bench expects."""
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
def _handlers() -> Iterator[None]:
    """Handlers of signals, which only the main thread has."""
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
