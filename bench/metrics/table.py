"""The table of metrics: every number that a record may contain, and its display on boards, report and terminal.

`metric.py` defines metrics and their subjects; `built_in.py` has the built-in metrics. Shares and areas also have the
bounds of their 95 % interval, as `auc.lo` and `auc.hi`.

A metric of reconstructed images is a plug-in: a `Metric` with `compute`, called METRIC in a file of `image_metrics/`
that has the metric's name, or an entry point of the metric's name in the group `bench.metrics` of another distribution.
It then appears in records, on boards, on the report page and in the terminal without a change of any other file.

Importing this module does not import torch, so that boards and `--help` are fast; a plug-in imports it in its function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from bench.errors import BadPlugin
from bench.metrics import built_in
from bench.metrics.metric import SUBJECTS, Metric, Of, Subject

GROUP = "bench.metrics"
FOLDER = "image_metrics"
BOUNDS = (".lo", ".hi")


@dataclass(frozen=True)
class Entry:
    """The parsed key of a number in a record; `bound` is ".lo", ".hi" or "" for the number itself."""

    metric: Metric
    subject: Subject
    bound: str = ""


@cache
def metrics() -> dict[str, Metric]:
    """Return all metrics by key: the built-in ones, then the plug-ins, sorted by key.

    Raises:
        BenchError: a plug-in that cannot be loaded, is not a metric, or has the key of another; the message names its
            location.
    """
    files = (Path(__file__).parent / FOLDER).glob("[a-z]*.py")
    own = [EntryPoint(file.stem, f"{__package__}.{FOLDER}.{file.stem}:METRIC", GROUP) for file in files]
    known, places = {metric.key: metric for metric in built_in.BUILT_IN}, dict[str, str]()
    for point in sorted([*own, *entry_points(group=GROUP)], key=lambda each: each.name):
        try:
            metric = point.load()
        except (Exception, SystemExit) as error:  # a plug-in may raise anything on import; --debug shows the traceback
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BadPlugin(f"metric '{point.name}' in {point.value}: {reason}; fix or remove it") from error
        if not isinstance(metric, Metric) or metric.compute is None or metric.key != point.name:
            expected = f"expected a Metric with the key '{point.name}' and with `compute`"
            raise BadPlugin(f"metric '{point.name}' in {point.value}: {expected}")
        if point.name in known:
            first = places.get(point.name, built_in.__name__)
            raise BadPlugin(f"two metrics are called '{point.name}': in {first} and {point.value}; rename one")
        known[point.name], places[point.name] = metric, point.value
    return known


def computed() -> tuple[Metric, ...]:
    """Return the plug-ins: metrics computed from reconstructions."""
    return tuple(metric for metric in metrics().values() if metric.compute is not None)


def entry(key: str) -> Entry | None:
    """Parse a record's key; None for a key that no metric has."""
    name = key.removesuffix(BOUNDS[0]).removesuffix(BOUNDS[1])
    for metric in metrics().values():
        for subject in SUBJECTS[metric.of]:
            if name == subject.prefix + metric.key:
                return Entry(metric, subject, key[len(name) :])
    return None


def check(numbers: Iterable[str]) -> None:
    """Raise ValueError, naming the first, if a record has keys that are not in the table."""
    for key in numbers:
        if entry(key) is None:
            raise ValueError(
                f"a record has the number '{key}', which is not defined in bench/metrics/built_in.py or by a plug-in"
            )


def measured(numbers: Mapping[str, float | None], *of: Of) -> list[Metric]:
    """Return the metrics with `Metric.of` in `of` for which a record has a number, in the table's order."""
    return [
        metric
        for metric in metrics().values()
        if metric.of in of
        and any(numbers.get(subject.prefix + metric.key) is not None for subject in SUBJECTS[metric.of])
    ]
