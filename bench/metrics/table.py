"""The one table of metrics: every number that a record may hold, and how boards, report and terminal show it.

What a metric is, and whose number of it there can be, is in `metric.py`; those that the bench computes itself are in
`built_in.py`. Shares and areas have bounds beside them, `auc.lo` and `auc.hi`, of their 95 % interval.

A metric of reconstructed images is a plug-in: a `Metric` with `compute`, called METRIC in a file of `image_metrics/`
that has the metric's name, or an entry point of the metric's name in the group `bench.metrics` of another distribution.
It then is in records, on boards, on the report page and in the terminal, and no other file knows of it.

Importing this module imports no torch, so that boards and `--help` come at once; a plug-in imports it in its function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bench.errors import BadPlugin
from bench.metrics import built_in
from bench.metrics.metric import SUBJECTS, Metric, Of, Subject

GROUP = "bench.metrics"
FOLDER = "image_metrics"
BOUNDS = (".lo", ".hi")


@dataclass(frozen=True)
class Entry:
    """What a key of a record stands for; `bound` is ".lo", ".hi" or ""."""

    metric: Metric
    subject: Subject
    bound: str = ""


@cache
def metrics() -> dict[str, Metric]:
    """All metrics by key: the built-in ones, then the plug-ins, sorted by key.

    Raises:
        BenchError: a plug-in that cannot be loaded, is no metric, or has the key of another; its place is named.
    """
    known = {metric.key: (metric, built_in.__name__) for metric in built_in.BUILT_IN}
    for place, name, load in sorted([*_files(), *_entry_points()], key=lambda found: found[1]):
        metric = _loaded(place, name, load)
        if name in known:
            raise BadPlugin(f"two metrics are called '{name}': in {known[name][1]} and {place}; rename one")
        known[name] = metric, place
    return {name: metric for name, (metric, _) in known.items()}


Place = tuple[str, str, Callable[[], Any]]


def _files() -> list[Place]:
    modules = [f"{__package__}.{FOLDER}.{path.stem}" for path in (Path(__file__).parent / FOLDER).glob("[a-z]*.py")]
    return [(module, module.rpartition(".")[2], partial(_member, module)) for module in modules]


def _member(module: str) -> Any:
    return importlib.import_module(module).METRIC


def _entry_points() -> list[Place]:
    return [(point.value, point.name, point.load) for point in entry_points(group=GROUP)]


def _loaded(place: str, name: str, load: Callable[[], Any]) -> Metric:
    try:
        metric = load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does on import; --debug shows where
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadPlugin(f"metric '{name}' in {place}: {why}; mend or remove it") from error
    if not isinstance(metric, Metric) or metric.compute is None or metric.key != name:
        raise BadPlugin(f"metric '{name}' in {place}: expected a Metric with the key '{name}' and with `compute`")
    return metric


def computed() -> tuple[Metric, ...]:
    """The plug-ins: metrics that compute themselves from reconstructions."""
    return tuple(metric for metric in metrics().values() if metric.compute is not None)


def entry(key: str) -> Entry | None:
    """What a key of a record stands for; None for a key that no metric has."""
    name = key.removesuffix(BOUNDS[0]).removesuffix(BOUNDS[1])
    for metric in metrics().values():
        for subject in SUBJECTS[metric.of]:
            if name == subject.prefix + metric.key:
                return Entry(metric, subject, key[len(name) :])
    return None


def check(numbers: Iterable[str]) -> None:
    """That every key of a record is one of the table's. Raises ValueError naming the first that is not."""
    for key in numbers:
        if entry(key) is None:
            raise ValueError(
                f"a record cannot hold '{key}', which is no metric of bench/metrics/built_in.py or a plug-in"
            )


def measured(numbers: Mapping[str, float | None], *of: Of) -> list[Metric]:
    """The metrics of some kinds that a record has a number of, in the table's order."""
    return [
        metric
        for metric in metrics().values()
        if metric.of in of
        and any(numbers.get(subject.prefix + metric.key) is not None for subject in SUBJECTS[metric.of])
    ]
