"""Run a sweep from its plan to its summary: shared steps first; failures are recorded, and the other cells continue."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.storage.atomic_write import write_atomically
from bench.storage.records import AUDIT, RECORD, Audit, Record
from bench.storage.specs import Plain, canonical
from bench.sweeps.executors import Executor, Task, TaskResult
from bench.sweeps.plan import Cell
from bench.sweeps.recipe import COMMANDS

Say = Callable[[str], None]


@dataclass
class Outcome:
    """The outcome of one cell.

    Attributes:
        state: ok, inconclusive, skipped or failed; before it has run, its state in the plan.
        seconds: seconds that it took in this sweep.
    """

    name: str
    state: str
    reason: str = ""
    record: str = ""
    seconds: float = 0.0
    arguments: list[str] = field(default_factory=list)


@dataclass
class Summary:
    """A sweep's outcomes in the recipe's order, and its total seconds."""

    recipe: str
    outcomes: list[Outcome]
    seconds: float = 0.0

    @property
    def failed(self) -> list[Outcome]:
        """The cells that make the sweep's exit status non-zero."""
        return [outcome for outcome in self.outcomes if outcome.state in ("failed", "refused")]

    def counts(self) -> dict[str, int]:
        """Return the number of cells by state."""
        states = [outcome.state for outcome in self.outcomes]
        return {state: states.count(state) for state in dict.fromkeys(states)}

    def write(self, path: Path) -> None:
        """Write the summary as JSON."""
        write_atomically(path, canonical(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Summary:
        """Read a summary written by `write`."""
        plain: Plain = json.loads(path.read_text(encoding="utf-8"))
        return cls(plain["recipe"], [Outcome(**outcome) for outcome in plain["outcomes"]], plain["seconds"])


def run_sweep(
    recipe: str, cells: Sequence[Cell], executor: Executor[Any], path: Path, say: Say, until: float | None = None
) -> Summary:
    """Run the ready cells; write the summary to `path` after every cell, so that an interrupted sweep has one too.

    Args:
        recipe: name of the recipe.
        say: function that shows a line to the user, called when a cell ends.
        until: a moment of `time.monotonic`; cells that are not done by then stay ready.
    """
    outcomes = [Outcome(c.name, c.state, c.reason, str(c.record or ""), arguments=_typed(c, c.command)) for c in cells]
    summary = Summary(recipe, outcomes)
    summary.write(path)
    start = time.monotonic()
    ready = [i for i, cell in enumerate(cells) if cell.state == "ready"]
    shared = shared_steps(cells)
    count, first_start = 0, math.inf
    for done in executor.run(tasks(cells, shared), until):
        now = time.monotonic()
        if done.index >= len(cells):
            if done.status:
                step = shared[done.index - len(cells)]
                name = f"{step.name} of {cells[step.cells[0]].name}"
                say(f"preparing {name}: {last_line(done)}; the results of its runs show the cause")
            continue
        outcome = outcomes[done.index]
        set_outcome(outcome, cells[done.index], done)
        summary.seconds = round(now - start, 1)
        summary.write(path)
        count, first_start = count + 1, min(first_start, now - done.seconds)
        left = (now - first_start) / count * (len(ready) - count)
        line = f"{outcome.state}: {outcome.name} ({outcome.seconds:.0f} s) {outcome.reason}".rstrip()
        say(f"[{count}/{len(ready)}] {line}" + (f"; about {duration(left)} left" if left else ""))
    if count < len(ready):
        say(f"{len(ready) - count} of {len(ready)} not done in that time: run the same command to continue")
        longest = max(
            cell.seconds or 0 for cell, outcome in zip(cells, outcomes, strict=True) if outcome.state == "ready"
        )
        if until is not None and longest > until - start:
            say(f"the longest of them may take {duration(longest)}: give a longer --within")
    return summary


def duration(seconds: float) -> str:
    """Format a duration.

    >>> [duration(seconds) for seconds in (42, 150, 9000)]
    ['42 s', '2 min', '2.5 h']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class SharedStep(NamedTuple):
    """A step that several ready cells need: its name, its hash, and their indices."""

    name: str
    hash: str
    cells: list[int]


def shared_steps(cells: Sequence[Cell]) -> list[SharedStep]:
    """Return the steps to make before the ready cells: those that more than one cell needs."""
    needed: dict[str, SharedStep] = {}
    for i, cell in enumerate(cells):
        for name, step in cell.after if cell.state == "ready" else ():
            needed.setdefault(step, SharedStep(name, step, [])).cells.append(i)
    return [step for step in needed.values() if len(step.cells) > 1]


def tasks(cells: Sequence[Cell], shared: Sequence[SharedStep]) -> list[Task]:
    """Return a task for each shared step, and one for each ready cell, which waits for its shared steps.

    Tasks of shared steps are numbered after the last cell. They do not depend on each other: teacher and evaluator are
    trained in parallel, and so are the teachers with and without canaries.
    """
    index_of = {step.hash: index for index, step in enumerate(shared, start=len(cells))}
    preparations = []
    for step in shared:
        cell = cells[step.cells[0]]
        typed = (*_typed(cell, COMMANDS[cell.command]), "--only", step.name)
        # Started only if a run that needs it would fit after it
        shortest = min(cells[i].seconds or 0.0 for i in step.cells)
        preparations.append(Task(index_of[step.hash], typed, seconds=shortest))
    runs = []
    for i, cell in enumerate(cells):
        if cell.state == "ready":
            waits = frozenset(index_of[step] for _, step in cell.after if step in index_of)
            runs.append(Task(i, tuple(_typed(cell, cell.command)), waits, cell.seconds or 0.0))
    return preparations + runs


def _typed(cell: Cell, command: str) -> list[str]:
    return [*command.split(), *cell.arguments]


def set_outcome(outcome: Outcome, cell: Cell, done: TaskResult) -> None:
    """Set the outcome from the exit status of a run or an audit and its record."""
    outcome.seconds = round(done.seconds, 1)
    if done.status != 0 or cell.record is None:
        outcome.state, outcome.reason = "failed", last_line(done)
    elif not (cell.record / (RECORD if cell.command == "run" else AUDIT)).is_file():
        outcome.state, outcome.reason = "failed", f"ended without a record in {cell.record}"
    elif cell.command == "run":
        record = Record.read(cell.record / RECORD)
        outcome.state, outcome.reason = record.status, record.reason
    else:
        outcome.state, outcome.reason = audit_state(Audit.read(cell.record / AUDIT))


def audit_state(audit: Audit) -> tuple[str, str]:
    """Return an audit's state, and its numbers in a line. An audit without power that refuted nothing is
    inconclusive."""
    student, teacher = (audit.lines[name]["epsilon_lower"] for name in ("student", "teacher"))
    line = f"{audit.verdict}: student >= {student:.2f}, teacher >= {teacher:.2f}, ceiling {audit.ceiling:.2f}"
    if audit.powerful or audit.verdict == "refuted":
        return "ok", line
    return "inconclusive", f"{line}; {powerless(audit)}"


def powerless(audit: Audit) -> str:
    """Return a remark on an audit whose bound on the undefended teacher is 0."""
    if audit.lines["student"]["epsilon_lower"] > 0:
        return "power not known: the undefended teacher shows nothing, and the student does"
    return "no power: the undefended teacher shows nothing either"


def last_line(done: TaskResult) -> str:
    """Return the last line that `bench` printed, or the signal that killed it."""
    lines = [line for line in done.tail.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("bench:")), lines[-1] if lines else "")
    if done.status < 0:
        return f"killed by signal {-done.status}" + (f": {last}" if last else "")
    return last or f"exit status {done.status}"
