"""The content of a run's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import boards
from bench.boards.flags import standing
from bench.core.epsilon import epsilon_from_json
from bench.metrics.metric import SUBJECTS
from bench.metrics.table import BOUNDS, entry, metrics
from bench.privacy.claims import dispute
from bench.report.command import command, differences, installed, notes
from bench.report.releases import distinguish
from bench.storage.records import Audit, Record

TARGETS = {subject.prefix: subject.label for of in ("reconstructions", "membership") for subject in SUBJECTS[of]}
OF_ATTACKS = ("reconstructions", "retrieval", "membership")
"""The kinds of metrics (`Metric.of`) that an attack has."""
Interval = tuple[float | None, float | None, float | None]
"""A number with the bounds of its 95 % interval."""
Metrics = Mapping[str, float | None]
MetricRow = tuple[str, bool, str, list[Interval | None]]


@dataclass(frozen=True)
class Measures:
    """The metrics of an attack on each of its targets.

    Attributes:
        rows: label, whether the metric is a share, its explanation, and one cell per target.
    """

    targets: list[str]
    rows: list[MetricRow]


@dataclass(frozen=True)
class EpsilonLine:
    """An epsilon: claimed, accounted or audited, with its source; None without a claim."""

    what: str
    by: str
    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class InformationLine:
    """The upper bound in nats on all responses, its reason, and the accuracy that it permits.

    `nats` is infinite without a bound, and None where it is not known.
    """

    nats: float | None
    why: str
    most: float | None


@dataclass(frozen=True)
class AuditLine:
    """An end-to-end audit.

    Attributes:
        method: the method with its variant.
        apart: fields that distinguish it from other audits of the same method, setting and data set.
        lines: network, correct guesses, all guesses, lower bound, accuracy.
    """

    hash: str
    method: str
    setting: str
    dataset: str
    apart: str
    verdict: str
    powerful: bool
    ceiling: float
    canaries: int
    reasons: list[str]
    lines: list[tuple[str, int, int, float, float]]


@dataclass(frozen=True)
class RunPage:
    """The page of one run.

    Attributes:
        utility: label, value and interval of every accuracy on the test set.
        others: label and value of every number that belongs to no target.
        missing: measurements that could not be computed, with their reasons.
        ledger: unit, description, event and count of every use of the private data.
        solved: options that were solved for the budget.
        notes: sentences that a reader of the command must know.
        spec: the spec of the run; the target of its attack is replaced by "release" if it is the release.
        seeds: seed and hash of the runs of the same result.
        pictures: kind and file of its pictures; None without any.
    """

    status: str
    reason: str
    dataset: str
    tier: str
    split: str
    method: str
    variant: str
    kind: str
    setting: str
    teacher: str
    student: str
    seed: int
    attack: str | None
    attack_variant: str | None
    access: str | None
    utility: list[tuple[str, float | None, float | None, float | None]]
    measures: Measures
    others: list[tuple[str, float | None]]
    missing: list[tuple[str, str]]
    epsilons: list[EpsilonLine]
    information: InformationLine
    audits: list[AuditLine]
    ledger: list[tuple[str, str, str, int]]
    noise: str
    solved: list[tuple[str, float]]
    flags: list[str]
    command: str
    notes: list[str]
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any]
    seeds: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[tuple[str, str]] | None = None


def page(record: Record, audits: Sequence[Audit]) -> RunPage:
    """Return the page of one run.

    Args:
        audits: the audits of the run's release.
    """
    release, attack = record.spec["release"], record.spec["attack"]
    is_outdated = record.status == "ok" and standing(record) == "inconclusive"
    information = boards.information(record)
    flags = set(boards.flags(record)) if record.privacy else set()
    events = record.privacy.get("events", [])
    own_target = attack is not None and attack["target"] == release
    return RunPage(
        status="inconclusive" if is_outdated else record.status,
        reason="It passed the test of its time, and does not pass today's." if is_outdated else record.reason,
        dataset=boards.dataset(record),
        tier=record.spec["tier"],
        split=release["teacher"]["data"]["split"],
        method=release["method"],
        variant=release.get("variant", "printed"),
        kind=installed("method").get(release["method"], "unknown"),
        setting=record.setting,
        teacher=release["teacher"]["arch"],
        student=record.student or release["student"],
        seed=release["seed"],
        attack=None if attack is None else attack["attack"],
        attack_variant=None if attack is None else attack.get("variant", "printed"),
        access=None if attack is None else attack["access"],
        utility=[
            (subject.label, *_interval(record.metrics, f"{subject.prefix}accuracy"))
            for subject in SUBJECTS["classifier"]
            if f"{subject.prefix}accuracy" in record.metrics
        ],
        measures=_measures(record.metrics),
        others=[
            (metric.label, record.metrics[metric.key])
            for metric in metrics().values()
            if metric.of == "run" and metric.key in record.metrics
        ],
        missing=missing_measures(record.missing),
        epsilons=_epsilons(record.privacy, audits),
        information=InformationLine(information.nats, information.why, information.most_accuracy),
        audits=audit_lines(audits),
        ledger=[(entry["unit"], entry["why"], format_event(entry["event"]), entry["count"]) for entry in events],
        noise=release["noise"],
        solved=sorted((record.privacy.get("solved") or {}).items()),
        flags=sorted(flags | ({"refuted"} if boards.is_refuted(audits) else set())),
        command=command(record),
        notes=notes(record),
        spec=record.spec | {"attack": attack | {"target": "release"}} if own_target else record.spec,
        provenance=record.provenance,
    )


def missing_measures(missing: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return missing measurements with their reasons; targets with the same reason share one line."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, reason in sorted(missing.items()):
        known = entry(name)
        label, target = (name, "") if known is None else (known.metric.label, known.subject.label)
        found.setdefault((label, reason), []).extend([target] if target else [])
    return [
        (f"{label} of {', '.join(targets)}" if targets else label, reason)
        for (label, reason), targets in found.items()
    ]  # fmt: skip


def _interval(numbers: Metrics, key: str) -> Interval:
    return numbers.get(key), numbers.get(f"{key}.lo"), numbers.get(f"{key}.hi")


def _measures(numbers: Metrics) -> Measures:
    """Return the attack's metrics by measure and target; metrics without a label keep their own name."""
    cells: dict[str, dict[str, Interval]] = {}
    for name in numbers:
        found = entry(name)
        if found is None and not name.endswith(BOUNDS):
            prefix = max((prefix for prefix in TARGETS if name.startswith(prefix)), key=len)
            cells.setdefault(name.removeprefix(prefix), {})[prefix] = _interval(numbers, name)
        elif found is not None and found.metric.of in OF_ATTACKS and not found.bound:
            cells.setdefault(found.metric.key, {})[found.subject.prefix] = _interval(numbers, name)
    known = metrics()
    targets = [prefix for prefix in TARGETS if any(prefix in row for row in cells.values())]
    rows: list[MetricRow] = []
    for key in [key for key in known if key in cells] + sorted(set(cells) - set(known)):
        label, is_share, explanation = key, False, ""
        if key in known:
            metric = known[key]
            label = metric.label + (f", {metric.unit}" if metric.unit else "")
            is_share, explanation = metric.kind == "share", metric.explanation
        rows.append((label, is_share, explanation, [cells[key].get(prefix) for prefix in targets]))
    return Measures([TARGETS[prefix] for prefix in targets], rows)


def _epsilons(privacy: Mapping[str, Any], audits: Sequence[Audit]) -> list[EpsilonLine]:
    """Return a line for the claim, for every unit accounted, and for the strongest audit."""
    if not privacy:
        return []
    claim = privacy["claimed"]
    if claim is None:
        found = [EpsilonLine("claimed", "the method's paper promises nothing")]
    else:
        by = claim.get("source", "") + (" (disputed)" if dispute(privacy) else "")
        found = [EpsilonLine("claimed", by, epsilon_from_json(claim["epsilon"]), claim["delta"], claim["unit"])]
    for _, each in sorted(privacy["accounted_units"].items()):
        by = f"{each['accountant']}, {each['relation']}"
        found.append(EpsilonLine("accounted", by, epsilon_from_json(each["epsilon"]), each["delta"], each["unit"]))
    if audits:
        best = boards.strongest(audits)
        by = (
            f"an attack with {best.audit.canaries['number']} canaries: at least {best.teacher:.3g} on the unprotected "
            f"teacher, {best.null:.3g} without canaries, and {best.ceiling:.3g} at most"
        )
        found.append(EpsilonLine("audited", by, best.student, best.audit.delta, "example"))
    return found


def audit_lines(audits: Sequence[Audit]) -> list[AuditLine]:
    """Return audits, each with fields that set it `apart` from those of the same method, setting and data set."""
    names, omitted = [], []
    for audit in audits:
        release = audit.spec["release"]
        method = f"{release['method']} ({release.get('variant', 'printed')})"
        names.append((method, differences(audit), boards.dataset(audit)))
        omitted.append({
            "teacher": f"teacher={release['teacher']['arch']}",
            "student": f"student={release['student']}",
            "version": f"version {release['version']}",
            "seed": f"seed {release['seed']}",
            "tier": f"tier {audit.spec['tier']}",
            "noise": f"{release['noise']} noise",
            "canaries": f"{audit.canaries['number']} canaries",
        })  # fmt: skip
    return [
        AuditLine(
            audit.hash, method, setting, dataset, apart, audit.verdict, audit.powerful, audit.ceiling,
            audit.canaries["number"], audit.reasons,
            [
                (name, line["correct"], line["guesses"], line["epsilon_lower"], line["accuracy"])
                for name, line in sorted(audit.lines.items())
            ],
        )
        for audit, (method, setting, dataset), apart in zip(audits, names, distinguish(names, omitted), strict=True)
    ]  # fmt: skip


def format_event(event: Mapping[str, Any]) -> str:
    """Format a ledger's event in one line, such as "PoissonSampled(sampling_probability 0.1, Gaussian(noise_multiplier
    2))".

    Field names are dp-accounting's.
    """
    parts = [_format_field(key, value) for key, value in event.items() if key != "name"]
    name = str(event.get("name", "event")).removesuffix("DpEvent")
    return f"{name}({', '.join(parts)})" if parts else name


def _format_field(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return format_event(value)
    if isinstance(value, list):
        return "[" + ", ".join(_format_field("", one) for one in value) + "]"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{key} {shown}".strip()
