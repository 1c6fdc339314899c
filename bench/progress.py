"""Progress of a run: one bar per stage with rate and remaining time; without a terminal, one line per stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bench.escape import visible

if TYPE_CHECKING:
    from rich.progress import Progress, Task


class Reporter(Protocol):
    """Receives progress and notices instead of the terminal; used by the Python interface."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps of a stage are done."""
        ...

    def notice(self, line: str) -> None:
        """Report a line for the user."""
        ...


reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)
"""Set while a function of the Python interface runs; None = the terminal."""


class Screen(Console):
    """The console of this project: each text is one line, with hidden characters shown as escapes.

    `bench.cli.streams` decides what a closed pipe means; rich by itself would exit with status 1.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape the text of a line or of a cell before rich prints it."""
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled; the error is raised again."""
        raise


out = Screen(highlight=False, emoji=False)
err = Screen(stderr=True, highlight=False, emoji=False)


@contextmanager
def track(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress of one stage on stderr; yields `advance(n)`. Without a terminal, prints one line when it is
    done."""
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
        with _progress_bar() as progress:
            task = progress.add_task(escape(visible(stage)), total=total)
            yield lambda n: progress.advance(task, n)
        return
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n

    yield advance
    seconds = time.perf_counter() - start
    print_error(f"{stage}: {done} of {total} in {seconds:.1f} s ({done / max(seconds, 1e-9):,.1f}/s)")


def _progress_bar() -> Progress:
    """Return a progress bar with rate and remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    class Rate(ProgressColumn):
        """Steps per second of a running stage."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f}/s" if speed else "-/s", style="progress.data.speed")

    description = TextColumn("{task.description:<34}")
    return Progress(description, BarColumn(30), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), console=err)


def print_heading(text: str, after: str = "") -> None:
    """Print a heading and the text after it to stdout without markup: names and paths may contain brackets.

    Args:
        text: begins with a line break for an empty line before it.
    """
    if text.startswith("\n"):
        out.print()
    out.print(Text.assemble((visible(text.removeprefix("\n")), "bold"), visible(after)), soft_wrap=True)


def print_line(line: str) -> None:
    """Print a line to stdout unchanged: without markup and line breaking."""
    out.print(line, markup=False, soft_wrap=True)


def print_lines(text: str) -> None:
    """Print text of several lines, like `print_line`."""
    for line in text.splitlines():
        print_line(line)


def plain_text(*lines: str) -> Text:
    """Return lines of a table's cell or title without markup."""
    return Text("\n".join(map(visible, lines)))


def notify(line: str) -> None:
    """Print a line for the user next to the progress bars, on stderr."""
    if (listener := reporter.get()) is not None:
        listener.notice(line)
        return
    err.print(line, markup=False, soft_wrap=True)


def print_error(line: str) -> None:
    """Print a line to stderr when no progress bar is active: an error, or the end of a stage."""
    print(visible(line), file=sys.stderr)
