"""A worker process: it is reused, replaced after its death, and killed with its children."""

import os
import signal
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool

import pytest

from bench.workers import Worker

pytestmark = pytest.mark.thorough  # processes that start and die take seconds


def nothing() -> None:
    """No preparation."""


def test_worker_keeps_its_process_and_replaces_a_dead_one() -> None:
    worker = Worker(nothing)
    first = worker.submit(os.getpid).result()
    assert worker.submit(os.getpid).result() == first
    os.kill(first, signal.SIGKILL)
    while worker.process is not None and worker.process.is_alive():
        time.sleep(0.05)
    second = worker.submit(os.getpid).result()
    assert second != first
    with pytest.raises(BrokenProcessPool):
        worker.submit(os.kill, second, signal.SIGKILL).result()
    assert worker.exit_status() == -9 and worker.end_of() == "killed by signal 9"
    worker.close()


def test_kill_ends_a_process_during_a_call() -> None:
    worker, began = Worker(nothing), time.monotonic()
    call = worker.submit(time.sleep, 600)
    process = worker.process
    worker.kill()
    assert process is not None and not process.is_alive() and time.monotonic() - began < 60
    with pytest.raises((BrokenProcessPool, CancelledError)):  # CancelledError if the call had not begun
        call.result()
