"""Attacks on a release: the rows of the table of attacks, grouped by attack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.boards.installed import installed_version
from bench.boards.results import group_rows
from bench.boards.tables import AttackRow, Board, RunRow


@dataclass(frozen=True)
class Attacked:
    """One attack on a release: the numbers of an evaluation, by metric.

    Attributes:
        rows: rows of the table of attacks for one attack, by metric.
        runs: hashes of the records.
    """

    rows: Mapping[str, AttackRow]
    runs: tuple[str, ...]

    @property
    def any(self) -> AttackRow:
        """One of its rows: they share attack, variant, version, access, options, power and reason."""
        return next(iter(self.rows.values()))

    @property
    def has_power(self) -> bool:
        """Whether the attack works on the unprotected teacher."""
        return self.any.power == "pass"

    @property
    def is_older(self) -> bool:
        """Whether the installed attack is newer than the one that was run."""
        row = self.any
        return row.version is not None and row.version < installed_version("attack", row.attack, row.variant)

    def value(self, metric: str) -> float | None:
        """The student's number; None where it was not measured."""
        return self.rows[metric].value if metric in self.rows else None

    def on_teacher(self, metric: str) -> float | None:
        """The unprotected teacher's number; None where it was not measured."""
        return self.rows[metric].teacher if metric in self.rows else None

    def public(self, metric: str) -> float | None:
        """The score of the attacker's own images; None where they were not scored."""
        return self.rows[metric].public_images if metric in self.rows else None

    def __str__(self) -> str:
        """Format as in "gmi (printed) 81.0 % (teacher 84.0 %), public images 94.0 %"; power is named only if it
        failed."""
        student, teacher = self.value("attack_accuracy"), self.on_teacher("attack_accuracy")
        auc, teacher_auc = self.value("auc"), self.on_teacher("auc")
        if student is not None:
            public = self.public("attack_accuracy")
            found = percent(student) + ("" if teacher is None else f" (teacher {percent(teacher)})")
            found += "" if public is None else f", public images {percent(public)}"
            judged, public = self.value("judge_accuracy"), self.public("judge_accuracy")
            if judged is not None:  # only boards of people have an independent judge of faces
                found += f"; by the judge of faces {percent(judged)}"
                found += "" if public is None else f", public images {percent(public)}"
        elif auc is not None:
            found = f"AUC {auc:.3f}" + ("" if teacher_auc is None else f" (teacher {teacher_auc:.3f})")
        else:
            found = "no score"
        row = self.any
        power = "" if self.has_power else f", {row.power or 'power not shown'}"
        return f"{row.attack} ({row.variant}) {found}{power}" + (", older version" if self.is_older else "")


@dataclass(frozen=True)
class Inversion:
    """The success of an attack that reconstructs images of a student, by the most independent judge of its row.

    Args:
        attack: the name of the attack.
        success: share of its images that the judge recognises as the intended class, in [0, 1].
        on_teacher: the same share for the teacher; None where it was not attacked.
        public: the same share for the public images that the student prefers; None where they were not judged.
        judge: "judge of faces" or "evaluator".
    """

    attack: str
    success: float
    on_teacher: float | None
    public: float | None
    judge: str

    @property
    def gain(self) -> float:
        """The success minus that of public images, or the whole success if these were not scored."""
        return self.success - (self.public or 0.0)

    def __str__(self) -> str:
        by = "" if self.judge == "evaluator" else f" by the {self.judge}"
        public = "" if self.public is None else f" (public images {percent(self.public)})"
        return f"{self.attack} {percent(self.success)}{by}{public}"


def inversion(attacked: Attacked) -> Inversion | None:
    """Return the success of an attack's reconstructions; None for an attack that makes no images."""
    for judge, metric in (("judge of faces", "judge_accuracy"), ("evaluator", "attack_accuracy")):
        found = attacked.value(metric)
        if found is not None:
            return Inversion(attacked.any.attack, found, attacked.on_teacher(metric), attacked.public(metric), judge)
    return None


def percent(share: float) -> str:
    """Format a share in percent, as in "81.0 %"."""
    return f"{100 * share:.1f} %"


def attacks(board: Board) -> dict[str, list[Attacked]]:
    """Return the attacks on each release of a board, by the key of the release's row."""
    runs, measured = group_rows(board)
    return {row.release: attacked(runs[row.release], measured) for row in board.releases}


def attacked(runs: Sequence[RunRow], measured: Mapping[str, list[AttackRow]]) -> list[Attacked]:
    """Return the attacks on a release, one per evaluation."""
    by_evaluation: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_evaluation[run.evaluation].append(run.run)
    found = []
    for evaluation, names in by_evaluation.items():
        rows = {row.metric: row for row in measured.get(evaluation, ()) if row.attack}
        found += [Attacked(rows, tuple(names))] if rows else []
    return found
