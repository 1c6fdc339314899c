"""The table at the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from bench.leaderboard import dataset, flags, seed
from bench.pipeline.run import Outcome
from bench.pipeline.settings import Settings
from bench.privacy.budget import INFINITE
from bench.progress import out
from bench.storage.records import RECORD, Record

COLUMNS = (("student", ""), ("teacher", "teacher_"), ("random net", "random_"))


def show(outcome: Outcome, settings: Settings) -> None:
    """Print what a reader needs to judge the run, and where everything lies."""
    record = outcome.record
    name = f"{settings.method} on {dataset(record)}, tier {settings.tier}, seed {seed(record)}"
    name += f", {record.setting}" if record.setting else ""
    out.print(f"\n[bold]{name}[/bold]" + ("  (cached)" if outcome.cached else ""))
    out.print(_utility(record, settings))
    out.print(_privacy(record.privacy))
    for note in _notes(record.privacy):
        out.print(note, markup=False, soft_wrap=True)
    if "attack_accuracy" in record.metrics or "auc" in record.metrics:
        attacked = _membership if "auc" in record.metrics else _attack
        out.print(attacked(record.metrics, settings))
        if "reference_aux_attack_accuracy" in record.metrics:
            out.print(_references(record.metrics))
        out.print(f"power gate: {'pass' if record.status == 'ok' else record.reason}", markup=False, soft_wrap=True)
    elif record.status == "skipped":
        out.print(f"skipped: {record.reason}", markup=False, soft_wrap=True)
    for flag in flags(record):
        out.print(f"flag: {flag}", markup=False)
    _paths(outcome, settings.out / "leaderboards" / f"{dataset(record)}.csv")


def _share(metrics: dict[str, Any], key: str) -> str:
    if metrics.get(key) is None:
        return "-"
    return f"{metrics[key]:.2%} [{100 * metrics[f'{key}.lo']:.1f}, {100 * metrics[f'{key}.hi']:.1f}]"


def _utility(record: Record, settings: Settings) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("accuracy on the test set", "", "[95 % interval]"):
        table.add_column(column)
    table.add_row("teacher", settings.teacher, _share(record.metrics, "teacher_accuracy"))
    table.add_row("student", record.student, _share(record.metrics, "accuracy"))
    for name, what in (("ensemble", "the teachers' vote, not released"), ("control", "no teachers, same images")):
        if f"{name}_accuracy" in record.metrics:
            table.add_row(name, what, _share(record.metrics, f"{name}_accuracy"))
    table.add_row("evaluator", "", _share(record.metrics, "evaluator_accuracy"))
    return table


def _privacy(privacy: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("epsilon", "value", "delta", "protects one", "by"):
        table.add_column(column)
    claim = privacy["claimed"]
    if claim is None:
        table.add_row("claimed", "none", "", "", "the method's paper promises nothing")
    else:
        table.add_row("claimed", _epsilon(claim), f"{claim['delta']:g}", claim["unit"], claim["source"])
    for unit, found in sorted(privacy["accounted_units"].items()):
        table.add_row(
            "accounted", _epsilon(found), f"{found['delta']:g}", unit, f"{found['accountant']}, {found['relation']}"
        )
    return table


def _notes(privacy: dict[str, Any]) -> list[str]:
    """Why an accounted epsilon is infinite, or no exact composition, a line each; older records do not say."""
    found = sorted(privacy["accounted_units"].items())
    return [f"accounted per {unit}: {part['note']}" for unit, part in found if part.get("note")]


def _epsilon(found: dict[str, Any]) -> str:
    return f"{found['epsilon']:.4g}" if found["epsilon"] != INFINITE else "infinite"


REFERENCES = {
    "held_out": "unseen image",
    "class_mean": "class mean",
    "prior": "random latent",
    "aux": "attacker's image",
}
INVERSION = {
    "target accuracy": "target_accuracy",
    "inception score": "inception_score",
    "  (IS-1) x 10^6": "inception_e6",
    "  within class": "inception_within_class",
    "KNN distance": "knn_distance",
    "  nearer to private": "knn_gap",
    "FID": "fid",
    "density": "density",
    "coverage": "coverage",
    "SSIM": "ssim",
    "  more on private": "ssim_gap",
    "without a start": "without_start",
}


def _attack(metrics: dict[str, Any], settings: Settings) -> Table:
    """Student, teacher and random net."""
    table = Table(box=None, header_style="bold")
    for column in (f"{settings.attack} on", *(name for name, _ in COLUMNS)):
        table.add_column(column)
    table.add_row("attack accuracy", *[_share(metrics, f"{prefix}attack_accuracy") for _, prefix in COLUMNS])
    prefixes = [prefix for _, prefix in COLUMNS]
    for label, key in INVERSION.items():
        if any(metrics.get(prefix + key) is not None for prefix in prefixes):
            table.add_row(label, *[_plain(metrics.get(prefix + key)) for prefix in prefixes])
    table.add_row("queries", _plain(metrics["queries"]))
    return table


def _references(metrics: dict[str, Any]) -> Table:
    """What images score that no target was asked about."""
    shown = {name: label for name, label in REFERENCES.items() if f"reference_{name}_attack_accuracy" in metrics}
    table = Table(box=None, header_style="bold")
    for column in ("no target asked", *shown.values()):
        table.add_column(column)
    for label, key in {"attack accuracy": "attack_accuracy", **INVERSION}.items():
        values = [metrics.get(f"reference_{name}_{key}") for name in shown]
        if any(value is not None for value in values):
            table.add_row(label, *[_plain(value) for value in values])
    return table


MEMBERSHIP = {
    "AUC": "auc",
    "TPR at FPR 1 %": "tpr_at_1pct",
    "TPR at FPR 0.1 %": "tpr_at_01pct",
    "balanced accuracy": "balanced_accuracy",
}


def _membership(metrics: dict[str, Any], settings: Settings) -> Table:
    """Student, teacher and random net, shares with their 95 % intervals."""
    table = Table(box=None, header_style="bold")
    for column in (f"{settings.attack} on", *(name for name, _ in COLUMNS)):
        table.add_column(column)
    for label, key in MEMBERSHIP.items():
        table.add_row(label, *[_share(metrics, prefix + key) for _, prefix in COLUMNS])
    lower = [_plain(metrics[f"{prefix}membership_epsilon_lower"]) for _, prefix in COLUMNS]
    table.add_row("epsilon seen (no proof)", *lower)
    table.add_row("queries", _plain(metrics["queries"]), "", "")
    return table


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _paths(outcome: Outcome, board: Path) -> None:
    lines = {"record": outcome.path / RECORD, "board": board}
    lines |= {name: outcome.path / file for name, file in sorted(outcome.record.artifacts.items())}
    for name, path in lines.items():
        out.print(f"{name:<16} {path}", markup=False, soft_wrap=True)
