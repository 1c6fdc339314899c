"""Estimate how long runs will take, from the seconds of similar steps in finished runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.boards.records import readable
from bench.pipeline.attacks import attack_specs
from bench.pipeline.canary_audit import release_of, teachers_of
from bench.pipeline.components import MakeSpec, make_spec
from bench.storage.provenance import devices
from bench.storage.records import AUDIT, RECORD, Audit, Record
from bench.storage.specs import AuditSpec, Plain, RunSpec, Spec, digest
from bench.storage.store import Store

OVERHEAD = 10.0
"""Seconds of a run outside of its steps: starting, scoring, drawing."""
StepKey = tuple[str, ...]
"""Key of steps that take similar time: the step's name, the data set, the tier, and the method or network."""


class Step(NamedTuple):
    """A step: its name in records and audits, its kind in the store, its spec."""

    name: str
    kind: str
    spec: Spec


class Estimate:
    """Estimates seconds of runs; counts every step once, for the first run that needs it.

    Args:
        out: folder with finished records and audits.
        make: builds a spec of a kind from its fields; many runs may share it.
        boards: folder of published records, used where `out` has no similar steps.
        on_gpu: use published steps made on a GPU, or else those made on CPUs.
    """

    def __init__(self, out: Path, make: MakeSpec = make_spec, boards: Path | None = None, on_gpu: bool = False) -> None:
        self._known, self._make = known_seconds(out), make
        if boards is not None:
            self._known = published_seconds(boards, on_gpu) | self._known
        self._counted: set[tuple[str, str]] = set()
        self._stored: dict[tuple[Store, str], set[str]] = {}

    def seconds(
        self, store: Store, spec: RunSpec, goal: str | None, needs_teacher: bool = True, needs_evaluator: bool = True
    ) -> float | None:
        """Estimate a run's seconds after the runs estimated before; None if a step has no similar finished step.

        Args:
            store: store in which its steps may exist already.
            goal: goal of its attack, "inversion" or "membership"; None without one.
            needs_teacher: whether the method or an attack queries the undefended teacher.
            needs_evaluator: whether an inversion attack applies.
        """
        release = spec.release
        steps = [Step("teacher", "teacher", release.teacher)] if needs_teacher else []
        if goal == "inversion" and needs_evaluator:
            steps.append(Step("evaluator", "evaluator", spec.evaluator))
        if release.ensemble is not None:
            steps.append(Step("ensemble", "ensemble", release.ensemble))
        steps.append(Step("release", "release", release))
        if spec.attack is not None:
            kind = "membership" if goal == "membership" else "attack"
            targets = attack_specs(spec, self._make)
            steps += [Step(f"attack_{target}", kind, attack) for target, attack in targets.items()]
        return self._sum(store, Similarity.of(spec), steps)

    def audit_seconds(self, store: Store, spec: AuditSpec) -> float | None:
        """Estimate an audit's seconds in the same way: its teachers, and the releases of those that are converted."""
        teachers = teachers_of(spec)
        steps = [Step(name, "teacher", teacher) for name, teacher in teachers.items()]
        for name, converted in (("release", "teacher"), ("reference_release", "reference_teacher")):
            if converted in teachers:
                release = release_of(spec, teachers[converted])
                if release.ensemble is not None:
                    steps.append(Step(f"{name}_ensemble", "ensemble", release.ensemble))
                steps.append(Step(name, "release", release))
        return self._sum(store, Similarity.of(spec), steps)

    def _sum(self, store: Store, run: Similarity, steps: Iterable[Step]) -> float | None:
        total: float | None = OVERHEAD
        for step in steps:
            key = (step.kind, step.spec.hash)
            stored = (store, step.kind)
            if stored not in self._stored:  # each kind is listed once, as a plan checks thousands of steps
                self._stored[stored] = store.names(step.kind)
            if key in self._counted or step.spec.hash in self._stored[stored]:
                continue
            self._counted.add(key)
            seconds = self._known.get(run.key(step.name)) if self._known else None
            total = None if seconds is None or total is None else total + seconds
        return total


class Similarity(NamedTuple):
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
    def of(cls, spec: RunSpec | AuditSpec) -> Similarity:
        """Select these settings from a spec."""
        release, attack = spec.release, None if isinstance(spec, AuditSpec) else spec.attack
        return cls(
            release.teacher.data.dataset,
            spec.tier,
            release.teacher.arch,
            digest(spec.teacher.recipe) if isinstance(spec, AuditSpec) else "",
            release.method,
            release.variant,
            *(() if attack is None else (attack.attack, attack.variant)),
        )

    @classmethod
    def read(cls, spec: Plain) -> Similarity:
        """Select these settings from a record's spec."""
        release, attack = spec["release"], spec.get("attack")
        return cls(
            release["teacher"]["data"]["dataset"],
            spec["tier"],
            release["teacher"]["arch"],
            digest(spec["teacher"]["recipe"]) if spec["kind"] == "audit" else "",
            release["method"],
            release["variant"],
            *((attack["attack"], attack["variant"]) if attack else ()),
        )

    def key(self, name: str) -> StepKey:
        """Return the key of one of its steps, by its name in records."""
        if name.startswith("attack_"):
            return name, self.dataset, self.tier, self.attack, self.attack_variant
        step = name.rpartition("_")[2]
        if step == "evaluator":
            return step, self.dataset, self.tier
        if step == "teacher":
            return step, self.dataset, self.tier, self.teacher + self.recipe
        return step, self.dataset, self.tier, self.method, self.variant


def known_seconds(out: Path) -> dict[StepKey, float]:
    """Return the median seconds of similar steps in the records and audits below `out`."""
    found: list[Record | Audit] = []
    kinds: dict[str, type[Record] | type[Audit]] = {f"records/*/{RECORD}": Record, f"audits/*/{AUDIT}": Audit}
    for pattern, kind in kinds.items():
        for path in sorted(out.glob(pattern)):
            with suppress(OSError, ValueError):  # damaged files are skipped
                found.append(kind.read(path))
    return median_seconds(found, lambda device: True)


def published_seconds(boards: Path, on_gpu: bool) -> dict[StepKey, float]:
    """Return the medians of published steps made on a GPU, or on CPUs: the two differ by a factor of a hundred."""
    kinds: tuple[type[Record] | type[Audit], ...] = (Record, Audit)
    found = [record for kind in kinds for _, record in readable(kind, boards)]
    return median_seconds(found, lambda device: ("cpu" not in device) == on_gpu)


def median_seconds(records: Iterable[Record | Audit], has_device: Callable[[str], bool]) -> dict[StepKey, float]:
    """Return median seconds by step, over records and audits with a matching device."""
    found: dict[StepKey, list[float]] = defaultdict(list)
    for record in records:
        seconds = record.provenance.get("seconds", {})
        if not seconds or not all(has_device(name) for name in devices(record.provenance) or [""]):
            continue
        run = Similarity.read(record.spec)
        for name, taken in seconds.items():
            if name != "references":
                found[run.key(name)].append(taken)
    return {step: median(seconds) for step, seconds in found.items()}
