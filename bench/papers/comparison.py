"""Each published accuracy with the results of ours that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench import data, registry
from bench.boards.results import Result
from bench.papers.matching import difference, find_for, flags_of, names_noise, possible_epsilons
from bench.papers.printed_numbers import UNNAMED, PrintedNumber
from bench.papers.results import preference

Exists = Callable[[str, str], bool]
"""A function of a method and a data set: whether the bench has both."""


@dataclass(frozen=True)
class Line:
    """A published accuracy and one result of ours; `result` is None if we have none, and `state` gives the reason."""

    entry: PrintedNumber
    result: Result | None
    state: str = ""

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the published one; None without ours."""
        return None if self.result is None else difference(self.result.accuracy, self.entry)

    @property
    def flags(self) -> list[str]:
        """The flags of the result, those of the number (`flags_of`), and `reported:ISSUE` for each issue of the number;
        sorted."""
        own = frozenset() if self.result is None else self.result.flags | flags_of(find_for(self.result))
        return sorted(own | {f"reported:{issue}" for issue in self.entry.issues})


def is_in_bench(method: str, dataset: str) -> bool:
    """Whether the bench has the method and the data set."""
    return method in registry.entries("method") and dataset in data.names()


def compare(entries: Iterable[PrintedNumber], results: Iterable[Result], exists: Exists = is_in_bench) -> list[Line]:
    """Compare each published accuracy with ours: one line for each variant that was run.

    A number without a result of ours has one line, whose `state` says what the paper omits or what the bench does not
    have. A number that belongs to one of two epsilons has a line for each of them. Of several results of a variant the
    one with the smallest `preference` is used.
    """
    done = [(result, find_for(result, unsure=True)) for result in results if result.accuracy is not None]
    lines = []
    for entry in entries:
        found: dict[tuple[str | float, ...], Result] = {}
        for result in sorted((each for each, numbers in done if entry in numbers), key=preference):
            found.setdefault((result.release.variant, *possible_epsilons(entry, result.claimed)), result)
        lines += [Line(entry, found[key]) for key in sorted(found, key=str)]
        if not found:
            if entry.dataset == UNNAMED:
                state = "no data set named"
            elif not exists(entry.method, entry.dataset):
                state = "planned"
            elif "protection-not-stated" in entry.issues:
                state = "protection not stated"
            else:
                state = "epsilon not stated" if entry.unit != "none" and not names_noise(entry) else "not run"
            lines.append(Line(entry, None, state))
    return lines
