"""How long runs will take: what like steps took in finished runs, for the steps that are not there yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench import stage
from bench.records import RECORD, Record, RunSpec, digest
from bench.store import Store

BESIDES = 10.0
"""Seconds of a run that are no step: starting, scoring, drawing."""
Like = tuple[str, ...]
"""What steps must share to take alike: the step's name, the data set, the tier, and who makes it."""


class Estimate:
    """Counts every step once, for the first run that needs it.

    Args:
        out: where finished records lie.
    """

    def __init__(self, out: Path) -> None:
        self._known = _known(out)
        self._counted: set[tuple[str, str]] = set()

    def seconds(self, store: Store, spec: RunSpec, goal: str | None) -> float | None:
        """What a run will take after those asked about before; None if it has a step of which no like is known.

        Args:
            store: where its steps may lie already.
            goal: of its attack, "inversion" or "membership"; None without one.
        """
        total: float | None = BESIDES
        for name, kind, step in _steps(spec, goal):
            key = (kind, digest(step))
            if key in self._counted or store.has(*key):
                continue
            self._counted.add(key)
            times = self._known.get(_like(name, asdict(spec)))
            total = None if times is None or total is None else total + median(times)
        return total


def _steps(spec: RunSpec, goal: str | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The steps of a run whose specs are known before it begins: name in records, kind in the store, spec."""
    yield "teacher", "teacher", asdict(spec.release.teacher)
    yield "evaluator", "evaluator", asdict(spec.evaluator)
    if spec.release.ensemble is not None:
        yield "ensemble", "ensemble", asdict(spec.release.ensemble)
    yield "release", "release", asdict(spec.release)
    if spec.attack is not None:
        kind = "membership" if goal == "membership" else "attack"
        for target, aim in stage.targets(spec).items():
            yield f"attack_{target}", kind, asdict(aim)


def _like(name: str, spec: dict[str, Any]) -> Like:
    release, attack = spec["release"], spec["attack"]
    maker = {"teacher": release["teacher"]["arch"], "evaluator": ""}.get(name, release["method"])
    if name.startswith("attack_"):
        maker = attack["attack"]
    return name, release["teacher"]["data"]["dataset"], spec["tier"], maker


def _known(out: Path) -> dict[Like, list[float]]:
    """The seconds of like steps in the records below `out`."""
    found: dict[Like, list[float]] = defaultdict(list)
    for path in sorted((out / "records").glob(f"*/{RECORD}")):
        try:
            record = Record.read(path)
        except (OSError, ValueError):
            continue
        for name, seconds in record.provenance.get("seconds", {}).items():
            if name != "references":
                found[_like(name, record.spec)].append(seconds)
    return dict(found)
