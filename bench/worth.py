"""What a departure is worth: a method's accuracy as it is, and with that one change taken back, from the same seeds
and teachers.

The runs are in `leaderboards/ablations/runs.csv`. `python benchmarks/departures.py` writes the recipe that makes them,
`benchmarks/ablations.py` reads them from a sweep.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench import registry
from bench.config import Departure, Description

FILE = registry.ROOT / "leaderboards" / "ablations" / "runs.csv"
KEY = ("method", "dataset", "options", "seed", "version")
"""What names a run in the file; runs of older versions stay beside newer ones."""

Scores = dict[int, float]
"""Seed to the student's accuracy, in [0, 1]."""

Taught = dict[int, tuple[float, float]]
"""Seed to the accuracies of the student and of its teacher, in [0, 1]."""


@dataclass(frozen=True)
class Worth:
    """One measured comparison.

    Attributes:
        dataset: of both runs.
        version: of the method.
        given: the options that both runs had.
        kept: accuracies with the departure.
        left: accuracies without it, of the same seeds and teachers.
    """

    dataset: str
    version: int
    given: Mapping[str, Mapping[str, Any]]
    kept: Scores
    left: Scores

    def __str__(self) -> str:
        """As in "digits: 84.0 ± 2.6 %, without it 80.1 ± 3.7 % (3 seeds)"."""
        typed = [self.dataset, *(f"{name} {value}" for name, value in sorted(self._options().items()))]
        seeds = f"{len(self.kept)} seed{'s' if len(self.kept) > 1 else ''}"
        return f"{', '.join(typed)}: {_spread(self.kept)}, without it {_spread(self.left)} ({seeds})"

    def _options(self) -> dict[str, Any]:
        return {name: value for group in self.given.values() for name, value in group.items() if name != "solve"}


def told(name: str, described: Description, departure: Departure) -> str:
    """What is known of a departure's worth, in words; "" where nothing is."""
    if departure.worth:
        return departure.worth
    found = measured(name, taken_back(described, departure))
    newest = max((each.version for each in found), default=0)
    return "; ".join(str(each) for each in found if each.version == newest) + (
        f" (version {newest})" if found and newest != described.facts["version"] else ""
    )


def taken_back(described: Description, departure: Departure) -> dict[str, Any]:
    """The options that undo a departure: what it sets, as printed, or those that it names; {} where none does."""
    printed = {option.name: option.default for option in described.options}
    return dict(departure.without) or {name: printed[name] for name in departure.sets}


def measured(name: str, undone: Mapping[str, Any], file: Path = FILE) -> list[Worth]:
    """All comparisons of a method's runs with and without these options, by data set; versions are not mixed."""
    if not undone:
        return []
    runs, found = _runs(file).get(name, {}), []
    for (dataset, version, options), left in runs.items():
        given = json.loads(options)
        if not undone.items() <= given.get("method", {}).items():
            continue
        given["method"] = {option: value for option, value in given["method"].items() if option not in undone}
        kept = runs.get((dataset, version, _canonical(given)), {})
        # A better teacher is not the departure's worth: only students of the same teacher are compared.
        both = sorted(seed for seed in kept.keys() & left.keys() if kept[seed][1] == left[seed][1])
        if both:
            found.append(Worth(dataset, version, given, {s: kept[s][0] for s in both}, {s: left[s][0] for s in both}))
    return sorted(found, key=lambda each: (each.dataset, each.version, _canonical(each.given)))


@cache
def _runs(file: Path) -> dict[str, dict[tuple[str, int, str], Taught]]:
    """Method to (data set, version, options as JSON) to what was measured."""
    found: dict[str, dict[tuple[str, int, str], Taught]] = defaultdict(lambda: defaultdict(dict))
    for row in read(file):
        place = (row["dataset"], int(row["version"]), _canonical(json.loads(row["options"])))
        found[row["method"]][place][int(row["seed"])] = float(row["accuracy"]), float(row["teacher_accuracy"])
    return found


def read(file: Path = FILE) -> list[dict[str, str]]:
    """The rows of a file of ablations; none where there is no such file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _canonical(options: Mapping[str, Any]) -> str:
    return json.dumps({group: given for group, given in options.items() if given}, sort_keys=True)


def _spread(scores: Scores) -> str:
    values: Iterable[float] = [100 * value for value in scores.values()]
    deviation = f" ± {stdev(values):.1f}" if len(scores) > 1 else ""
    return f"{mean(values):.1f}{deviation} %"
