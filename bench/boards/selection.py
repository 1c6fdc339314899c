"""Which release of the boards a user should take: only what is proved counts, never what is claimed."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from bench import data, registry
from bench.boards.board_cells import Row, blank, number, options
from bench.boards.flags import UNTRUE, installed_version
from bench.boards.needs import needs as of_method
from bench.boards.needs import teacher_matters
from bench.config import Variant
from bench.data.canaries import SPLIT as CANARIES
from bench.errors import BenchError
from bench.storage.options import described

EXACT = 1e-9
ALIKE = 1e-3
"""Relative: by less than this two epsilons differ by where the search for their noise stopped, at the same budget."""
MOST_DELTA = 1e-4
"""Of a promise, where nothing is asked: below one over the number of records of every board."""
OLDER = "older-version"
NOT_RELEASES = ("reference",)
"""Values of the column `kind` that stand for no release."""
ANY_FINITE = sys.float_info.max / 2
"""A limit that every finite epsilon keeps, and infinity does not, in `objection` with its tolerance either."""
HEADLINES = ("example", "label")
"""Units that rows are accounted in; of others a record may hold an account beside its row's."""


@dataclass(frozen=True)
class Constraints:
    """What the user demands: a proved epsilon of at most `epsilon` for one `unit`, at a delta of at most `delta`, and
    at least `accuracy`."""

    unit: str
    epsilon: float
    accuracy: float
    delta: float = MOST_DELTA


@dataclass(frozen=True)
class Candidate:
    """One release of a board, with everything that was measured of it.

    Attributes:
        row: of the board; of several, which differ in the attack, `most_measured`.
        attacked: its rows with an attack.
        flags: of all its rows.
    """

    row: Row
    attacked: tuple[Row, ...]
    flags: frozenset[str]

    @property
    def place(self) -> tuple[str, str, str]:
        """Data set, tier and split: what candidates must share to be ranked."""
        return str(self.row["dataset"]), str(self.row["tier"]), str(self.row["split"])

    @property
    def name(self) -> str:
        """Method, variant and setting, such as "dpsd (working) teachers=40 epsilon=8.0"."""
        return f"{self.row['method']} ({self.row['variant']}) {released(self.row)}".strip()

    @property
    def accuracy(self) -> float | None:
        """Mean over the seeds, in [0, 1]; None where no run was finished."""
        return number(self.row["accuracy_mean"])

    @property
    def epsilon(self) -> float | None:
        """Accounted, infinity included; None where no run was finished."""
        return number(self.row["epsilon_accounted"])

    @property
    def delta(self) -> float | None:
        """Of the accounted epsilon; None where no run was finished."""
        return number(self.row["delta"])

    @property
    def older(self) -> str:
        """That the method has changed since, in words; "" where it has not."""
        method, version = str(self.row["method"]), number(self.row["version"])
        if version is None or version >= installed_version("method", method, str(self.row["variant"])):
            return ""
        return f"made by version {version:g} of {method}, which has changed since: run it again"

    @property
    def attacks(self) -> tuple[str, ...]:
        """A line per attack."""
        return tuple(attacked(row) for row in self.attacked)

    @property
    def strongest(self) -> Inversion | None:
        """The attack that reconstructs most beyond public images, among those that proved their power, if any did.

        One that was not held against them stands back: with a gain that is nobody's it would seem the strongest.
        """
        proven = [found for row in self.attacked if row["power"] == "pass" and (found := inversion(row)) is not None]
        return max(proven, key=lambda found: (found.floor is not None, found.gain), default=None)

    @property
    def told_apart(self) -> Row | None:
        """The row of the membership attack with the largest AUC, among those that proved their power, if any did."""
        proven = [row for row in self.attacked if row["power"] == "pass" and number(row["auc"]) is not None]
        return max(proven, key=lambda row: number(row["auc"]) or 0.0, default=None)

    @property
    def audited(self) -> Row | None:
        """Of its rows, which may be of other seeds, the one whose audit shows most; None where none was audited."""
        rows = [row for row in (self.row, *self.attacked) if number(row["epsilon_audited"]) is not None]
        shown = ("epsilon_audited", "audited_teacher")
        return max(rows, key=lambda row: tuple(number(row[name]) or 0.0 for name in shown), default=None)

    @property
    def spread(self) -> str:
        """Standard deviation over seeds, or that there is one seed; and how many runs failed."""
        std, failed = number(self.row["accuracy_std"]), int(number(self.row["failed"]) or 0)
        told = "one seed" if std is None else f"sd {std:.3f}, {finished(self.row)} seeds"
        return told + (f", {failed} failed" if failed else "")


@dataclass(frozen=True)
class Inversion:
    """What an attack reconstructed of a student, by the most independent judge that its row has.

    Args:
        attack: its name.
        success: share of its images that the judge takes for their class, in [0, 1].
        on_teacher: the same of the teacher; None where it was not attacked.
        floor: the same of the public images that the student knows best; None where they were not judged.
        judge: "judge of faces" or "evaluator".
    """

    attack: str
    success: float
    on_teacher: float | None
    floor: float | None
    judge: str

    @property
    def gain(self) -> float:
        """Success beyond what public images reach alone, or success where they were not judged."""
        return self.success - (self.floor or 0.0)

    def __str__(self) -> str:
        by = "" if self.judge == "evaluator" else f" by the {self.judge}"
        beside = "" if self.floor is None else f" (public images {percent(self.floor)})"
        return f"{self.attack} {percent(self.success)}{by}{beside}"


def inversion(row: Row) -> Inversion | None:
    """What a row's attack reconstructed; None where the row has no such attack."""
    for judge, success, on_teacher, floor in (
        ("judge of faces", "judge_accuracy", "teacher_judge_accuracy", "retrieval_judge_accuracy"),
        ("evaluator", "attack_accuracy", "teacher_attack_accuracy", "retrieval_accuracy"),
    ):
        found = number(row.get(success))
        if found is not None:
            attack = str(row["attack"])
            return Inversion(attack, found, number(row.get(on_teacher)), number(row.get(floor)), judge)
    return None


@dataclass(frozen=True)
class Choice:
    """Candidates that meet constraints by place, best first; the others with the reason; the nearest misses."""

    taken: dict[tuple[str, str, str], list[Candidate]]
    excluded: list[tuple[Candidate, str]]
    nearest: list[str]


def choose(rows: Iterable[Row], constraints: Constraints) -> Choice:
    """Sort the releases of boards into those that meet constraints and the others.

    Args:
        rows: of boards, with "dataset" in each; cells are text or numbers, empty for None.
    """
    taken: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    excluded = []
    for candidate in candidates(rows):
        reason = objection(candidate, constraints)
        if reason:
            excluded.append((candidate, reason))
        else:
            taken[candidate.place].append(candidate)
    for found in taken.values():
        found.sort(key=lambda c: (-(c.accuracy or 0.0), c.epsilon or 0.0, c.name))
    return Choice(
        dict(sorted(taken.items())), excluded, [] if taken else _nearest([c for c, _ in excluded], constraints)
    )


def least_epsilon(found: Sequence[Candidate]) -> Candidate:
    """Of those that meet constraints, that of the least accounted epsilon; of several alike (`ALIKE`) that of the
    least delta, and of these the most accurate."""
    most = min(c.epsilon or 0.0 for c in found) * (1 + ALIKE)
    alike = [c for c in found if (c.epsilon or 0.0) <= most]
    return min(alike, key=lambda c: (c.delta or 0.0, -(c.accuracy or 0.0), c.name))


def candidates(rows: Iterable[Row]) -> list[Candidate]:
    """One for each release; rows that differ in the attack or its judge alone are one release. The boards' order.

    Nobody would release a student of split canaries, which was taught wrong labels so that it could be attacked.

    Args:
        rows: as for `choose`; None and NaN, which a table has in empty cells, are read as empty.
    """
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in map(_plain, rows):
        if row["kind"] not in NOT_RELEASES and not row["split"].startswith(CANARIES):
            keys = ("dataset", "tier", "split", "method", "variant", "version", "teacher", "student", "delta", "unit")
            # Run again with today's noise, it is another release
            coarse = "float32-noise" in str(row["flags"]).split()
            shared = {key: str(row[key]) for key in keys} | ({} if asks_teachers(row) else {"teacher": ""})
            shared["whose"] = str(row.get("whose", ""))
            groups[(*shared.values(), released(row), str(coarse))].append(row)
    return [_candidate(group) for group in groups.values()]


def _plain(row: Row) -> Row:
    """A row whose empty cells are "", in whatever way they are empty."""
    return {key: blank(value) for key, value in row.items()}


def _candidate(group: list[Row]) -> Candidate:
    most = min(group, key=most_measured)
    attacks = tuple(row for row in group if row["attack"])
    flags = {flag for row in group for flag in str(row["flags"]).split()}
    found = Candidate(most, attacks, frozenset(flags))
    # Rows of an older attack are marked by themselves (`attacked`): the release is what today's command makes
    return found if found.older else replace(found, flags=found.flags - {OLDER})


def most_measured(row: Row) -> tuple[int, bool, str, str]:
    """Order of the rows of one release, which differ only in the attack: most seeds with a number first, then a row
    without an attack."""
    seeds = len(str(blank(row.get("seeds"))).split()) - int(number(row.get("failed")) or 0)
    return -seeds, bool(blank(row.get("attack"))), str(row.get("options")), str(row.get("runs"))


def finished(row: Row) -> int:
    """How many seeds of a row have a number."""
    return len(str(row["seeds"]).split()) - int(number(row["failed"]) or 0)


def released(row: Row) -> str:
    """The options of a row but the attack's and those of its judge, in a line; those of a teacher that the method
    does not ask, which was there for the attack's control alone, are left out too."""
    others: dict[str, Any] = {"attack": {}, "evaluator": {}} | ({} if asks_teachers(row) else {"teacher": {}})
    return described(options(str(row["options"])) | others)


def asks_teachers(row: Row) -> bool:
    """Whether what is released depends on the teacher's network or recipe; of a method that is not installed, yes."""
    return teacher_matters(needs(row))


def needs(row: Row) -> frozenset[str] | None:
    """What the method of a row needs at its options; None of one that is not installed."""
    given = row.get("options")
    told = options(given if isinstance(given, str) else "")["method"]
    return of_method(str(row["method"]), cast(Variant, row["variant"]), str(row["tier"]), told)


def percent(share: float) -> str:
    """A share as it is written wherever results are told, as in "81.0 %"."""
    return f"{100 * share:.1f} %"


def attacked(row: Row) -> str:
    """One row's attack on the student, such as "gmi (printed) 81.0 % (teacher 84.0 %)"; power that passed is not named.

    Public images alone are named where the row has their number, as in "81.0 % (teacher 84.0 %), public images 94.0 %".
    """
    student, teacher = number(row["attack_accuracy"]), number(row["teacher_attack_accuracy"])
    auc, teacher_auc = number(row["auc"]), number(row["teacher_auc"])
    if student is not None:
        floor = number(row.get("retrieval_accuracy"))
        found = percent(student) + ("" if teacher is None else f" (teacher {percent(teacher)})")
        found += "" if floor is None else f", public images {percent(floor)}"
        found += _judged(row)
    elif auc is not None:
        found = f"AUC {auc:.3f}" + ("" if teacher_auc is None else f" (teacher {teacher_auc:.3f})")
    else:
        found = "no score"
    power = "" if row["power"] == "pass" else f", {row['power'] or 'power not shown'}"
    power += ", older version" if OLDER in str(row["flags"]).split() else ""
    return f"{row['attack']} ({row['attack_variant']}) {found}{power}"


def _judged(row: Row) -> str:
    """What the independent judge of faces says, on boards of people."""
    judge, floor = number(row.get("judge_accuracy")), number(row.get("retrieval_judge_accuracy"))
    if judge is None:
        return ""
    return f"; by the judge of faces {percent(judge)}" + ("" if floor is None else f", public images {percent(floor)}")


def objection(candidate: Candidate, constraints: Constraints) -> str:
    """Why a candidate does not meet constraints, in a line; "" if it does."""
    row, epsilon, accuracy = candidate.row, candidate.epsilon, candidate.accuracy
    claim = number(row["epsilon_claimed"])
    claimed = "nothing claimed" if claim is None else f"claimed {_infinite(claim)} per {row['claim_unit']}"
    if row["tier"] == "smoke":
        return "tier smoke, whose numbers mean nothing"
    if accuracy is None or epsilon is None:
        return "no run of it was finished"
    if candidate.older:
        return candidate.older
    if row["unit"] != constraints.unit:
        return f"{claimed}, accounted per {row['unit']}, not per {constraints.unit}"
    for flag in (flag for flag in UNTRUE if flag in candidate.flags):
        return f"{claimed}, {UNTRUE[flag]}"
    if epsilon > constraints.epsilon * (1 + EXACT):
        return f"{claimed}, accounted {_infinite(epsilon)}"
    if candidate.delta is not None and candidate.delta > constraints.delta * (1 + EXACT):
        return f"accounted {epsilon:.4g} at a delta of {candidate.delta:g}, above {constraints.delta:g}"
    if accuracy < constraints.accuracy:
        return f"accounted {epsilon:.4g}, accuracy {accuracy:.3f} below {constraints.accuracy:g}"
    return ""


def lacking(candidate: Candidate) -> list[str]:
    """What was not measured of a release, a phrase each: all that a low number on its row does not say."""
    row, found = candidate.row, []
    for name, score in (("reconstructs records", "attack_accuracy"), ("guesses members", "auc")):
        rows = [each for each in candidate.attacked if number(each[score]) is not None]
        if not rows:
            found.append(f"no attack that {name}")
        elif all(each["power"] != "pass" for each in rows):
            found.append(f"no attack with proved power that {name}")
    if candidate.audited is None:
        found.append("no audit")
    elif not number(candidate.audited["audited_teacher"]):
        found.append("no audit that finds anything where nothing defends")
    if finished(row) < 2:
        found.append("no second seed")
    if row["tier"] != "paper":
        found.append(f"nothing at the papers' size (this is tier {row['tier']})")
    if row["device"] and all(device.startswith("cpu") for device in str(row["device"]).split(" | ")):
        found.append("nothing on a GPU")
    seen = _seen_test_sets(str(row["method"]), str(row["variant"])).get(data.base_name(str(row["dataset"])))
    return [*found, f"no test set that nobody had looked at: by looking at this one {seen}"] if seen else found


@cache
def _seen_test_sets(method: str, variant: str) -> Mapping[str, str]:
    """Data set to what was chosen by looking at its test set; nothing is known of a method that is not installed."""
    try:
        facts = registry.describe("method", method, variant).facts
    except BenchError:
        return {}
    return dict(facts.get("seen_test_sets", {}))


def _infinite(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"


def _nearest(found: list[Candidate], constraints: Constraints) -> list[str]:
    """What comes nearest: all but the delta; or the best accuracy within epsilon and the least epsilon that has it.

    Where nothing keeps one of these, the least epsilon of all; or that there is none.
    """
    loose = [c for c in found if not objection(c, replace(constraints, delta=1.0))]
    if loose:
        best = min(loose, key=lambda c: (c.delta or 0.0, -(c.accuracy or 0.0)))
        others = f", and {len(loose) - 1} more" if len(loose) > 1 else ""
        return [f"nearest: at a delta of {best.delta:g}, above {constraints.delta:g}: {_line(best)}{others}"]
    sound = [c for c in found if not objection(c, replace(constraints, epsilon=ANY_FINITE, accuracy=0.0))]
    lines = []
    within = [c for c in sound if c.epsilon is not None and c.epsilon <= constraints.epsilon * (1 + EXACT)]
    if within:
        best = max(within, key=lambda c: c.accuracy or 0.0)
        lines.append(f"nearest: most accurate within epsilon {constraints.epsilon:g}: {_line(best)}")
    good = [c for c in sound if (c.accuracy or 0.0) >= constraints.accuracy]
    if good:
        best = min(good, key=lambda c: c.epsilon or 0.0)
        lines.append(f"nearest: least epsilon with accuracy {constraints.accuracy:g}: {_line(best)}")
    if not sound:
        told = f"no row is accounted per {constraints.unit} with a finite epsilon that stands"
        return [told if constraints.unit in HEADLINES else f"{told}; a row has one unit, and its record holds others"]
    if not lines:
        best = min(sound, key=lambda c: c.epsilon or 0.0)
        lines.append(f"neither limit is met by any; least epsilon of all: {_line(best)}")
    return lines


def _line(candidate: Candidate) -> str:
    dataset, tier, split = candidate.place
    return (
        f"{candidate.name} on {dataset} ({tier}, {split}): accuracy {candidate.accuracy or 0.0:.3f}, "
        f"accounted {candidate.epsilon or 0.0:.4g}"
    )
