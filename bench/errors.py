"""Errors: bad input, by kind, and a run that could not be completed. Imports no library.

Every class has a stable `code` for scripts; messages may change. docs/errors.md lists them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import ClassVar


class BenchError(Exception):
    """Bad input that none of the other classes describes.

    The message is one line: the given value, the expected one and the remedy. The command exits with status 2.

    Attributes:
        code: a stable word for the kind of error.
    """

    code: ClassVar[str] = "bad-input"


class UnknownName(BenchError):
    """A name that does not exist: of a method, an attack, a data set, a network, a unit, a variant or a choice."""

    code = "unknown-name"


class BadOption(BenchError):
    """An option that does not exist, or a value that it does not take or that contradicts another option."""

    code = "bad-option"


class BadData(BenchError):
    """Images or labels that are missing, damaged or ambiguous."""

    code = "bad-data"


class BadWeights(BenchError):
    """Weights that cannot be used: unreadable, with other names or shapes, or with values that are not finite."""

    code = "bad-weights"


class BadPlugin(BenchError):
    """Your own method, attack, data set or network that fails, or that misses a required member."""

    code = "bad-plugin"


class BudgetError(BenchError):
    """A privacy budget out of range, or one that the method cannot meet."""

    code = "budget"


class Incompatible(BenchError):
    """An attack, a method or a network that cannot be used with these data or with each other."""

    code = "incompatible"


class OutOfMemory(BenchError):
    """A run that needs more memory than is free; nothing was trained."""

    code = "memory"


class NotFound(BenchError):
    """A missing file or folder: a data set, a record, a run, weights or boards."""

    code = "not-found"


class RunFailed(Exception):
    """A run that could not be completed; its record says why. The command exits with status 1."""

    code: ClassVar[str] = "run-failed"


def kinds() -> list[type[BenchError] | type[RunFailed]]:
    """Return the classes of errors above, the general one first."""
    return [BenchError, *(each for each in BenchError.__subclasses__() if each.__module__ == __name__), RunFailed]


def disk_is_full(error: BaseException) -> bool:
    """Whether a write failed because the disk is full; an error of safetensors has this only in its message."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return type(error).__name__ == "SafetensorError" and f"os error {errno.ENOSPC}" in str(error)


def location_of(error: BaseException) -> str:
    """Return " at FILE:LINE" where an error was raised: the last line outside of libraries, else of a library."""
    frames = extract_tb(error.__traceback__)
    last = [frame for frame in frames if "site-packages" not in frame.filename][-1:] or frames[-1:]
    return "".join(f" at {'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}" for frame in last)


@contextmanager
def plugin_errors(source: str, advice: str = "fix the plug-in (CONTRIBUTING.md)") -> Iterator[None]:
    """Turn any exception of a plug-in's code before training into a BenchError with its location.

    A full disk is not a plug-in's fault and is raised unchanged.

    Args:
        source: the plug-in, at the beginning of the message.
        advice: the remedy, at the end of the message.
    """
    try:
        yield
    except (BenchError, RunFailed):
        raise
    except (Exception, SystemExit) as error:
        # Third-party code may raise anything; a SystemExit would end the command as if it had finished
        if disk_is_full(error):
            raise
        said = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        raise BadPlugin(f"{source}: {said}{location_of(error)}; {advice}, --debug prints the traceback") from error


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'NAME'?" with the nearest known name; "" if none is near.

    >>> did_you_mean("dpds", ["dpsd", "dgd"]), did_you_mean("dp-what", ["gmi"])
    (" Did you mean 'dpsd'?", '')
    """
    import difflib

    close = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown(kind: str, given: str, known: Iterable[str]) -> UnknownName:
    """Build the error for an unknown name, with the nearest names first.

    >>> print(unknown("method", "dpds", ["dpsd", "dgd"]))
    no method called 'dpds'. Did you mean 'dpsd'? Known: dgd, dpsd
    """
    names = sorted(known)
    return UnknownName(f"no {kind} called '{given}'.{did_you_mean(given, names)} Known: {', '.join(names) or 'none'}")
