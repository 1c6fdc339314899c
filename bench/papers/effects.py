"""What a departure is worth: a method's accuracy, or an attack's success on the undefended teacher, as it is and with
that one change taken back, from the same seeds and teachers.

The runs are in `leaderboards/papers/ablations`: `runs.csv` of methods, `attacks.csv` of attacks. `python
benchmarks/departures.py` writes the recipe that makes them, `benchmarks/ablations.py` reads them from a sweep.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from bench import registry
from bench.config import Departure, Description
from bench.escape import csv_value

Kind = Literal["method", "attack"]
FOLDER = registry.ROOT / "leaderboards" / "papers" / "ablations"
FILES: dict[Kind, Path] = {"method": FOLDER / "runs.csv", "attack": FOLDER / "attacks.csv"}
KEY = ("dataset", "options", "seed", "version")
"""With the name, what names a run in a file; runs of older versions stay beside newer ones."""
SCORES: dict[Kind, str] = {"method": "accuracy", "attack": "success"}
"""The column that is compared: a student's accuracy, or an attack's success on the teacher, a share or an AUC."""

Scores = dict[int, float]
"""Seed to what is compared, in [0, 1]."""

Taught = dict[int, tuple[float, float]]
"""Seed to what is compared and to the teacher's accuracy, in [0, 1]."""


@dataclass(frozen=True)
class Worth:
    """One measured comparison.

    Attributes:
        dataset: of both runs.
        version: of the method or the attack.
        given: the options that both runs had.
        kept: accuracy or success with the departure.
        left: the same without it, of the same seeds and teachers.
        areas: whether they are areas under a curve, of an attack that guesses members, and no shares.
    """

    dataset: str
    version: int
    given: Mapping[str, Mapping[str, Any]]
    kept: Scores
    left: Scores
    areas: bool = False

    def __str__(self) -> str:
        """As in "digits: 84.0 ± 2.6 %, without it 80.1 ± 3.7 % (3 seeds)"."""
        typed = [self.dataset, *(f"{name} {value}" for name, value in sorted(self._options().items()))]
        seeds = f"{len(self.kept)} seed{'s' if len(self.kept) > 1 else ''}"
        kept, left = (_area(scores) if self.areas else _spread(scores) for scores in (self.kept, self.left))
        return f"{', '.join(typed)}: {kept}, without it {left} ({seeds})"

    def _options(self) -> dict[str, Any]:
        """But for those of a run without a budget, as attacks are tried on: they say nothing of it."""
        told = {name: value for group in self.given.values() for name, value in group.items() if name != "solve"}
        return {name: value for name, value in told.items() if (name, value) != ("epsilon", None)}


def told(name: str, described: Description, departure: Departure) -> str:
    """What is known of a departure's worth, in words; "" where nothing is."""
    if departure.worth:
        return departure.worth
    kind: Kind = "attack" if "goal" in described.facts else "method"
    found = measured(name, taken_back(described, departure), kind)
    if described.facts.get("goal") == "membership":
        found = [replace(each, areas=True) for each in found]
    newest = max((each.version for each in found), default=0)
    return "; ".join(str(each) for each in found if each.version == newest) + (
        f" (version {newest})" if found and newest != described.facts["version"] else ""
    )


def taken_back(described: Description, departure: Departure) -> dict[str, Any]:
    """The options that undo a departure: what it sets, as printed, or those that it names; {} where none does."""
    printed = {option.name: option.default for option in described.options}
    return dict(departure.without) or {name: printed[name] for name in departure.sets}


def measured(name: str, undone: Mapping[str, Any], kind: Kind = "method", file: Path | None = None) -> list[Worth]:
    """All comparisons of runs with and without these options, by data set; versions are not mixed."""
    if not undone:
        return []
    runs, found = _runs(kind, file or FILES[kind]).get(name, {}), []
    for (dataset, version, options), left in runs.items():
        given = json.loads(options)
        if not undone.items() <= given.get(kind, {}).items():
            continue
        given[kind] = {option: value for option, value in given[kind].items() if option not in undone}
        kept = runs.get((dataset, version, _canonical(given)), {})
        # A better teacher is not the departure's worth: only runs of the same teacher are compared.
        both = sorted(seed for seed in kept.keys() & left.keys() if kept[seed][1] == left[seed][1])
        if both:
            found.append(Worth(dataset, version, given, {s: kept[s][0] for s in both}, {s: left[s][0] for s in both}))
    return sorted(found, key=lambda each: (each.dataset, each.version, _canonical(each.given)))


@cache
def _runs(kind: Kind, file: Path) -> dict[str, dict[tuple[str, int, str], Taught]]:
    """Method or attack to (data set, version, options as JSON) to what was measured."""
    found: dict[str, dict[tuple[str, int, str], Taught]] = defaultdict(lambda: defaultdict(dict))
    for row in read(file):
        place = (row["dataset"], int(row["version"]), _canonical(json.loads(row["options"])))
        found[row[kind]][place][int(row["seed"])] = float(row[SCORES[kind]]), float(row["teacher_accuracy"])
    return found


def read(file: Path = FILES["method"]) -> list[dict[str, str]]:
    """The rows of a file of ablations; none where there is no such file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [{key: csv_value(cell) for key, cell in row.items()} for row in csv.DictReader(lines)]


def _canonical(options: Mapping[str, Any]) -> str:
    return json.dumps({group: given for group, given in options.items() if given}, sort_keys=True)


def _spread(scores: Scores) -> str:
    values: Iterable[float] = [100 * value for value in scores.values()]
    deviation = f" ± {stdev(values):.1f}" if len(scores) > 1 else ""
    return f"{mean(values):.1f}{deviation} %"


def _area(scores: Scores) -> str:
    deviation = f" ± {stdev(scores.values()):.3f}" if len(scores) > 1 else ""
    return f"AUC {mean(scores.values()):.3f}{deviation}"
