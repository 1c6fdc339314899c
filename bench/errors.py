"""The two kinds of trouble: what the user can mend, and what a run could not do. Imports no library."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb


class BenchError(Exception):
    """Bad input: one line saying what was given, what is expected and what to do. The command exits with status 2."""


class RunFailed(Exception):
    """A run could not be completed; its record says why. The command exits with status 1."""


def disk_is_full(error: BaseException) -> bool:
    """Whether something could not be written since there was no room; safetensors says so in words alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return type(error).__name__ == "SafetensorError" and f"os error {errno.ENOSPC}" in str(error)


def place_of(error: BaseException) -> str:
    """Where something was raised, in front of a line: the last line of code that is no library's, else a library's."""
    frames = extract_tb(error.__traceback__)
    last = [frame for frame in frames if "site-packages" not in frame.filename][-1:] or frames[-1:]
    return "".join(f" at {'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}" for frame in last)


@contextmanager
def plugin_errors(source: str, advice: str = "fix the plug-in (CONTRIBUTING.md)") -> Iterator[None]:
    """Turn any exception of a plug-in's code, before anything is trained, into a BenchError with its place.

    A full disk is no plug-in's fault and goes on as it is.

    Args:
        source: the plug-in, as the message begins.
        advice: what to do, as the message ends.
    """
    try:
        yield
    except (BenchError, RunFailed):
        raise
    except (Exception, SystemExit) as error:
        # Anything that other people's code raises; by SystemExit it would end the command as if all were done
        if disk_is_full(error):
            raise
        said = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        raise BenchError(f"{source}: {said}{place_of(error)}; {advice}, --debug shows the way there") from error


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """ " Did you mean 'NAME'?" of the nearest of the known names; "" where none is near.

    >>> did_you_mean("dpds", ["dpsd", "dgd"]), did_you_mean("dp-what", ["gmi"])
    (" Did you mean 'dpsd'?", '')
    """
    close = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown(kind: str, given: str, known: Iterable[str], note: str = "") -> BenchError:
    """The error for a name that does not exist, with the nearest names first.

    >>> print(unknown("method", "dpds", ["dpsd", "dgd"]))
    no method called 'dpds'. Did you mean 'dpsd'? Known: dgd, dpsd
    """
    names = sorted(known)
    tail = f" {note}" if note else ""
    return BenchError(
        f"no {kind} called '{given}'.{did_you_mean(given, names)} Known: {', '.join(names) or 'none'}{tail}"
    )
