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
from typing import Any, Literal, NamedTuple

import orjson

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
from bench.storage.provenance import devices
from bench.storage.records import Audit, Record, described

OTHERS = tuple(subject.prefix for subject in SUBJECTS["classifier"] if subject.prefix not in ("", "teacher_"))
"""Networks whose accuracies records may hold, besides the student and the teacher."""
GUARANTEES: tuple[Literal["claimed"], Literal["accounted"]] = ("claimed", "accounted")
PUBLIC = {"attack_accuracy": "retrieval_accuracy", "judge_accuracy": "retrieval_judge_accuracy"}
"""A metric to the same metric of images that the attacker already has."""


@dataclass(frozen=True)
class Guarantee:
    """A claimed or an accounted epsilon of a run, with its delta and unit; `relation` is "" for a claim."""

    epsilon: float
    delta: float | None
    unit: str
    relation: str


def guarantee_of(record: Record, name: Literal["claimed", "accounted"]) -> Guarantee | None:
    """Return the claimed or the accounted epsilon of a finished run; None without one."""
    found = record.privacy[name]
    if not found:
        return None
    delta, relation = found.get("delta"), found.get("relation") or ""
    return Guarantee(epsilon_from_json(found["epsilon"]), delta, found.get("unit") or "", relation)


@dataclass
class Evaluation:
    """The runs of a release with one attack.

    Attributes:
        release, attack: specs of one of the runs; all are equal except for seeds. `attack` is None without one.
        runs: their records, sorted by seed and hash.
        done: the records of runs that did not fail.
        known: the names of all numbers in these records.
        bounds: the results of audits of these runs; None without any.
        flags: the flags of all these runs.
    """

    key: str
    tier: str
    release: Mapping[str, Any]
    attack: Mapping[str, Any] | None
    runs: list[Record] = field(default_factory=list)
    done: list[Record] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    bounds: audit_bounds.JointBounds | None = None
    flags: str = ""

    @property
    def seeds(self) -> str:
        """The seeds of all runs."""
        return " ".join(str(seed(run)) for run in self.runs)

    def rank(self) -> tuple[int, bool, str, str]:
        """Sort key of evaluations of one release: most seeds with a number first, then those without an attack."""
        return -len(self.done), self.attack is not None, _options(self.runs[0]), self.runs[0].hash

    def mean(self, name: str) -> float | None:
        """Return the mean of a number over seeds; None if a seed has no such number."""
        if name not in self.known:
            return None
        return mean([run.metrics.get(name) for run in self.done])

    def guarantee(self, name: Literal["claimed", "accounted"]) -> Guarantee | None:
        """Return the claimed or the accounted epsilon of the first finished run; None without one."""
        return guarantee_of(self.done[0], name) if self.done else None


def build(
    records: Iterable[Record], audits: Iterable[Audit] = (), *, has_audits: bool = False, name: str = ""
) -> Board:
    """Build the board of the records of one data set; their order does not matter.

    Args:
        audits: end-to-end audits.
        has_audits: the records already hold the results of these audits, as published records do; else the audits of
            each release are looked up.
        name: name of the data set; "" = that of the records.
    """
    records, audits = list(records), list(audits)
    if audits and not has_audits:
        found = audit_bounds.by_release(audits)
        records = [audit_bounds.with_audit_result(record, found) or record for record in records]
    groups: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in _evaluations(records, {audit.hash: audit for audit in audits}):
        # Runs of one release with another kind of account or noise get a separate row
        accounted = [run.privacy["accounted"] or {} for run in evaluation.done[:1]]
        account = [[each.get(name) for name in ("unit", "relation", "delta")] for each in accounted]
        parts = [evaluation.tier, evaluation.release, account, "float32-noise" in evaluation.flags.split()]
        groups[key_of(parts, named="variant" in evaluation.release)].append(evaluation)
    for evaluations in groups.values():
        evaluations.sort(key=Evaluation.rank)
    board = Board(name or (dataset(records[0]) if records else ""), [], [], [])
    for key, evaluations in sorted(groups.items(), key=lambda group: (*_order(group[1][0]), group[0])):
        numbers = _of_release(evaluations[0])
        row = _release_row(board.dataset, key, numbers, evaluations)
        board.releases.append(row)
        for each in evaluations:
            board.attacks.extend(_attack_rows(row, each, numbers, each is evaluations[0]))
            board.runs.extend(_run_rows(row, each, each is evaluations[0]))
    board.attacks.extend(_reference_rows(records, board.dataset))
    return board


def _evaluations(records: Iterable[Record], audits: Mapping[str, Audit]) -> list[Evaluation]:
    """Group the runs that differ only in seeds."""
    found: dict[str, Evaluation] = {}
    for record in records:
        release, attack = record.spec["release"], record.spec["attack"]
        parts = (release, attack, (attack or {}).get("target"))
        key = key_of(record.spec, named=all("variant" in part for part in parts if part))
        if key not in found:
            found[key] = Evaluation(key, record.spec["tier"], release, attack)
        found[key].runs.append(record)
    for each in found.values():
        each.runs.sort(key=lambda run: (seed(run), run.hash))
        each.done = done = [run for run in each.runs if run.status != "failed"]
        each.known = {name for run in done for name in run.metrics}
        each.bounds = audit_bounds.join_audits(done, audits)
        versions = [orjson.dumps(run.provenance.get("versions", {}), option=orjson.OPT_SORT_KEYS) for run in done]
        flags = {flag for run in done for flag in flags_of_record(run)} | {*flags_of_row(versions)}
        each.flags = joined(flags | ({"refuted"} if each.bounds is not None and each.bounds.is_refuted else set()))
    return list(found.values())


def _order(first: Evaluation) -> tuple[str, ...]:
    """Return the sort key of a release by its first evaluation: tier, split, method, variant, setting, networks."""
    release, options = first.release, first.runs[0].options
    setting = described(options | {"attack": {}, "evaluator": {}})
    networks = teacher_of(release["teacher"]), release["student"]
    return first.tier, split_of(release["teacher"]["data"]), release["method"], variant_of(release), setting, *networks


def _release_row(name: str, key: str, numbers: Mapping[str, Numbers], evaluations: Sequence[Evaluation]) -> ReleaseRow:
    """Return the row of a release; `numbers` are those of its first evaluation."""
    first = evaluations[0]
    release, claimed, accounted = first.release, first.guarantee("claimed"), first.guarantee("accounted")
    student = next((run.student for run in first.done if run.student), release["student"])
    bounds = [each.bounds for each in evaluations if each.bounds is not None]
    best = max(bounds, key=lambda each: (each.student, each.teacher), default=None)
    return ReleaseRow(
        release=key,
        tier=first.tier,
        split=split_of(release["teacher"]["data"]),
        method=release["method"],
        variant=variant_of(release),
        version=release["version"],
        teacher=teacher_of(release["teacher"]),
        student=student,
        options=_options(first.runs[0], "method", "teacher", "budget"),
        **{metric: found.value for metric, found in numbers.items() if metric in OF_RELEASE},
        claimed_unit="" if claimed is None else claimed.unit,
        unit="" if accounted is None else accounted.unit,
        relation="" if accounted is None else accounted.relation,
        delta=None if accounted is None else accounted.delta,
        epsilon_lower=None if best is None else best.student,
        accuracy=numbers[ACCURACY].value,
        accuracy_low=numbers[ACCURACY].low,
        accuracy_high=numbers[ACCURACY].high,
        seeds=first.seeds,
        flags=joined(flag for each in evaluations for flag in each.flags.split()),
        dataset=name,
    )


def _attack_rows(
    release: ReleaseRow, evaluation: Evaluation, usual: Mapping[str, Numbers], is_first: bool
) -> list[AttackRow]:
    """Return the measured numbers of one evaluation; numbers of the release only if its rows do not have them already.

    Args:
        usual: `_of_release` of the first evaluation.
    """
    if is_first:
        own = {name: found for name, found in usual.items() if name not in OF_RELEASE}
    else:  # only the numbers that differ
        mine = _of_release(evaluation)
        own = {name: found for name, found in mine.items() if name not in usual or found != usual[name]}
        own |= {name: Numbers() for name in usual if name not in mine}
    of_release = SharedCells(release.release, evaluation.key, seeds=evaluation.seeds, dataset=release.dataset)
    rows = [of_release.row(name, found) for name, found in own.items()]
    attack = evaluation.attack
    if attack is None:
        evaluator = _options(evaluation.runs[0], "evaluator")
        return rows if is_first or not evaluator else [replace(row, options=evaluator) for row in rows]
    verdicts = {standing(run) for run in evaluation.done}
    power = "inconclusive" if "inconclusive" in verdicts else "pass" if "pass" in verdicts else ""
    of_attack = SharedCells(
        release.release,
        evaluation.key,
        attack=attack["attack"],
        variant=variant_of(attack),
        version=attack["version"],
        access=attack["access"],
        options=_options(evaluation.runs[0], "attack", "evaluator"),
        power=power,
        reason=next((run.reason for run in evaluation.done if run.reason), "") if power != "pass" else "",
        seeds=evaluation.seeds,
        dataset=release.dataset,
    )
    scored = [metric.key for metric in metrics().values() if metric.averaged and metric.of != "classifier"]
    scored = [name for name in (*scored, "memorising_auc") if name in evaluation.known]
    measured = [of_attack.row(name, _measured(name, evaluation)) for name in scored]
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


def _of_release(evaluation: Evaluation) -> dict[str, Numbers]:
    """Return the numbers that need no attack, by metric.

    Over seeds they are means, but the accounted epsilon is the largest: a mean is not a guarantee.
    """
    names = [ACCURACY, *(f"{prefix}{ACCURACY}" for prefix in OTHERS if f"{prefix}{ACCURACY}" in evaluation.known)]
    found = {name: _measured(name, evaluation) for name in names}
    claimed, accounted = (
        [None if (each := guarantee_of(run, name)) is None else each.epsilon for run in evaluation.done]
        for name in GUARANTEES
    )
    nats = [information(run).nats for run in evaluation.done]
    values = (mean(claimed), largest(accounted), mean(nats))
    found |= {name: Numbers(value) for name, value in zip(OF_RELEASE, values, strict=True)}
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
    scores = {f"{REFERENCE}_{kind}_attack_accuracy": kind for kind in REFERENCES}
    for record in records:
        for kind in [scores[name] for name in scores.keys() & record.metrics.keys()]:
            place = f"{REFERENCE}/{record.spec['tier']}/{split_of(record.spec['release']['teacher']['data'])}"
            spec = record.spec["attack"] if kind in OWN_REFERENCES else None
            by = ("", "") if spec is None else (str(spec["attack"]), variant_of(spec))
            found[f"{place}/{kind}", *by].append(record)
    scored = [metric.key for metric in metrics().values() if metric.averaged and metric.of == "reconstructions"]
    rows = []
    for (key, attack, variant), of in sorted(found.items()):
        prefix = f"{REFERENCE}_{key.rpartition('/')[2]}_"
        seeds = " ".join(map(str, sorted({seed(one) for one in of})))
        shared = SharedCells(key, "", attack, variant, seeds=seeds, dataset=name)
        numbers = {metric: mean([one.metrics.get(prefix + metric) for one in of]) for metric in scored}
        rows += [shared.row(metric, Numbers(value)) for metric, value in numbers.items() if value is not None]
    return rows


def _options(record: Record, *groups: str) -> str:
    """Return the non-empty option groups of a record as JSON, limited to `groups` if given; "" for none."""
    given = {name: held for name, held in record.options.items() if held and (not groups or name in groups)}
    return json.dumps(given, sort_keys=True) if given else ""


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None without values, or if one is missing."""
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
