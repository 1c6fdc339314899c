"""What the user sees while a run goes on: a bar per stage with rate and remaining time; in a log, a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bench.escape import visible


class Reporter(Protocol):
    """Receives progress and notices instead of the terminal, as the Python interface needs it."""

    def step(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of a stage are done."""
        ...

    def notice(self, line: str) -> None:
        """A line for the user."""
        ...


reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)
"""Set while a function of the Python interface runs; None = the terminal."""


class Screen(Console):
    """The console of this project: each text is one line, whose hidden characters are shown as escapes.

    It leaves it to `bench.cli.streams` what a closed pipe means; rich ends the process with 1.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """The text of a line or of a cell, which rich prints."""
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled, which goes on."""
        raise


out = Screen(highlight=False, emoji=False)
err = Screen(stderr=True, highlight=False, emoji=False)


class _Rate(ProgressColumn):
    """Steps per second of a running stage."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f}/s" if speed else "-/s", style="progress.data.speed")


@contextmanager
def track(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for one stage on stderr; yields `advance(n)`. Off a terminal, one line when the stage is done."""
    start = time.perf_counter()
    if (listener := reporter.get()) is not None:
        finished = 0

        def report(n: int) -> None:
            nonlocal finished
            finished += n
            listener.step(stage, finished, total)

        yield report
        return
    if err.is_terminal:
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(30),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err) as progress:
            task = progress.add_task(escape(visible(stage)), total=total)
            yield lambda n: progress.advance(task, n)
        return
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n

    yield advance
    seconds = time.perf_counter() - start
    complain(f"{stage}: {done} of {total} in {seconds:.1f} s ({done / max(seconds, 1e-9):,.1f}/s)")


def head(text: str, after: str = "") -> None:
    """A heading to stdout and what stands behind it, as they are: names and paths may have brackets.

    Args:
        text: begins with a line break where an empty line is to stand before it.
    """
    if text.startswith("\n"):
        out.print()
    out.print(Text.assemble((visible(text.removeprefix("\n")), "bold"), visible(after)), soft_wrap=True)


def tell(line: str) -> None:
    """A line to stdout as it is: no markup is read in it, and it is not broken."""
    out.print(line, markup=False, soft_wrap=True)


def tell_lines(text: str) -> None:
    """As `tell`, for text of several lines."""
    for line in text.splitlines():
        tell(line)


def plain_text(*lines: str) -> Text:
    """Lines of a table's cell or title as they are: no markup is read in them."""
    return Text("\n".join(map(visible, lines)))


def say(line: str) -> None:
    """A line for the user beside the bars, on stderr."""
    if (listener := reporter.get()) is not None:
        listener.notice(line)
        return
    err.print(line, markup=False, soft_wrap=True)


def complain(line: str) -> None:
    """A line to stderr, where no progress bar is shown: an error, or the end of a stage."""
    print(visible(line), file=sys.stderr)
