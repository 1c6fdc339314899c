"""Print every metric of a run in tables, for `bench run --details`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from bench import registry
from bench.boards import information
from bench.cli.result import NOISE, VARIANTS
from bench.config import Departure, departures
from bench.core import records
from bench.core.epsilon import format_epsilon
from bench.core.privacy import PrivacyReport
from bench.metrics.metric import REFERENCE, SUBJECTS, TARGETS, Metric, Subject
from bench.metrics.table import measured, metrics
from bench.pipeline.run import Outcome
from bench.pipeline.settings import Settings
from bench.privacy.information import Information
from bench.progress import out, print_line
from bench.storage.records import RECORD

WIDE = 90
"""Length of the list of changes in the line of a variant; further ones are counted."""
INTERVAL = "[95 % interval]"
Numbers = Mapping[str, float | None]
"""Metrics of a record by key; the bounds of intervals have the keys KEY.lo and KEY.hi."""


def show_details(outcome: Outcome, settings: Settings) -> None:
    """Print every metric of the run, with intervals and baselines."""
    record = records.decode(outcome.record.to_json().encode(), str(outcome.path / RECORD))
    release, attack, privacy = record.spec.release, record.spec.attack, record.privacy
    print_line(describe_variant("method", release.method, release.variant))
    if attack is not None:
        print_line("attack " + describe_variant("attack", attack.attack, attack.variant))
    images = (record.provenance.model_extra or {}).get("images", {})
    if "shape" in images:  # older records do not have it
        channels, height, width = (int(length) for length in images["shape"].split("x"))
        colour = "grey (1 channel)" if channels == 1 else "RGB (3 channels)"
        parts = [f"{images[part]:,} {part}" for part in ("private", "aux", "public", "test") if part in images]
        print_line(f"images: {height}x{width} pixels, {colour}; {', '.join(parts)}")
    out.print(_utility_table(record, settings.teacher))
    if privacy is not None:
        out.print(_privacy_table(privacy))
        for line in describe_account(privacy):
            print_line(line)
    print_line(describe_information(information(outcome.record)))
    if measured(record.metrics, "reconstructions", "membership"):
        out.print(_attack_table(record.metrics, settings.attack or ""))
        if any(key.startswith(REFERENCE) for key in record.metrics):  # images made without access to a target
            subjects = [
                subject
                for subject in SUBJECTS["reconstructions"]
                if subject not in TARGETS and any(key.startswith(subject.prefix) for key in record.metrics)
            ]
            shown = measured(record.metrics, "reconstructions")
            out.print(_metric_table("without a target", record.metrics, shown, subjects))
        print_line(f"power test of the attack: {'passed' if record.status == 'ok' else record.reason}")
    elif record.status == "skipped":
        print_line(f"skipped: {record.reason}")


def describe_variant(kind: str, name: str, variant: str) -> str:
    """Return a line on the variant of a method or an attack, with as many changes from the paper as fit."""
    if variant != "working":
        return f"variant {variant}: {VARIANTS[variant]}"
    changed: Sequence[Departure] = departures(registry.load(kind, name, variant))
    shown = ""
    for number, departure in enumerate(changed):
        if shown and len(shown) + len(departure.what) > WIDE:
            shown += f"; {len(changed) - number} more"
            break
        shown += f"; {departure.what}" if shown else departure.what
    plural = "s" * (len(changed) != 1)
    return f"variant {variant}: {len(changed)} change{plural} from the paper ({shown}), see `bench show {name}`"


def _utility_table(record: records.RunRecord, teacher: str) -> Table:
    accuracy, networks = metrics()["accuracy"], {"teacher_": teacher, "": record.student}
    table = _table("accuracy on the test set", "", INTERVAL)
    for subject in SUBJECTS[accuracy.of]:
        if record.metrics.get(f"{subject.prefix}{accuracy.key}") is not None:
            cell = format_cell(record.metrics, accuracy, subject)
            table.add_row(subject.label, networks.get(subject.prefix, ""), cell)
    return table


def _privacy_table(privacy: PrivacyReport) -> Table:
    table, claim = _table("epsilon", "value", "delta", "protects one", "by"), privacy.claimed
    if claim is None:
        table.add_row("claimed", "none", "", "", "the method's paper has no epsilon")
    else:
        table.add_row("claimed", format_epsilon(claim.epsilon), f"{claim.delta:g}", claim.unit, claim.source)
    for unit, found in sorted(privacy.accounted_units.items()):
        by = f"{found.accountant}, {found.relation}"
        table.add_row("accounted", format_epsilon(found.epsilon), f"{found.delta:g}", unit, by)
    return table


def describe_account(privacy: PrivacyReport) -> list[str]:
    """Return the reasons why accounted epsilons are infinite or not exact; and the noise, if one is finite."""
    accounts = sorted(privacy.accounted_units.items())
    lines = [f"accounted per {unit}: {found.note}" for unit, found in accounts if found.note]
    if any(math.isfinite(found.epsilon) for _, found in accounts):
        lines.append(NOISE[privacy.noise])
    return lines


def describe_information(found: Information) -> str:
    """Return the information bound of all responses, and the accuracy, as a mean over classes, that it permits."""
    if found.nats is None:
        return f"information: unknown; {found.why}"
    if math.isinf(found.nats):
        return f"information: infinite; {found.why}"
    line, limit = f"information: all responses carry at most {_plain(found.nats)} nats", found.most_accuracy
    if limit is None:
        return line
    return f"{line}, enough for " + (
        "any accuracy" if limit == 1 else f"a mean accuracy of at most {100 * limit:.2f} %"
    )


def _attack_table(numbers: Numbers, attack: str) -> Table:
    """Return the metrics of student, teacher and untrained network."""
    shown = measured(numbers, "reconstructions", "retrieval", "membership")
    subjects = [s for s in SUBJECTS["membership"] if any(numbers.get(s.prefix + m.key) is not None for m in shown)]
    table = _metric_table(f"{attack} on", numbers, shown, subjects)
    if (queries := numbers["queries"]) is not None:
        table.add_row("queries", _plain(queries))
    return table


def _metric_table(title: str, numbers: Numbers, shown: Sequence[Metric], subjects: Sequence[Subject]) -> Table:
    """Return a table with a row per metric and a column per subject; rows without a number are left out."""
    table = _table(title, *(subject.label for subject in subjects))
    for metric in shown:
        cells = [format_cell(numbers, metric, subject) for subject in subjects]
        if metric.averaged and set(cells) != {"-"}:
            table.add_row(f"{metric.label}, {metric.unit}" if metric.unit else metric.label, *cells)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def format_cell(numbers: Numbers, metric: Metric, subject: Subject) -> str:
    """Format a number with its interval, if it has one; a share in percent; "-" for a missing number."""
    key = subject.prefix + metric.key
    value, low, high = (numbers.get(f"{key}{bound}") for bound in ("", ".lo", ".hi"))
    if value is None:
        return "-"
    if metric.kind == "share":
        interval = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
        return f"{value:.2%}{interval}"
    return _plain(value) + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def _plain(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
