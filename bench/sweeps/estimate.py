"""How long runs will take: what like steps took in finished runs, for the steps that are not there yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.pipeline.attack_targets import attack_specs
from bench.pipeline.canary_audit import release_of, teachers_of
from bench.storage.records import AUDIT, RECORD, Audit, Record
from bench.storage.specs import AuditSpec, RunSpec, Spec, digest
from bench.storage.store import Store

BESIDES = 10.0
"""Seconds of a run that are no step: starting, scoring, drawing."""
Like = tuple[str, ...]
"""What steps must share to take equally long: the step's name, the data set, the tier, and who makes it."""
Named = tuple[str, str, Spec]
"""A step: its name in records and audits, its kind in the store, its spec."""


class Estimate:
    """Counts every step once, for the first run that needs it.

    Args:
        out: where finished records and audits lie.
    """

    def __init__(self, out: Path) -> None:
        self._known = _known(out)
        self._counted: set[tuple[str, str]] = set()
        self._stored: dict[tuple[Path, str], set[str]] = {}

    def seconds(self, store: Store, spec: RunSpec, goal: str | None) -> float | None:
        """What a run will take after those asked about before; None if it has a step of which no like is known.

        Args:
            store: where its steps may lie already.
            goal: of its attack, "inversion" or "membership"; None without one.
        """
        return self._sum(store, spec, _steps(spec, goal))

    def audit_seconds(self, store: Store, spec: AuditSpec) -> float | None:
        """What an audit will take, likewise."""
        return self._sum(store, spec, _steps_of_audit(spec))

    def _sum(self, store: Store, spec: RunSpec | AuditSpec, steps: Iterable[Named]) -> float | None:
        total: float | None = BESIDES
        plain: dict[str, Any] = {}
        for name, kind, step in steps:
            key = (kind, step.hash)
            if key in self._counted or self._there(store, *key):
                continue
            self._counted.add(key)
            plain = plain or (asdict(spec) if self._known else {})
            times = self._known.get(_like(name, plain)) if plain else None
            total = None if times is None or total is None else total + median(times)
        return total

    def _there(self, store: Store, kind: str, name: str) -> bool:
        """Whether the store has a step; each kind is listed once, as a plan asks for thousands."""
        listed = (store.root, kind)
        if listed not in self._stored:
            self._stored[listed] = store.names(kind)
        return name in self._stored[listed]


def _steps(spec: RunSpec, goal: str | None) -> Iterator[Named]:
    """The steps of a run whose specs are known before it begins."""
    yield "teacher", "teacher", spec.release.teacher
    yield "evaluator", "evaluator", spec.evaluator
    if spec.release.ensemble is not None:
        yield "ensemble", "ensemble", spec.release.ensemble
    yield "release", "release", spec.release
    if spec.attack is not None:
        kind = "membership" if goal == "membership" else "attack"
        for target, aim in attack_specs(spec).items():
            yield f"attack_{target}", kind, aim


def _steps_of_audit(spec: AuditSpec) -> Iterator[Named]:
    """All teachers of an audit, and the releases of those that are converted."""
    trained = teachers_of(spec)
    for name, teacher in trained.items():
        yield name, "teacher", teacher
    for name, of in (("release", "teacher"), ("reference_release", "reference_teacher")):
        if of in trained:
            release = release_of(spec, trained[of])
            if release.ensemble is not None:
                yield f"{name}_ensemble", "ensemble", release.ensemble
            yield name, "release", release


def _like(name: str, spec: dict[str, Any]) -> Like:
    """A step of a run or of an audit; the latter's teachers may be trained at length, so their recipe counts too."""
    release, where = spec["release"], (spec["release"]["teacher"]["data"]["dataset"], spec["tier"])
    if name.startswith("attack_"):
        return name, *where, spec["attack"]["attack"], spec["attack"]["variant"]
    step = name.rpartition("_")[2]
    if step != "teacher":
        return (step, *where) if step == "evaluator" else (step, *where, release["method"], release["variant"])
    recipe = digest(spec["teacher"]["recipe"]) if spec["kind"] == "audit" else ""
    return step, *where, release["teacher"]["arch"] + recipe


def _known(out: Path) -> dict[Like, list[float]]:
    """The seconds of like steps in the records and audits below `out`."""
    found: dict[Like, list[float]] = defaultdict(list)
    kinds: dict[str, type[Record] | type[Audit]] = {f"records/*/{RECORD}": Record, f"audits/*/{AUDIT}": Audit}
    for pattern, kind in kinds.items():
        for path in sorted(out.glob(pattern)):
            try:
                record = kind.read(path)
            except (OSError, ValueError):
                continue
            for name, seconds in record.provenance.get("seconds", {}).items():
                if name != "references":
                    found[_like(name, record.spec)].append(seconds)
    return dict(found)
