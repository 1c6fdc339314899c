"""Estimate how long runs will take, from the seconds of similar steps in finished runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.boards.records import readable
from bench.pipeline.attacks import attack_specs
from bench.pipeline.canary_audit import release_of, teachers_of
from bench.pipeline.components import make_spec
from bench.storage.provenance import devices
from bench.storage.records import AUDIT, RECORD, Audit, Record
from bench.storage.specs import AuditSpec, RunSpec, Spec, digest
from bench.storage.store import Store

BESIDES = 10.0
"""Seconds of a run outside of its steps: starting, scoring, drawing."""
Like = tuple[str, ...]
"""Key of steps that take similar time: the step's name, the data set, the tier, and the method or network."""
Named = tuple[str, str, Spec]
"""A step: its name in records and audits, its kind in the store, its spec."""
Kinds = dict[str, type[Record] | type[Audit]]
"""Type of record by file pattern."""


class Estimate:
    """Estimates seconds of runs; counts every step once, for the first run that needs it.

    Args:
        out: folder with finished records and audits.
        make: builds a spec of a kind from its parts; many runs may share it.
        boards: folder of published records, used where `out` has no similar steps.
        on_gpu: use published steps made on a GPU, or else those made on CPUs.
    """

    def __init__(
        self, out: Path, make: Callable[..., Any] = make_spec, boards: Path | None = None, on_gpu: bool = False
    ) -> None:
        self._known, self._make = _known(out), make
        if boards is not None:
            self._known = _published(boards, on_gpu) | self._known
        self._counted: set[tuple[str, str]] = set()
        self._stored: dict[tuple[Store, str], set[str]] = {}

    def seconds(
        self, store: Store, spec: RunSpec, goal: str | None, asks_teacher: bool = True, judged: bool = True
    ) -> float | None:
        """Estimate a run's seconds after the runs estimated before; None if a step has no similar finished step.

        Args:
            store: store in which its steps may exist already.
            goal: goal of its attack, "inversion" or "membership"; None without one.
            asks_teacher: whether the method or an attack queries the undefended teacher.
            judged: whether there is an inversion, so that the evaluator is needed.
        """
        return self._sum(store, _Alike.of(spec), self._steps(spec, goal, asks_teacher, judged))

    def audit_seconds(self, store: Store, spec: AuditSpec) -> float | None:
        """Estimate an audit's seconds in the same way."""
        return self._sum(store, _Alike.of(spec), _steps_of_audit(spec))

    def _sum(self, store: Store, run: _Alike, steps: Iterable[Named]) -> float | None:
        total: float | None = BESIDES
        for name, kind, step in steps:
            key = (kind, step.hash)
            if key in self._counted or self._there(store, *key):
                continue
            self._counted.add(key)
            taken = self._known.get(run.like(name)) if self._known else None
            total = None if taken is None or total is None else total + taken
        return total

    def _there(self, store: Store, kind: str, name: str) -> bool:
        """Whether the store has a step; each kind is listed once, as a plan checks thousands of steps."""
        listed = (store, kind)
        if listed not in self._stored:
            self._stored[listed] = store.names(kind)
        return name in self._stored[listed]

    def _steps(self, spec: RunSpec, goal: str | None, asks_teacher: bool, judged: bool) -> Iterator[Named]:
        """Yield the steps of a run whose specs are known before it begins."""
        if asks_teacher:
            yield "teacher", "teacher", spec.release.teacher
        if goal == "inversion" and judged:
            yield "evaluator", "evaluator", spec.evaluator
        if spec.release.ensemble is not None:
            yield "ensemble", "ensemble", spec.release.ensemble
        yield "release", "release", spec.release
        if spec.attack is not None:
            kind = "membership" if goal == "membership" else "attack"
            for target, aim in attack_specs(spec, self._make).items():
                yield f"attack_{target}", kind, aim


def _steps_of_audit(spec: AuditSpec) -> Iterator[Named]:
    """Yield all teachers of an audit, and the releases of those that are converted."""
    trained = teachers_of(spec)
    for name, teacher in trained.items():
        yield name, "teacher", teacher
    for name, of in (("release", "teacher"), ("reference_release", "reference_teacher")):
        if of in trained:
            release = release_of(spec, trained[of])
            if release.ensemble is not None:
                yield f"{name}_ensemble", "ensemble", release.ensemble
            yield name, "release", release


class _Alike(NamedTuple):
    """The settings that two runs or audits must share for their steps to take similar time.

    `recipe` is the digest of an audit's recipe, as its teachers may be trained longer.
    """

    dataset: str
    tier: str
    teacher: str
    recipe: str
    method: str
    variant: str
    attack: str = ""
    attack_variant: str = ""

    @classmethod
    def of(cls, spec: RunSpec | AuditSpec) -> _Alike:
        """Build the key from a spec."""
        release, attack = spec.release, None if isinstance(spec, AuditSpec) else spec.attack
        recipe = digest(spec.teacher.recipe) if isinstance(spec, AuditSpec) else ""
        attacked = () if attack is None else (attack.attack, attack.variant)
        where = release.teacher.data.dataset, spec.tier
        return cls(*where, release.teacher.arch, recipe, release.method, release.variant, *attacked)

    @classmethod
    def read(cls, spec: dict[str, Any]) -> _Alike:
        """Build the key from a record's spec."""
        release, attack = spec["release"], spec.get("attack")
        recipe = digest(spec["teacher"]["recipe"]) if spec["kind"] == "audit" else ""
        attacked = (attack["attack"], attack["variant"]) if attack else ()
        where = release["teacher"]["data"]["dataset"], spec["tier"]
        return cls(*where, release["teacher"]["arch"], recipe, release["method"], release["variant"], *attacked)

    def like(self, name: str) -> Like:
        """Return the key of one of its steps, by its name in records."""
        where = self.dataset, self.tier
        if name.startswith("attack_"):
            return name, *where, self.attack, self.attack_variant
        step = name.rpartition("_")[2]
        if step == "evaluator":
            return step, *where
        if step == "teacher":
            return step, *where, self.teacher + self.recipe
        return step, *where, self.method, self.variant


def _known(out: Path) -> dict[Like, float]:
    """Return the median seconds of similar steps in the records and audits below `out`."""
    kinds: Kinds = {f"records/*/{RECORD}": Record, f"audits/*/{AUDIT}": Audit}
    return _medians(_readable(out, kinds), lambda device: True)


def _published(boards: Path, on_gpu: bool) -> dict[Like, float]:
    """Return the medians of published steps made on a GPU, or on CPUs: the two differ by a factor of a hundred."""
    kinds: tuple[type[Record] | type[Audit], ...] = (Record, Audit)
    found = [kept for kind in kinds for _, kept in readable(kind, boards)]
    return _medians(found, lambda device: ("cpu" not in device) == on_gpu)


def _readable(folder: Path, kinds: Kinds) -> Iterator[Record | Audit]:
    """Yield the readable records and audits of a folder."""
    for pattern, kind in kinds.items():
        for path in sorted(folder.glob(pattern)):
            try:
                yield kind.read(path)
            except (OSError, ValueError):
                continue


def _medians(records: Iterable[Record | Audit], counts: Callable[[str], bool]) -> dict[Like, float]:
    """Return median seconds by step, over records and audits with a matching device."""
    found: dict[Like, list[float]] = defaultdict(list)
    for record in records:
        counted = all(counts(name) for name in devices(record.provenance) or [""])
        took = record.provenance.get("seconds", {}) if counted else {}
        alike = _Alike.read(record.spec) if took else None
        for name, seconds in took.items():
            if alike is not None and name != "references":
                found[alike.like(name)].append(seconds)
    return {step: median(seconds) for step, seconds in found.items()}
