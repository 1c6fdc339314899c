"""The two kinds of trouble: what the user can mend, and what a run could not do. Imports no library."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class BenchError(Exception):
    """Bad input: one line saying what was given, what is expected and what to do. The command exits with status 2."""


class RunFailed(Exception):
    """A run could not be completed; its record says why. The command exits with status 1."""


def disk_is_full(error: BaseException) -> bool:
    """Whether something could not be written since there was no room; safetensors says so in words alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return type(error).__name__ == "SafetensorError" and f"os error {errno.ENOSPC}" in str(error)


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
