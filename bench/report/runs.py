"""What the page of one run shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import leaderboard
from bench.report.command import command, differences, installed, notes
from bench.storage.records import Audit, Record

UTILITY = {
    "teacher_accuracy": "teacher",
    "accuracy": "student, released",
    "ensemble_accuracy": "the teachers' vote, not released",
    "member_accuracy": "one of the teachers, on average",
    "control_accuracy": "control: no teacher asked, same images",
    "evaluator_accuracy": "evaluator, which judges reconstructions",
}
TARGETS = {
    "": "student",
    "teacher_": "teacher",
    "random_": "random net",
    "reference_held_out_": "unseen images",
    "reference_class_mean_": "class means",
    "reference_prior_": "random latents",
    "reference_aux_": "attacker's images",
}
MEASURES = {
    "attack_accuracy": "attack accuracy",
    "attack_accuracy_std": "  deviation over draws",
    "target_accuracy": "the target's own view",
    "inception_score": "inception score",
    "inception_score_std": "  deviation over splits",
    "inception_e6": "  (IS-1) 10⁶",
    "inception_within_class": "  within class",
    "knn_distance": "KNN distance",
    "knn_gap": "  nearer to private than to unseen",
    "feature_distance": "feature distance",
    "fid": "FID",
    "density": "density",
    "coverage": "coverage",
    "ssim": "SSIM",
    "ssim_gap": "  more on private than on unseen",
    "auc": "AUC",
    "tpr_at_1pct": "TPR at FPR 1 %",
    "tpr_at_01pct": "TPR at FPR 0.1 %",
    "balanced_accuracy": "balanced accuracy",
    "membership_epsilon_lower": "epsilon seen (no proof)",
    "queries": "queries",
}
PERCENT = {"attack_accuracy", "attack_accuracy_std", "target_accuracy", "tpr_at_1pct", "tpr_at_01pct"} | {
    "balanced_accuracy"
}
ALONE = {"power_p_teacher": "p-value of the attack on the teacher", "power_p_random": "p-value on the random net"}


def page(record: Record, audits: list[Audit]) -> dict[str, Any]:
    """One run: who, numbers, epsilons, audits, ledger, flags, command, spec and provenance.

    Args:
        audits: those of the run's release.
    """
    release, attack = record.spec["release"], record.spec["attack"]
    return {
        "status": record.status,
        "reason": record.reason,
        "dataset": leaderboard.dataset(record),
        "tier": record.spec["tier"],
        "split": release["teacher"]["data"]["split"],
        "method": release["method"],
        "kind": installed("method").get(release["method"], "unknown"),
        "setting": record.setting,
        "teacher": release["teacher"]["arch"],
        "student": record.student or release["student"],
        "seed": release["seed"],
        "attack": None if attack is None else attack["attack"],
        "access": None if attack is None else attack["access"],
        "utility": _utility(record.metrics),
        "measures": _measures(record.metrics),
        "alone": [[label, record.metrics[key]] for key, label in ALONE.items() if key in record.metrics],
        "missing": sorted(record.missing.items()),
        "epsilons": _epsilons(record.privacy, audits),
        "audits": [audit_line(audit) for audit in audits],
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
    found = set(leaderboard.flags(record)) if record.privacy else set()
    return sorted(found | ({"refuted"} if leaderboard.is_refuted(audits) else set()))


def _interval(metrics: Mapping[str, float | None], key: str) -> list[float | None]:
    return [metrics.get(key), metrics.get(f"{key}.lo"), metrics.get(f"{key}.hi")]


def _utility(metrics: Mapping[str, float | None]) -> list[list[Any]]:
    """(label, value, low, high) of every accuracy on the test set."""
    return [[label, *_interval(metrics, key)] for key, label in UTILITY.items() if key in metrics]


def _measures(metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """What the attack brought, measure by target; a measure that has no label here has its own name."""
    cells: dict[str, dict[str, list[float | None]]] = {}
    for name in metrics:
        if name.endswith((".lo", ".hi")) or name in UTILITY or name in ALONE:
            continue
        prefix = max((p for p in TARGETS if name.startswith(p)), key=len)
        cells.setdefault(name[len(prefix) :], {})[prefix] = _interval(metrics, name)
    order = [key for key in MEASURES if key in cells] + sorted(set(cells) - set(MEASURES))
    targets = [prefix for prefix in TARGETS if any(prefix in row for row in cells.values())]
    return {
        "targets": [TARGETS[prefix] for prefix in targets],
        "rows": [
            [MEASURES.get(key, key), key in PERCENT, [cells[key].get(prefix) for prefix in targets]] for key in order
        ],
    }


def _epsilons(privacy: Mapping[str, Any], audits: list[Audit]) -> list[dict[str, Any]]:
    """A line for the claim, for every unit accounted, and for the strongest audit."""
    if not privacy:
        return []
    claim = privacy["claimed"]
    lines: list[dict[str, Any]] = [{"what": "claimed", "by": "the method's paper promises nothing"}]
    if claim is not None:
        by = claim.get("source", "") + (" (disputed)" if leaderboard.dispute(claim) else "")
        lines = [{"what": "claimed", **_promise(claim), "by": by}]
    for _, found in sorted(privacy["accounted_units"].items()):
        lines.append({"what": "accounted", **_promise(found), "by": f"{found['accountant']}, {found['relation']}"})
    if audits:
        best = leaderboard.strongest(audits)
        by = (
            f"an attack with {best.audit.canaries['number']} canaries: at least {best.teacher:.3g} on the undefended "
            f"teacher, {best.null:.3g} without canaries, and {best.ceiling:.3g} at most"
        )
        own = {"epsilon": best.student, "delta": best.audit.delta, "unit": "example"}
        lines.append({"what": "audited", **own, "by": by})
    return lines


def _promise(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("epsilon", "delta", "unit")}


def audit_line(audit: Audit) -> dict[str, Any]:
    """One end-to-end audit: what was guessed right on the student, on the teacher and in the null run."""
    return {
        "hash": audit.hash,
        "method": audit.spec["release"]["method"],
        "setting": differences(audit.spec),
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


def event(found: Mapping[str, Any]) -> str:
    """A ledger's event in one line, such as "PoissonSampled(sampling_probability 0.1, Gaussian(noise_multiplier 2))".

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
    """The spec with the attack's target named "release" where it is the release, which stands beside it."""
    attack = spec["attack"]
    if attack is None or attack["target"] != spec["release"]:
        return spec
    return spec | {"attack": attack | {"target": "release"}}
