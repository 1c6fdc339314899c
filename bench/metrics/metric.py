"""The definition of a metric, its inputs, and the subjects (teacher, student, ...) that it is measured on.

A record's key is the subject's prefix (`SUBJECTS`) followed by the metric's key: `teacher_auc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.validate import present

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["share", "score", "distance", "epsilon", "count", "p-value"]
"""Format of a number: a share is shown in percent, all others as they are."""
Of = Literal["classifier", "reconstructions", "retrieval", "membership", "run"]
"""Quantity measured by a metric; "retrieval": the score of public images on a target, and an attack's gain over it."""
Better = Literal["up", "down", "neither"]
KEY = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Labelled:
    """Labelled images with their evaluator features.

    Attributes:
        images: (m, c, h, w) uint8.
        labels: (m,) int64.
        features: (m, f) float32, the evaluator's penultimate features.
    """

    images: Tensor
    labels: Tensor
    features: Tensor


@dataclass(frozen=True)
class Reconstructions:
    """Reconstructions of an attack, and the images that they are compared with.

    Attributes:
        images: (n, c, h, w) uint8.
        targets: (n,) int64, the target class of each image.
        features: (n, f) float32, the evaluator's penultimate features; no attack had access to the evaluator.
        logits: (n, classes) float64, the evaluator's.
        private: the teacher's training images.
        held_out: test images, in no training set (except duplicates that a data set may contain).
    """

    images: Tensor
    targets: Tensor
    features: Tensor
    logits: Tensor
    private: Labelled
    held_out: Labelled


@dataclass(frozen=True)
class Metric:
    """The definition of one number of a record.

    Attributes:
        key: its name in records and on boards, without a prefix of `SUBJECTS`.
        label: its displayed name.
        explanation: one sentence that says what it is.
        kind: its format.
        better: the direction that is better for the owner who releases the student; for attack metrics, worse for the
            attacker.
        unit: unit of the number, such as "dB"; "" for none.
        of: the measured quantity, which determines the possible subjects.
        averaged: True if boards have a column with its mean over seeds and the terminal a line; the report has all
            metrics.
        deviation: True if boards also have its standard deviation over seeds, as `<key>_std`.
        with_teacher: True if boards also have the undefended teacher's number, as `teacher_<key>`.
        core: True if it is shown by default, before a reader selects all columns.
        newer: True if boards have its columns only if a row has a value, as for plug-ins; for numbers that older
            records do not have.
        compute: for plug-ins, a function from reconstructions to the number; raises ValueError with the reason if there
            is none.

    Raises:
        ValueError: a key that is not a lower-case name or begins with a prefix, or an explanation without a full stop.
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
    with_teacher: bool = False
    core: bool = False
    newer: bool = False
    compute: Callable[[Reconstructions], float] | None = None

    def __post_init__(self) -> None:
        if not KEY.fullmatch(self.key):
            raise ValueError(f"key '{self.key}': expected small letters, digits and underscores")
        if any(prefix and self.key.startswith(prefix) for prefix in PREFIXES):
            raise ValueError(f"key '{self.key}' begins with a prefix of `SUBJECTS`; choose another key")
        if not self.explanation.endswith("."):
            raise ValueError(f"the explanation of '{self.key}' is not a sentence: '{self.explanation}'")

    def measure(self, reconstructions: Reconstructions) -> float:
        """Compute a plug-in's number. Raises ValueError with the reason if there is none, also for NaN and infinity."""
        value = float(present(self.compute, f"`compute` of metric '{self.key}'")(reconstructions))
        if not math.isfinite(value):
            raise ValueError(f"{self.key} is {value}")
        return value


@dataclass(frozen=True)
class Subject:
    """A model or image set that metrics are measured on: the prefix of its keys, and its displayed name."""

    prefix: str
    label: str


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
"""Reference images made without any target: the word of the prefix `reference_SET_`, and the displayed name."""
OWN_REFERENCES = ("prior", "decoder")
"""References that come from an attack's own generator."""
SUBJECTS: dict[Of, tuple[Subject, ...]] = {
    "classifier": (
        Subject("teacher_", "teacher"),
        Subject("", "student, released"),
        Subject("ensemble_", "the teachers' vote, not released"),
        Subject("member_", "one of the teachers, on average"),
        Subject("votes_", "the votes, with this release's noise"),
        Subject("control_", "baseline without the teacher, same images"),
        Subject("linear_", "logistic regression on the same synthetic images, not released"),
        Subject("evaluator_", "evaluator, which judges reconstructions"),
    ),
    "reconstructions": (*TARGETS, *(Subject(f"{REFERENCE}_{name}_", label) for name, label in REFERENCES.items())),
    "retrieval": TARGETS,
    "membership": (*TARGETS, Subject("unaware_", "unaware net"), Subject("memorising_", "memorising generator")),
    "run": (STUDENT,),
}
"""Possible subjects for each value of `Metric.of`."""
PREFIXES = tuple({subject.prefix for subjects in SUBJECTS.values() for subject in subjects})
