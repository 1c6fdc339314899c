"""What a metric is, and whose number of it a record holds.

A record's key is a prefix, which says whose number it is (`SUBJECTS`), and a metric's key: `teacher_auc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.metrics.reconstructions import Reconstructions
from bench.validate import present

Kind = Literal["share", "score", "distance", "epsilon", "count", "p-value"]
"""How a number is written: a share in percent, all others as they are."""
Of = Literal["classifier", "reconstructions", "floor", "membership", "run"]
"""What a number is measured of; of "floor": what public images score on a target, and an attack beyond them."""
Better = Literal["up", "down", "neither"]
KEY = re.compile(r"[a-z][a-z0-9_]*")


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
        value = float(present(self.compute, f"`compute` of metric '{self.key}'")(given))
        if not math.isfinite(value):
            raise ValueError(f"{self.key} is {value}")
        return value


@dataclass(frozen=True)
class Subject:
    """Whose number it is: the prefix of its key, and a name for people."""

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
