"""Print every metric of a run in tables, for `bench run --details`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench import registry
from bench.boards import information
from bench.config import Departure, departures
from bench.metrics.metric import REFERENCE, SUBJECTS, TARGETS, Metric, Subject
from bench.metrics.table import measured, metrics
from bench.pipeline.run import Outcome
from bench.pipeline.settings import Settings
from bench.privacy.budget import INFINITE
from bench.privacy.information import Information
from bench.progress import out
from bench.storage.records import Record

WIDE = 90
"""Length of the list of departures in the line of a variant; further ones are counted."""
INTERVAL = "[95 % interval]"
NOISE = {
    "seeded": "seeded; an accounted epsilon holds only for those who do not have the seed, which the record shows: a "
    "release needs --noise os",
    "os": "from the system's entropy; no seed repeats it",
}
"""Sources of noise, and their meaning for the epsilon."""


def show_details(outcome: Outcome, settings: Settings) -> None:
    """Print every metric of the run, with intervals and baselines."""
    record = outcome.record
    for line in [*_variants(record.spec), *_images(record)]:
        out.print(line, markup=False, soft_wrap=True)
    out.print(_utility(record, settings))
    out.print(_privacy(record.privacy))
    for note in _notes(record.privacy):
        out.print(note, markup=False, soft_wrap=True)
    out.print(informed(information(record)), markup=False, soft_wrap=True)
    if measured(record.metrics, "reconstructions", "membership"):
        out.print(_attack(record.metrics, settings))
        if any(key.startswith(REFERENCE) for key in record.metrics):
            out.print(_references(record.metrics))
        out.print(f"power gate: {'pass' if record.status == 'ok' else record.reason}", markup=False, soft_wrap=True)
    elif record.status == "skipped":
        out.print(f"skipped: {record.reason}", markup=False, soft_wrap=True)


def _images(record: Record) -> list[str]:
    """Return the shape and the number of the images; older records do not have the shape."""
    found = record.provenance.get("images", {})
    if "shape" not in found:
        return []
    channels, height, width = (int(length) for length in found["shape"].split("x"))
    colour = "grey (1 channel)" if channels == 1 else "RGB (3 channels)"
    parts = ", ".join(f"{found[part]:,} {part}" for part in ("private", "aux", "public", "test") if part in found)
    return [f"images: {height}x{width} pixels, {colour}; {parts}"]


def doubts(record: Record) -> list[str]:
    """Return why faces were not judged, and caveats of the numbers."""
    held = [key for key in record.missing if record.metrics.get(key) is not None]
    reasons = [record.missing[key] for key in ("judge_accuracy", *held) if key in record.missing]
    return list(dict.fromkeys(reasons))


def _variants(spec: dict[str, Any]) -> list[str]:
    """Return a line for the method's variant, and one for the attack's."""
    release, attack = spec["release"], spec["attack"]
    lines = [_variant("method", release["method"], release["variant"])]
    return lines if attack is None else [*lines, "attack " + _variant("attack", attack["attack"], attack["variant"])]


def _variant(kind: str, name: str, variant: str) -> str:
    meaning = {"printed": "as its paper prints it", "own": "this project's own, which no paper prints"}.get(variant)
    changed = departures(registry.load(kind, name, variant))
    if meaning is None:
        meaning = f"{len(changed)} departure{'s' * (len(changed) != 1)} ({_named(changed)}), see `bench show {name}`"
    return f"variant {variant}: {meaning}"


def _named(changed: Sequence[Departure]) -> str:
    """List as many of them as fit in a line, at least one."""
    named, left = "", len(changed)
    for departure in changed:
        if named and len(named) + len(departure.what) > WIDE:
            return f"{named}; {left} more"
        named, left = f"{named}; {departure.what}".removeprefix("; "), left - 1
    return named


def _cell(numbers: dict[str, Any], metric: Metric, subject: Subject) -> str:
    """Format a number with its interval, if it has one; a share in percent."""
    key = subject.prefix + metric.key
    value, low, high = (numbers.get(f"{key}{bound}") for bound in ("", ".lo", ".hi"))
    if value is None:
        return "-"
    shown = f"{value:.2%}" if metric.kind == "share" else _plain(value)
    if low is None or high is None:
        return shown
    return (
        f"{shown} [{100 * low:.1f}, {100 * high:.1f}]" if metric.kind == "share" else f"{shown} [{low:.3f}, {high:.3f}]"
    )


def _plain(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _utility(record: Record, settings: Settings) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("accuracy on the test set", "", INTERVAL):
        table.add_column(column)
    accuracy, nets = metrics()["accuracy"], {"teacher_": settings.teacher, "": record.student}
    for subject in SUBJECTS[accuracy.of]:
        if record.metrics.get(f"{subject.prefix}{accuracy.key}") is not None:
            table.add_row(subject.label, nets.get(subject.prefix, ""), _cell(record.metrics, accuracy, subject))
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
    """Return a line each on the source of the noise of a finite epsilon, and on why an accounted epsilon is infinite or
    not an exact composition; older records do not have these."""
    found = sorted(privacy["accounted_units"].items())
    notes = [f"accounted per {unit}: {part['note']}" for unit, part in found if part.get("note")]
    if all(part["epsilon"] == INFINITE for _, part in found):
        return notes
    return [*notes, f"noise: {NOISE[privacy['noise']]}"] if privacy.get("noise") in NOISE else notes


def informed(found: Information) -> str:
    """Format the information bound of all responses, and the accuracy, as a mean over classes, that it permits."""
    if found.nats is None:
        return f"information: not known; {found.why}"
    if math.isinf(found.nats):
        return f"information: infinite; {found.why}"
    said, most = f"information: all answers carry at most {_plain(found.nats)} nats", found.most_accuracy
    if most is None:
        return said
    return f"{said}, enough for " + ("any accuracy" if most == 1 else f"a mean accuracy of at most {100 * most:.2f} %")


def _epsilon(found: dict[str, Any]) -> str:
    return f"{found['epsilon']:.4g}" if found["epsilon"] != INFINITE else "infinite"


def _attack(numbers: dict[str, Any], settings: Settings) -> Table:
    """Return the metrics of student, teacher and untrained network as a table."""
    table = Table(box=None, header_style="bold")
    shown = measured(numbers, "reconstructions", "floor", "membership")
    subjects = [s for s in SUBJECTS["membership"] if any(numbers.get(s.prefix + m.key) is not None for m in shown)]
    for column in (f"{settings.attack} on", *(subject.label for subject in subjects)):
        table.add_column(column)
    for metric in shown:
        cells = [_cell(numbers, metric, subject) for subject in subjects]
        if metric.averaged and set(cells) != {"-"}:
            table.add_row(_label(metric), *cells)
    table.add_row("queries", _plain(numbers["queries"]))
    return table


def _label(metric: Metric) -> str:
    return f"{metric.label}, {metric.unit}" if metric.unit else metric.label


def _references(numbers: dict[str, Any]) -> Table:
    """Return the scores of images made without a target as a table."""
    subjects = [
        subject
        for subject in SUBJECTS["reconstructions"]
        if subject not in TARGETS and any(key.startswith(subject.prefix) for key in numbers)
    ]
    table = Table(box=None, header_style="bold")
    for column in ("no target asked", *(subject.label for subject in subjects)):
        table.add_column(column)
    for metric in measured(numbers, "reconstructions"):
        cells = [_cell(numbers, metric, subject) for subject in subjects]
        if metric.averaged and set(cells) != {"-"}:
            table.add_row(_label(metric), *cells)
    return table
