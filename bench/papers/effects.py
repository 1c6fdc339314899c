"""The measured effect of a change from a paper: accuracy of a method, or success of an attack on the unprotected
teacher, with and without the change, on the same seeds and teachers.

The runs are in `leaderboards/papers/ablations`: `runs.csv` for methods, `attacks.csv` for attacks. `python
benchmarks/departures.py` writes the recipe that makes them, `benchmarks/ablations.py` reads them from a sweep.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

from bench import registry
from bench.boards.tables import read_options
from bench.config import Departure, Description
from bench.escape import csv_value
from bench.storage.records import Changed

Kind = Literal["method", "attack"]
FOLDER = registry.ROOT / "leaderboards" / "papers" / "ablations"
FILES: dict[Kind, Path] = {"method": FOLDER / "runs.csv", "attack": FOLDER / "attacks.csv"}
KEY = ("dataset", "options", "seed", "version")
"""Columns that, with the name of the method or attack, identify a run; the files also have runs of older versions."""
SCORES: dict[Kind, str] = {"method": "accuracy", "attack": "success"}
"""The column that is compared: a student's accuracy, or an attack's success on the teacher, a share or an AUC."""
Scores = dict[int, float]
"""Seed to accuracy or success, in [0, 1]."""
Runs = dict[tuple[str, int, str], dict[int, tuple[float, float]]]
"""(data set, version, options as JSON) to seed to (accuracy or success, the teacher's accuracy)."""


@dataclass(frozen=True)
class Effect:
    """One measured comparison.

    Attributes:
        dataset: the data set of both runs.
        version: the version of the method or the attack.
        given: the options of both runs.
        kept: seed to accuracy or success with the change.
        left: the same without the change, on the same seeds and teachers.
        areas: whether the values are AUCs of a membership attack, not shares.
    """

    dataset: str
    version: int
    given: Changed
    kept: Scores
    left: Scores
    areas: bool = False

    def __str__(self) -> str:
        """Format as in "digits: 84.0 ± 2.6 %, without it 80.1 ± 3.7 % (3 seeds)"."""
        options = {name: value for group in self.given.values() for name, value in group.items() if name != "solve"}
        # Attacks are tried on runs without a budget, which is not mentioned
        shown = [f"{name} {value}" for name, value in sorted(options.items()) if (name, value) != ("epsilon", None)]
        seeds = f"{len(self.kept)} seed{'s' if len(self.kept) > 1 else ''}"
        kept, left = (self._format(list(scores.values())) for scores in (self.kept, self.left))
        return f"{', '.join([self.dataset, *shown])}: {kept}, without it {left} ({seeds})"

    def _format(self, scores: list[float]) -> str:
        """Format mean and standard deviation, of shares in percent."""
        if self.areas:
            return f"AUC {mean(scores):.3f}" + (f" ± {stdev(scores):.3f}" if len(scores) > 1 else "")
        shares = [100 * score for score in scores]
        return f"{mean(shares):.1f}" + (f" ± {stdev(shares):.1f} %" if len(scores) > 1 else " %")


def describe_effect(name: str, described: Description, departure: Departure) -> str:
    """Return the effect of a change in words, for the newest version with runs; "" without runs."""
    kind: Kind = "attack" if "goal" in described.facts else "method"
    areas = described.facts.get("goal") == "membership"
    found = measure_effects(name, reverting_options(described, departure), kind, areas=areas)
    newest = max((each.version for each in found), default=0)
    words = "; ".join(str(each) for each in found if each.version == newest)
    return f"{words} (version {newest})" if found and newest != described.facts["version"] else words


def reverting_options(described: Description, departure: Departure) -> dict[str, object]:
    """Return the options that revert a change: its own `without`, or else the printed values of its `sets`."""
    printed = {option.name: option.default for option in described.options}
    return dict(departure.without) or {name: printed[name] for name in departure.sets}


def measure_effects(
    name: str, reverting: Mapping[str, object], kind: Kind = "method", file: Path | None = None, areas: bool = False
) -> list[Effect]:
    """Compare runs with and without these options, by data set and version."""
    if not reverting:
        return []
    runs, found = _read_runs(kind, file or FILES[kind]).get(name, {}), []
    for (dataset, version, options), left in runs.items():
        given: Changed = json.loads(options)
        if not reverting.items() <= given.get(kind, {}).items():
            continue
        given[kind] = {option: value for option, value in given[kind].items() if option not in reverting}
        kept = runs.get((dataset, version, _canonical(given)), {})
        # Only runs of the same teacher: a better teacher is not an effect of the change
        both = sorted(seed for seed in kept.keys() & left.keys() if kept[seed][1] == left[seed][1])
        if both:
            with_it, without_it = ({seed: scores[seed][0] for seed in both} for scores in (kept, left))
            found.append(Effect(dataset, version, given, with_it, without_it, areas))
    return sorted(found, key=lambda each: (each.dataset, each.version, _canonical(each.given)))


@cache
def _read_runs(kind: Kind, file: Path) -> dict[str, Runs]:
    """Return the runs of each method or attack."""
    found: dict[str, Runs] = defaultdict(lambda: defaultdict(dict))
    columns = (kind, "dataset", "version", "options", "seed", SCORES[kind], "teacher_accuracy")
    for row in read(file):
        name, dataset, version, options, seed, score, teacher = (row[column] for column in columns)
        key = (dataset, int(version), _canonical(read_options(options)))
        found[name][key][int(seed)] = float(score), float(teacher)
    return found


def read(file: Path = FILES["method"]) -> list[dict[str, str]]:
    """Return the rows of a file of ablations; [] if the file does not exist."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [{key: csv_value(cell) for key, cell in row.items()} for row in csv.DictReader(lines)]


def _canonical(options: Changed) -> str:
    return json.dumps({group: given for group, given in options.items() if given}, sort_keys=True)
