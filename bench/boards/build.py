"""Build a board from records: a pure function, so that the same records give the same bytes.

A row of releases is a spec without its seeds. Its runs with different attacks or evaluators are evaluations; the
numbers of the row come from the evaluation with the most seeds.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bench.boards import audit_bounds
from bench.boards.flags import flags_of_record, flags_of_row, standing
from bench.boards.information import information
from bench.boards.records import dataset, seed
from bench.boards.spec_keys import key_of, split_of, teacher_of, variant_of
from bench.boards.tables import (
    ACCURACY,
    LOWER,
    LOWER_CEILING,
    LOWER_NULL,
    OF_RELEASE,
    AttackRow,
    Board,
    ReleaseRow,
    RunRow,
    joined,
)
from bench.metrics.metric import OWN_REFERENCES, REFERENCE, REFERENCES, SUBJECTS
from bench.metrics.table import metrics
from bench.privacy.budget import epsilon_from_json
from bench.storage.options import described
from bench.storage.provenance import devices
from bench.storage.records import Audit, Record

OTHERS = tuple(subject.prefix for subject in SUBJECTS["classifier"] if subject.prefix not in ("", "teacher_"))
"""Networks whose accuracies records may hold, besides the student and the teacher."""
PUBLIC = {"attack_accuracy": "retrieval_accuracy", "judge_accuracy": "retrieval_judge_accuracy"}
"""A metric to the same metric of images that the attacker already has."""


@dataclass
class Evaluation:
    """The runs of a release with one attack.

    Attributes:
        spec: the spec of one of the runs; all are equal except for seeds.
        runs: their records, sorted by seed and hash.
        done: the records of runs that did not fail.
        known: the names of all numbers in these records.
        bounds: the results of audits of these runs; None without any.
        flags: the flags of all these runs.
    """

    key: str
    spec: dict[str, Any]
    runs: list[Record] = field(default_factory=list)
    done: list[Record] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    bounds: audit_bounds.Shown | None = None
    flags: str = ""

    @property
    def seeds(self) -> str:
        """The seeds of all runs."""
        return " ".join(str(seed(run)) for run in self.runs)

    def rank(self) -> tuple[int, bool, str, str]:
        """Sort key of evaluations of one release: most seeds with a number first, then those without an attack."""
        return -len(self.done), self.spec["attack"] is not None, _options(self.runs[0]), self.runs[0].hash

    def mean(self, name: str) -> float | None:
        """Return the mean of a number over seeds; None if a seed has no such number."""
        if name not in self.known:
            return None
        return mean([run.metrics.get(name) for run in self.done])

    def promises(self, name: str) -> list[dict[str, Any]]:
        """Return the "claimed" or "accounted" epsilon of each finished run; {} where there is none."""
        return [run.privacy[name] or {} for run in self.done]


def build(records: Iterable[Record], audits: Iterable[Audit] = (), *, noted: bool = False, name: str = "") -> Board:
    """Build the board of the records of one data set; their order does not matter.

    Args:
        audits: end-to-end audits.
        noted: the records already hold the results of these audits, as published records do; else the audits of each
            release are looked up.
        name: name of the data set; "" = that of the records.
    """
    records, audits = list(records), list(audits)
    if audits and not noted:
        found = audit_bounds.by_release(audits)
        records = [audit_bounds.noted(record, found) or record for record in records]
    groups: dict[str, dict[str, Evaluation]] = defaultdict(dict)
    for evaluation in _evaluations(records, {audit.hash: audit for audit in audits}):
        groups[_release_key(evaluation)][evaluation.key] = evaluation
    ordered = sorted(((_place(each), key, each) for key, each in groups.items()), key=lambda one: one[:2])
    board = Board(name or (dataset(records[0]) if records else ""), [], [], [])
    for _, key, evaluations in ordered:
        _add_release(board, key, sorted(evaluations.values(), key=Evaluation.rank))
    board.attacks.extend(_reference_rows(records, board.dataset))
    return board


def _evaluations(records: Iterable[Record], audits: Mapping[str, Audit]) -> list[Evaluation]:
    found: dict[str, Evaluation] = {}
    for record in records:
        parts = (record.spec["release"], record.spec["attack"], (record.spec["attack"] or {}).get("target"))
        key = key_of(record.spec, named=all("variant" in part for part in parts if part))
        if key not in found:
            found[key] = Evaluation(key, record.spec)
        found[key].runs.append(record)
    for each in found.values():
        each.runs.sort(key=lambda run: (seed(run), run.hash))
        each.done = done = [run for run in each.runs if run.status != "failed"]
        each.known = {name for run in done for name in run.metrics}
        each.bounds = audit_bounds.shown(done, audits)
        flags = {flag for run in done for flag in flags_of_record(run)} | {*flags_of_row(map(_versions, done))}
        each.flags = joined(flags | ({"refuted"} if each.bounds is not None and each.bounds.is_refuted else set()))
    return list(found.values())


def _release_key(evaluation: Evaluation) -> str:
    """Return the row key: runs of one release with another kind of account or noise get a separate row."""
    proved = evaluation.promises("accounted")[:1]
    account = [[each.get(name) for name in ("unit", "relation", "delta")] for each in proved]
    is_coarse = "float32-noise" in evaluation.flags.split()
    release = evaluation.spec["release"]
    return key_of([evaluation.spec["tier"], release, account, is_coarse], named="variant" in release)


def _place(evaluations: Mapping[str, Evaluation]) -> tuple[Any, ...]:
    """Return the sort key of releases."""
    first = min(evaluations.values(), key=Evaluation.rank)
    release = first.spec["release"]
    setting = described(first.runs[0].options | {"attack": {}, "evaluator": {}})
    names = (release["method"], variant_of(release), setting, teacher_of(release["teacher"]), release["student"])
    return first.spec["tier"], split_of(release["teacher"]["data"]), *names


def _add_release(board: Board, key: str, evaluations: Sequence[Evaluation]) -> None:
    """Add the rows of a release; the first evaluation provides the numbers of the row."""
    first = evaluations[0]
    usual = _of_release(first)
    row = _release_row(board.dataset, key, first, usual, evaluations)
    board.releases.append(row)
    for each in evaluations:
        board.attacks.extend(_attack_rows(row, each, usual, each is first))
        board.runs.extend(_run_rows(row, each, each is first))


def _release_row(
    name: str, key: str, first: Evaluation, usual: Mapping[str, Numbers], evaluations: Sequence[Evaluation]
) -> ReleaseRow:
    release, claims, proved = first.spec["release"], first.promises("claimed"), first.promises("accounted")
    student = next((run.student for run in first.done if run.student), release["student"])
    shown = [each.bounds for each in evaluations if each.bounds is not None]
    best = max(shown, key=lambda each: (each.student, each.teacher), default=None)
    account = (proved or [{}])[0]
    return ReleaseRow(
        release=key,
        tier=first.spec["tier"],
        split=split_of(release["teacher"]["data"]),
        method=release["method"],
        variant=variant_of(release),
        version=release["version"],
        teacher=teacher_of(release["teacher"]),
        student=student,
        options=_options(first.runs[0], "method", "teacher", "budget"),
        **{name: numbers.value for name, numbers in usual.items() if name in OF_RELEASE},
        claimed_unit=(claims or [{}])[0].get("unit") or "",
        unit=account.get("unit") or "",
        relation=account.get("relation") or "",
        delta=account.get("delta"),
        epsilon_lower=None if best is None else best.student,
        accuracy=usual[ACCURACY].value,
        accuracy_low=usual[ACCURACY].low,
        accuracy_high=usual[ACCURACY].high,
        seeds=first.seeds,
        flags=joined(flag for each in evaluations for flag in each.flags.split()),
        dataset=name,
    )


def _of_account(evaluation: Evaluation) -> dict[str, float | None]:
    """Return the numbers `OF_RELEASE`: means over seeds, but the largest accounted epsilon, as a mean is no
    guarantee."""
    claimed, accounted = (
        [epsilon_from_json(each["epsilon"]) if each else None for each in evaluation.promises(name)]
        for name in ("claimed", "accounted")
    )
    nats = [information(run).nats for run in evaluation.done]
    return dict(zip(OF_RELEASE, (mean(claimed), largest(accounted), mean(nats)), strict=True))


def _attack_rows(
    release: ReleaseRow, evaluation: Evaluation, usual: Mapping[str, Numbers], is_first: bool
) -> list[AttackRow]:
    """Return the measured numbers of one evaluation; numbers of the release only if its rows do not have them already.

    Args:
        usual: `_of_release` of the first evaluation.
    """
    of_release = SharedCells(release.release, evaluation.key, seeds=evaluation.seeds, dataset=release.dataset)
    rows = [of_release.row(*each) for each in _own_numbers(evaluation, usual, is_first).items()]
    spec = evaluation.spec["attack"]
    if spec is None:
        evaluator = _options(evaluation.runs[0], "evaluator")
        return rows if is_first or not evaluator else [replace(row, options=evaluator) for row in rows]
    power = _power(evaluation.done)
    of_attack = SharedCells(
        release.release,
        evaluation.key,
        attack=spec["attack"],
        variant=variant_of(spec),
        version=spec["version"],
        access=spec["access"],
        options=_options(evaluation.runs[0], "attack", "evaluator"),
        power=power,
        reason=next((run.reason for run in evaluation.done if run.reason), "") if power != "pass" else "",
        seeds=evaluation.seeds,
        dataset=release.dataset,
    )
    measured = [of_attack.row(key, _measured(key, evaluation)) for key in _attack_metrics() if key in evaluation.known]
    return rows + (measured or [of_attack.row("", Numbers())])


class Numbers(NamedTuple):
    """The numbers of a row of attacks, as `AttackRow` has them."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    teacher: float | None = None
    untrained: float | None = None
    public_images: float | None = None


@dataclass(frozen=True)
class SharedCells:
    """The cells that all rows of one attack share, as in `AttackRow`."""

    release: str
    evaluation: str
    attack: str = ""
    variant: str = ""
    version: int | None = None
    access: str = ""
    options: str = ""
    power: str = ""
    reason: str = ""
    seeds: str = ""
    dataset: str = ""

    def row(self, metric: str, numbers: Numbers) -> AttackRow:
        """Return the row of a metric."""
        of = (self.release, self.evaluation, self.attack, self.variant, self.version, self.access, self.options)
        return AttackRow(*of, metric, *numbers, self.power, self.reason, self.seeds, dataset=self.dataset)


def _own_numbers(evaluation: Evaluation, usual: Mapping[str, Numbers], is_first: bool) -> dict[str, Numbers]:
    """Return accuracies, epsilons and information: all for the first evaluation, only differing ones for the others."""
    if is_first:
        return {name: found for name, found in usual.items() if name not in OF_RELEASE}
    own = _of_release(evaluation)
    found = {name: numbers for name, numbers in own.items() if name not in usual or numbers != usual[name]}
    return found | {name: Numbers() for name in usual if name not in own}


def _of_release(evaluation: Evaluation) -> dict[str, Numbers]:
    """Return the numbers that need no attack, by metric."""
    found = {ACCURACY: _measured(ACCURACY, evaluation)}
    others = [f"{prefix}{ACCURACY}" for prefix in OTHERS if f"{prefix}{ACCURACY}" in evaluation.known]
    found |= {name: _measured(name, evaluation) for name in others}
    found |= {name: Numbers(value) for name, value in _of_account(evaluation).items()}
    if (bounds := evaluation.bounds) is not None:
        found[LOWER] = Numbers(bounds.student, teacher=bounds.teacher)
        found |= {LOWER_NULL: Numbers(bounds.null), LOWER_CEILING: Numbers(bounds.ceiling)}
    return found


def _measured(key: str, evaluation: Evaluation) -> Numbers:
    public = PUBLIC.get(key)
    return Numbers(
        value=evaluation.mean(key),
        low=evaluation.mean(f"{key}.lo"),
        high=evaluation.mean(f"{key}.hi"),
        deviation=deviation([run.metrics.get(key) for run in evaluation.done]),
        teacher=evaluation.mean(f"teacher_{key}"),
        untrained=evaluation.mean(f"random_{key}"),
        public_images=None if public is None else evaluation.mean(public),
    )


def _attack_metrics() -> tuple[str, ...]:
    """Return the attack metrics that are averaged over seeds, in the order of the table of metrics."""
    found = [metric.key for metric in metrics().values() if metric.averaged and metric.of != "classifier"]
    return (*found, "memorising_auc")


def _run_rows(release: ReleaseRow, evaluation: Evaluation, counted: bool) -> list[RunRow]:
    return [
        RunRow(
            run=run.hash,
            release=release.release,
            evaluation=evaluation.key,
            counted="yes" if counted else "",
            seed=seed(run),
            status=run.status,
            accuracy=run.metrics.get(ACCURACY),
            seconds=math.fsum(run.provenance.get("seconds", {}).values()),
            device=", ".join(devices(run.provenance)) if run.status != "failed" else "",
            flags=evaluation.flags,
            dataset=release.dataset,
        )
        for run in evaluation.runs
    ]


def _reference_rows(records: Iterable[Record], name: str) -> list[AttackRow]:
    """Return the numbers of reference images by kind, tier and split; those of an attack's generator by attack."""
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        place = f"{REFERENCE}/{record.spec['tier']}/{split_of(record.spec['release']['teacher']['data'])}"
        for kind in REFERENCES:
            if f"{REFERENCE}_{kind}_attack_accuracy" in record.metrics:
                spec = record.spec["attack"] if kind in OWN_REFERENCES else None
                by = ("", "") if spec is None else (str(spec["attack"]), variant_of(spec))
                found[f"{place}/{kind}", *by].append(record)
    rows = []
    for (key, attack, variant), of in sorted(found.items()):
        prefix = f"{REFERENCE}_{key.rpartition('/')[2]}_"
        numbers = {each: mean([one.metrics.get(prefix + each) for one in of]) for each in reference_metrics()}
        seeds = " ".join(map(str, sorted({seed(one) for one in of})))
        shared = SharedCells(key, "", attack, variant, seeds=seeds, dataset=name)
        rows += [shared.row(metric, Numbers(value)) for metric, value in numbers.items() if value is not None]
    return rows


def reference_metrics() -> tuple[str, ...]:
    """Return the metrics of images made without querying a network."""
    return tuple(m.key for m in metrics().values() if m.averaged and m.of == "reconstructions")


def _options(record: Record, *groups: str) -> str:
    """Return the non-empty option groups of a record as JSON, limited to `groups` if given; "" for none."""
    given = {name: held for name, held in record.options.items() if held and (not groups or name in groups)}
    return json.dumps(given, sort_keys=True) if given else ""


def _versions(record: Record) -> str:
    """Return the library versions of a record, as text."""
    return " ".join(f"{name}={version}" for name, version in sorted(record.provenance.get("versions", {}).items()))


def _power(done: Iterable[Record]) -> str:
    found = {standing(run) for run in done}
    return "inconclusive" if "inconclusive" in found else "pass" if "pass" in found else ""


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if there are no values, or one is missing."""
    return None if not values or None in values else round(math.fsum(values) / len(values), 6)  # type: ignore[arg-type]


def largest(values: Sequence[float | None]) -> float | None:
    """Return the largest value, as a mean of guarantees is not a guarantee; None if no values, or one is missing."""
    known = [value for value in values if value is not None]
    return round(max(known), 6) if known and len(known) == len(values) else None


def deviation(values: Sequence[float | None]) -> float | None:
    """Return the sample standard deviation over seeds; None with fewer than two values, or if one is missing."""
    if len(values) < 2 or None in values:
        return None
    known = [value for value in values if value is not None]
    centre = math.fsum(known) / len(known)
    return round(math.sqrt(math.fsum((value - centre) ** 2 for value in known) / (len(known) - 1)), 6)
