"""The one table of metrics: every number that a record may hold, and how boards, report and terminal show it.

A record's key is a prefix, which says whose number it is (`SUBJECTS`), and a metric's key: `teacher_auc`. Shares and
areas have bounds beside them, `auc.lo` and `auc.hi`, of their 95 % interval.

A metric of reconstructed images is a plug-in: a `Metric` with `compute`, called METRIC in a file of `image_metrics/`
that has the metric's name, or an entry point of the metric's name in the group `bench.metrics` of another distribution.
It then is in records, on boards, on the report page and in the terminal, and no other file knows of it.

Importing this module imports no torch, so that boards and `--help` come at once; a plug-in imports it in its function.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from bench.errors import BenchError
from bench.metrics.reconstructions import Reconstructions

Kind = Literal["share", "score", "distance", "epsilon", "count", "p-value"]
"""How a number is written: a share in percent, all others as they are."""
Of = Literal["classifier", "reconstructions", "floor", "membership", "run"]
"""What a number is measured of; of "floor": what public images score on a target, and an attack beyond them."""
Better = Literal["up", "down", "neither"]
GROUP = "bench.metrics"
FOLDER = "image_metrics"
KEY = re.compile(r"[a-z][a-z0-9_]*")
BOUNDS = (".lo", ".hi")


@dataclass(frozen=True)
class Metric:
    """One number of a record.

    Attributes:
        key: its name in records and on boards, without the prefix of `SUBJECTS`.
        label: its name for people.
        explanation: what it is, a sentence.
        kind: how it is written.
        better: which way is better for whoever releases the student: for a metric of an attack, worse for the attacker.
        unit: of the number, such as "dB"; "" for none.
        of: what it is measured of, which decides whose numbers there can be.
        averaged: whether boards have a column for its mean over seeds and the terminal a line; the report has all.
        deviation: whether boards have the standard deviation over seeds beside the mean, as `<key>_std`.
        beside_teacher: whether boards have the number of the undefended teacher beside it, as `teacher_<key>`.
        core: whether it is shown before a reader asks for all columns.
        newer: whether boards have its columns only where a row fills them, as they have those of plug-ins: a number
            that older records lack.
        compute: for plug-ins, the number of some reconstructions; ValueError with the reason where there is none.

    Raises:
        ValueError: a key that is not a name in small letters or begins with a prefix, or an explanation without a stop.
    """

    key: str
    label: str
    explanation: str
    kind: Kind = "score"
    better: Better = "neither"
    unit: str = ""
    of: Of = "reconstructions"
    averaged: bool = True
    deviation: bool = False
    beside_teacher: bool = False
    core: bool = False
    newer: bool = False
    compute: Callable[[Reconstructions], float] | None = None

    def __post_init__(self) -> None:
        if not KEY.fullmatch(self.key):
            raise ValueError(f"key '{self.key}': expected small letters, digits and underscores")
        if any(prefix and self.key.startswith(prefix) for prefix in PREFIXES):
            raise ValueError(f"key '{self.key}' begins as the prefix of another's number; choose another")
        if not self.explanation.endswith("."):
            raise ValueError(f"the explanation of '{self.key}' is no sentence: '{self.explanation}'")

    def measure(self, given: Reconstructions) -> float:
        """The number of a plug-in. Raises ValueError with the reason where there is none, also for NaN and infinity."""
        assert self.compute is not None
        value = float(self.compute(given))
        if not math.isfinite(value):
            raise ValueError(f"{self.key} is {value}")
        return value


@dataclass(frozen=True)
class Subject:
    """Whose number it is: the prefix of its key, and a name for people."""

    prefix: str
    label: str


@dataclass(frozen=True)
class Entry:
    """What a key of a record stands for; `bound` is ".lo", ".hi" or ""."""

    metric: Metric
    subject: Subject
    bound: str = ""


STUDENT = Subject("", "student")
TARGETS = (STUDENT, Subject("teacher_", "teacher"), Subject("random_", "random net"))
REFERENCE = "reference"
REFERENCES = {
    "held_out": "unseen images",
    "class_mean": "class means",
    "prior": "random latents",
    "decoder": "unseen images, redrawn",
    "aux": "attacker's images",
}
"""Images that no target was asked about: a word of the prefix `reference_SET_`, and its name for people."""
OWN_REFERENCES = ("prior", "decoder")
"""Those that come from an attack's own generator."""
SUBJECTS: dict[Of, tuple[Subject, ...]] = {
    "classifier": (
        Subject("teacher_", "teacher"),
        Subject("", "student, released"),
        Subject("ensemble_", "the teachers' vote, not released"),
        Subject("member_", "one of the teachers, on average"),
        Subject("votes_", "the votes, with this release's noise"),
        Subject("control_", "control: no teacher asked, same images"),
        Subject("evaluator_", "evaluator, which judges reconstructions"),
    ),
    "reconstructions": (*TARGETS, *(Subject(f"{REFERENCE}_{name}_", label) for name, label in REFERENCES.items())),
    "floor": TARGETS,
    "membership": (*TARGETS, Subject("unaware_", "unaware net"), Subject("memorising_", "memorising generator")),
    "run": (STUDENT,),
}
"""What a metric is of, to whom it can be measured of."""
PREFIXES = tuple({subject.prefix for subjects in SUBJECTS.values() for subject in subjects})


def _by_judge(
    key: str, label: str, images: str, of: Of = "floor", core: bool = False, whole: bool = True
) -> tuple[Metric, ...]:
    """What the judge of faces, which no attack saw, says of images of people (`bench.pipeline.face_judge`).

    Args:
        key, label: what stands before the names of the three numbers.
        images: what was judged, in the plural.
        whole: whether boards and terminal have all three numbers, not the first alone.
    """
    return (
        Metric(
            f"{key}judge_accuracy", f"{label}judge accuracy",
            f"Of {images}, the share whose face an independent judge finds nearest to the person aimed at.",
            "share", "down", of=of, beside_teacher=core, core=core, newer=True,
        ),
        Metric(
            f"{key}judge_near", f"{label}judged near",
            f"Of {images}, the share that the judge takes for the person aimed at: nearer than 0.6 to the mean face.",
            "share", "down", of=of, averaged=whole, beside_teacher=core, newer=True,
        ),
        Metric(
            f"{key}judge_distance", f"{label}judged distance",
            f"Median distance of {images}, to the mean face of the person aimed at, by the judge.",
            "distance", "up", of=of, averaged=whole, newer=True,
        ),
    )  # fmt: skip


BUILT_IN = (
    Metric(
        "accuracy", "accuracy", "Share of the test images that the network classifies rightly.", "share", "up",
        of="classifier", deviation=True, beside_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy", "attack accuracy",
        "Share of reconstructions that the evaluator, which no attack saw, assigns to the class they were aimed at.",
        "share", "down", deviation=True, beside_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy_std", "deviation over draws",
        "Standard deviation of the attack accuracy over the attack's independent draws.", "share", averaged=False,
    ),
    Metric(
        "target_accuracy", "target's own view",
        "Share of reconstructions that the attacked network itself assigns to the class they were aimed at.", "share",
    ),
    Metric(
        "inception_score", "inception score",
        "Inception score by the data set's evaluator: confident and varied classes; it never asks for the right class.",
        better="down", core=True,
    ),
    Metric(
        "inception_score_std", "inception score, deviation",
        "Standard deviation of the inception score over its splits.", averaged=False,
    ),
    Metric("inception_e6", "(IS-1) 10⁶", "The inception score less 1, in millionths.", better="down"),
    Metric("inception_within_class", "IS within class", "Mean over the classes of the inception score of one class."),
    Metric(
        "knn_distance", "KNN distance",
        "Mean squared distance, in the evaluator's features, to the nearest private image of the class.",
        "distance", "up",
    ),
    Metric(
        "knn_gap", "KNN gap",
        "How much nearer reconstructions are to private than to unseen images of the class, beside a random network's.",
        "distance", "down",
    ),
    Metric(
        "fid", "FID",
        "Fréchet distance to as many private images, in the leading directions of the evaluator's features.",
        "distance", "up",
    ),
    Metric("precision", "precision", "Share of reconstructions among private images.", "score", averaged=False),
    Metric("recall", "recall", "Share of private images among reconstructions.", "score", averaged=False),
    Metric(
        "density", "density",
        "How many private images' balls a reconstruction lies in; 1 for private images themselves.", better="down",
    ),
    Metric(
        "coverage", "coverage", "Share of private images that have a reconstruction in their ball.", better="down"
    ),
    Metric(
        "ssim", "SSIM",
        "Structural similarity to the victim's image or, for attacks on classes, to the most similar private image.",
        better="down",
    ),
    Metric(
        "ssim_gap", "SSIM gap", "How much more similar reconstructions are to private victims than to unseen ones.",
        better="down",
    ),
    Metric(
        "ssim_class_mean", "SSIM to class mean", "Structural similarity to the mean private image of the class.",
        averaged=False,
    ),
    Metric(
        "psnr", "PSNR",
        "Peak signal-to-noise ratio to the image that SSIM is measured to, or to the nearest in pixels.", better="down",
        unit="dB", averaged=False,
    ),
    Metric(
        "psnr_gap", "PSNR gap", "How much better private victims come back than unseen ones.", better="down", unit="dB",
        averaged=False,
    ),
    Metric(
        "without_start", "without a start", "Share of searches that found no image of their class to start from.",
        "share",
    ),
    *_by_judge("", "", "reconstructions, up to five of a person", of="reconstructions", core=True),
    Metric(
        "retrieval_accuracy", "retrieval",
        "Share of the attacker's own images, the five that the target prefers for each class, that show the class: "
        "public images alone score this.",
        "share", of="floor", beside_teacher=True, core=True, newer=True,
    ),
    Metric(
        "retrieval_best_accuracy", "retrieval, best", "The same of the image that the target prefers most.", "share",
        of="floor", newer=True,
    ),
    Metric(
        "retrieval_next_accuracy", "retrieval, next", "The same of the image that it prefers next.", "share",
        of="floor", newer=True,
    ),
    Metric(
        "retrieval_mean_accuracy", "retrieval, mean", "The same of the mean of the ten images that it prefers.",
        "share", of="floor", newer=True,
    ),
    Metric(
        "retrieval_latents_accuracy", "retrieval, latents",
        "The same of the best of a thousand images that the attack's generator makes of random latents.", "share",
        of="floor", newer=True,
    ),
    *_by_judge("retrieval_", "retrieval, ", "the five public images that the target prefers for a person"),
    *_by_judge(
        "retrieval_best_", "retrieval, best, ", "the public images that the target prefers most", whole=False
    ),
    *_by_judge(
        "retrieval_mean_", "retrieval, mean, ", "the means of the ten public images that it prefers", whole=False
    ),
    *_by_judge(
        "retrieval_latents_", "retrieval, latents, ", "the best of a thousand images of random latents", whole=False
    ),
    Metric(
        "above_floor", "above floor",
        "Attack accuracy less that of retrieval on the same target: a mean over classes, with a bootstrap over them; "
        "of people by the judge of faces, where it is there.",
        "share", "down", of="floor", beside_teacher=True, core=True, newer=True,
    ),
    Metric(
        "floor_p", "p-value against retrieval",
        "Sign-flip test over classes that the attack is no better than retrieval; from 50 classes on.", "p-value",
        of="floor", averaged=False,
    ),
    Metric(
        "above_mean", "above the mean",
        "The same as `above_floor`, above the mean of the ten public images that the target prefers.",
        "share", "down", of="floor", newer=True,
    ),
    Metric(
        "mean_p", "p-value against the mean",
        "Sign-flip test over classes that the attack is no better than that mean; from 50 classes on.", "p-value",
        of="floor", averaged=False,
    ),
    Metric(
        "auc", "AUC", "Area under the curve of a membership attack; 0.5 is guessing.", "score", "down",
        of="membership", beside_teacher=True, core=True,
    ),
    Metric(
        "auc_gain", "AUC beyond an unaware net",
        "AUC less that of the same attack on a network trained as the teacher was that saw none of the records.",
        "score", "down", of="membership", beside_teacher=True, newer=True,
    ),
    Metric(
        "gap_auc", "AUC of the gap attack",
        "AUC of calling those records members whose class the network names rightly, beside attacks by labels alone.",
        "score", "down", of="membership", newer=True,
    ),
    Metric(
        "tpr_at_1pct", "TPR at FPR 1 %", "Share of members found where 1 % of the others are taken for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "tpr_at_01pct", "TPR at FPR 0.1 %", "Share of members found where 0.1 % of the others are taken for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "balanced_accuracy", "balanced accuracy", "Mean of the shares of members and of others told rightly.",
        "share", "down", of="membership",
    ),
    Metric(
        "membership_epsilon_lower", "epsilon seen (no proof)",
        "The epsilon that the attack's scores point at: an indication, since records share a model.",
        "epsilon", "down", of="membership",
    ),
    Metric(
        "times_chance", "accuracy over chance",
        "Accuracy over the share of the test part's commonest class (flag `knows-nothing`).",
        of="run",
        averaged=False,
    ),
    Metric("queries", "queries", "Images that the attack asked the released student about.", "count", of="run"),
    Metric(
        "power_p_teacher", "p-value of the attack on the teacher",
        "The power gate: how often exchanged classes would do as well on the undefended teacher.", "p-value", of="run",
        averaged=False,
    ),
    Metric(
        "power_p_random", "p-value on the random net",
        "The power gate: how often exchanged classes would do as well on a network with random weights.", "p-value",
        of="run", averaged=False,
    ),
)  # fmt: skip


@cache
def metrics() -> dict[str, Metric]:
    """All metrics by key: those above, then the plug-ins, sorted by key.

    Raises:
        BenchError: a plug-in that cannot be loaded, is no metric, or has the key of another; its place is named.
    """
    known = {metric.key: (metric, __name__) for metric in BUILT_IN}
    for place, name, load in sorted([*_files(), *_entry_points()], key=lambda found: found[1]):
        metric = _loaded(place, name, load)
        if name in known:
            raise BenchError(f"two metrics are called '{name}': in {known[name][1]} and {place}; rename one")
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
    except (ImportError, AttributeError, ValueError) as error:
        raise BenchError(f"metric '{name}' in {place}: {error}; mend or remove it") from error
    if not isinstance(metric, Metric) or metric.compute is None or metric.key != name:
        raise BenchError(f"metric '{name}' in {place}: expected a Metric with the key '{name}' and with `compute`")
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
            raise ValueError(f"a record cannot hold '{key}', which is no metric of bench/metrics/table.py or a plug-in")


def measured(numbers: Mapping[str, float | None], *of: Of) -> list[Metric]:
    """The metrics of some kinds that a record has a number of, in the table's order."""
    return [
        metric
        for metric in metrics().values()
        if metric.of in of
        and any(numbers.get(subject.prefix + metric.key) is not None for subject in SUBJECTS[metric.of])
    ]
