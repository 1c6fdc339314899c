"""The content of a run's page, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import boards
from bench.boards.flags import standing
from bench.metrics.metric import SUBJECTS, Metric
from bench.metrics.table import BOUNDS, entry
from bench.metrics.table import metrics as known
from bench.privacy.claims import dispute
from bench.report.command import command, differences, installed, notes
from bench.report.names import apart
from bench.storage.records import Audit, Record

TARGETS = {subject.prefix: subject.label for of in ("reconstructions", "membership") for subject in SUBJECTS[of]}


def page(record: Record, audits: list[Audit]) -> dict[str, Any]:
    """Return the page of one run: name, numbers, epsilons, audits, ledger, flags, command, spec and provenance.

    Args:
        audits: the audits of the run's release.
    """
    release, attack = record.spec["release"], record.spec["attack"]
    outgrown = record.status == "ok" and standing(record) == "inconclusive"
    return {
        "status": "inconclusive" if outgrown else record.status,
        "reason": "It met the gate of its day, and does not meet today's." if outgrown else record.reason,
        "dataset": boards.dataset(record),
        "tier": record.spec["tier"],
        "split": release["teacher"]["data"]["split"],
        "method": release["method"],
        "variant": release.get("variant", "printed"),
        "kind": installed("method").get(release["method"], "unknown"),
        "setting": record.setting,
        "teacher": release["teacher"]["arch"],
        "student": record.student or release["student"],
        "seed": release["seed"],
        "attack": None if attack is None else attack["attack"],
        "attack_variant": None if attack is None else attack.get("variant", "printed"),
        "access": None if attack is None else attack["access"],
        "utility": _utility(record.metrics),
        "measures": _measures(record.metrics),
        "alone": _alone(record.metrics),
        "missing": _missing(record.missing),
        "epsilons": _epsilons(record.privacy, audits),
        "information": _information(record),
        "audits": audit_lines(audits),
        "ledger": [
            [entry["unit"], entry["why"], event(entry["event"]), entry["count"]]
            for entry in record.privacy.get("events", [])
        ],
        "noise": release["noise"],
        "solved": sorted((record.privacy.get("solved") or {}).items()),
        "flags": _flags(record, audits),
        "command": command(record),
        "notes": notes(record),
        "spec": _without_target(record.spec),
        "provenance": record.provenance,
    }


def _flags(record: Record, audits: list[Audit]) -> list[str]:
    found = set(boards.flags(record)) if record.privacy else set()
    return sorted(found | ({"refuted"} if boards.is_refuted(audits) else set()))


def _missing(missing: Mapping[str, str]) -> list[list[str]]:
    """Return missing measurements with their reasons; targets with the same reason share one line."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, reason in sorted(missing.items()):
        known = entry(name)
        label, whom = (name, "") if known is None else (known.metric.label, known.subject.label)
        found.setdefault((label, reason), []).extend([whom] if whom else [])
    return [[f"{label} of {', '.join(whom)}" if whom else label, reason] for (label, reason), whom in found.items()]


def _interval(metrics: Mapping[str, float | None], key: str) -> list[float | None]:
    return [metrics.get(key), metrics.get(f"{key}.lo"), metrics.get(f"{key}.hi")]


def _utility(metrics: Mapping[str, float | None]) -> list[list[Any]]:
    """Return (label, value, low, high) of every accuracy on the test set."""
    keys = {f"{subject.prefix}accuracy": subject.label for subject in SUBJECTS["classifier"]}
    return [[label, *_interval(metrics, key)] for key, label in keys.items() if key in metrics]


def _alone(metrics: Mapping[str, float | None]) -> list[list[Any]]:
    """Return (label, value) of every number of the run that belongs to no target."""
    return [[metric.label, metrics[metric.key]] for metric in known().values() if _of_run(metric, metrics)]


def _of_run(metric: Metric, metrics: Mapping[str, float | None]) -> bool:
    return metric.of == "run" and metric.key in metrics


def _measures(metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the attack's metrics by measure and target; metrics without a label keep their own name."""
    cells: dict[str, dict[str, list[float | None]]] = {}
    for name in metrics:
        found = entry(name)
        if found is None and not name.endswith(BOUNDS):
            prefix = max((prefix for prefix in TARGETS if name.startswith(prefix)), key=len)
            cells.setdefault(name.removeprefix(prefix), {})[prefix] = _interval(metrics, name)
        elif found is not None and found.metric.of in ("reconstructions", "floor", "membership") and not found.bound:
            cells.setdefault(found.metric.key, {})[found.subject.prefix] = _interval(metrics, name)
    order = [key for key in known() if key in cells] + sorted(set(cells) - set(known()))
    targets = [prefix for prefix in TARGETS if any(prefix in row for row in cells.values())]
    rows = [[*_described(key), [cells[key].get(prefix) for prefix in targets]] for key in order]
    return {"targets": [TARGETS[prefix] for prefix in targets], "rows": rows}


def _described(key: str) -> tuple[str, bool, str]:
    """Return label, whether it is a share, and explanation."""
    metric = known().get(key)
    if metric is None:
        return key, False, ""
    return metric.label + (f", {metric.unit}" if metric.unit else ""), metric.kind == "share", metric.explanation


def _epsilons(privacy: Mapping[str, Any], audits: list[Audit]) -> list[dict[str, Any]]:
    """Return a line for the claim, for every unit accounted, and for the strongest audit."""
    if not privacy:
        return []
    claim = privacy["claimed"]
    lines: list[dict[str, Any]] = [{"what": "claimed", "by": "the method's paper promises nothing"}]
    if claim is not None:
        by = claim.get("source", "") + (" (disputed)" if dispute(privacy) else "")
        lines = [{"what": "claimed", **_promise(claim), "by": by}]
    for _, found in sorted(privacy["accounted_units"].items()):
        lines.append({"what": "accounted", **_promise(found), "by": f"{found['accountant']}, {found['relation']}"})
    if audits:
        best = boards.strongest(audits)
        by = (
            f"an attack with {best.audit.canaries['number']} canaries: at least {best.teacher:.3g} on the undefended "
            f"teacher, {best.null:.3g} without canaries, and {best.ceiling:.3g} at most"
        )
        own = {"epsilon": best.student, "delta": best.audit.delta, "unit": "example"}
        lines.append({"what": "audited", **own, "by": by})
    return lines


def _information(record: Record) -> dict[str, Any]:
    """Return the upper bound in nats on all responses ("inf" without a bound, None if unknown), the accuracy that it
    permits, and the reason."""
    found = boards.information(record)
    return {name: value for name, value in found.to_json().items() if name != "classes"} | {"most": found.most_accuracy}


def _promise(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("epsilon", "delta", "unit")}


def audit_line(audit: Audit) -> dict[str, Any]:
    """Return one end-to-end audit: correct guesses on the student, on the teacher and in the null run."""
    release = audit.spec["release"]
    return {
        "hash": audit.hash,
        "method": f"{release['method']} ({release.get('variant', 'printed')})",
        "setting": differences(audit.spec),
        "dataset": boards.dataset(audit),
        "verdict": audit.verdict,
        "powerful": audit.powerful,
        "ceiling": audit.ceiling,
        "canaries": audit.canaries["number"],
        "reasons": audit.reasons,
        "lines": [
            [name, line["correct"], line["guesses"], line["epsilon_lower"], line["accuracy"]]
            for name, line in sorted(audit.lines.items())
        ],
    }


def audit_lines(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Return audits, each with fields that set it `apart` from those of the same method, setting and data set."""
    found = [audit_line(audit) for audit in audits]
    names = [(line["method"], line["setting"], line["dataset"]) for line in found]
    told = apart(names, [_audited(audit) for audit in audits])
    return [line | {"apart": words} for line, words in zip(found, told, strict=True)]


def _audited(audit: Audit) -> dict[str, str]:
    release = audit.spec["release"]
    return {
        "teacher": f"teacher={release['teacher']['arch']}",
        "student": f"student={release['student']}",
        "version": f"version {release['version']}",
        "seed": f"seed {release['seed']}",
        "tier": f"tier {audit.spec['tier']}",
        "noise": f"{release['noise']} noise",
        "canaries": f"{audit.canaries['number']} canaries",
    }


def event(found: Mapping[str, Any]) -> str:
    """Format a ledger's event in one line, such as "PoissonSampled(sampling_probability 0.1, Gaussian(noise_multiplier
    2))".

    Field names are dp-accounting's.
    """
    parts = [_part(key, value) for key, value in found.items() if key != "name"]
    name = str(found.get("name", "event")).removesuffix("DpEvent")
    return f"{name}({', '.join(parts)})" if parts else name


def _part(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return event(value)
    if isinstance(value, list):
        return "[" + ", ".join(_part("", one) for one in value) + "]"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{key} {shown}".strip()


def _without_target(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with "release" as the attack's target if it is the release, which the page shows separately."""
    attack = spec["attack"]
    if attack is None or attack["target"] != spec["release"]:
        return spec
    return spec | {"attack": attack | {"target": "release"}}
