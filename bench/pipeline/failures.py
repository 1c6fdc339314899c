"""What goes wrong in a step of a run or of an audit, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.errors import BenchError, RunFailed, disk_is_full, place_of
from bench.privacy.accountant import Overspent

FAILURES = (RunFailed, Overspent, RuntimeError, ArithmeticError, ValueError)
"""What may go wrong in a step; anything else is a defect of a plug-in or of the bench, and is told with its place."""


@contextmanager
def failing() -> Iterator[None]:
    """What goes wrong in a step is a RunFailed of one line, whatever a plug-in of anybody's raises."""
    try:
        yield
    except (BenchError, RunFailed):
        raise
    except (Exception, SystemExit) as error:  # by SystemExit it would end the command as if all were done
        if disk_is_full(error):
            raise
        raise RunFailed(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """What went wrong, and where if that is a defect: the last line of code that is no library's."""
    said = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if isinstance(error, FAILURES) and str(error):
        return said
    return f"{said}{place_of(error)}; --debug shows the way there"
