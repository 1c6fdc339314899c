"""Choose a release from the boards: only accounted epsilons count, never claimed ones."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bench import data
from bench.boards.attacked import Attacked, Inversion, attacked, inversion
from bench.boards.build import deviation, mean
from bench.boards.flags import OLDER, UNTRUE, pretrained_flag
from bench.boards.installed import installed_version, needs, teacher_matters, tuned_on_test_sets
from bench.boards.results import group_rows
from bench.boards.tables import LOWER, AttackRow, Board, ReleaseRow, RunRow, read_options
from bench.core.epsilon import format_epsilon
from bench.data.splits import CANARIES
from bench.storage.records import described

EXACT = 1e-9
ALIKE = 1e-3
"""Relative difference below which two epsilons count as the same budget: noise search stops within this tolerance."""
MOST_DELTA = 1e-4
"""Default limit of delta: below one over the number of records of every board."""
ANY_FINITE = sys.float_info.max / 2
"""A limit that every finite epsilon meets and infinity does not, also with the tolerance of `objection`."""
HEADLINES = ("example", "label")
"""Units of the rows' accounts; a record may hold further accounts for other units."""


@dataclass(frozen=True)
class Constraints:
    """The user's requirements: an accounted epsilon of at most `epsilon` for one `unit`, at a delta of at most `delta`,
    and at least `accuracy`."""

    unit: str
    epsilon: float
    accuracy: float
    delta: float = MOST_DELTA


@dataclass(frozen=True)
class Candidate:
    """One release of a board, with all its measurements.

    Attributes:
        row: its row of the table of releases; of several that differ only in irrelevant options, the one with most
            seeds.
        counted: the runs behind the row's numbers.
        measured: metric to row of the table of attacks, for the numbers without an attack.
        attacked: the attacks on the release.
        row_flags: the flags of all its rows, except the one for an older version.
        whose: "" or the owner of its board.
    """

    row: ReleaseRow
    counted: tuple[RunRow, ...]
    measured: Mapping[str, AttackRow]
    attacked: tuple[Attacked, ...]
    row_flags: frozenset[str]
    whose: str = ""

    @property
    def flags(self) -> frozenset[str]:
        """Facts that a user must know before using the release."""
        return self.row_flags | ({OLDER} if self.older else frozenset())

    @property
    def place(self) -> tuple[str, str, str]:
        """Data set, tier and split: candidates are ranked only if these are the same.

        Releases that began from public pretrained weights are ranked separately: no other release had such data.
        """
        weights = pretrained_flag(self.row_flags)
        return self.row.dataset, self.row.tier, self.row.split + (", public weights" if weights else "")

    @cached_property
    def name(self) -> str:
        """Method, variant and setting, such as "dpsd (working) teachers=40 epsilon=8.0"."""
        return f"{self.row.method} ({self.row.variant}) {released(self.row)}".strip()

    @property
    def accuracy(self) -> float | None:
        """Mean over the seeds, in [0, 1]; None if no run finished."""
        return self.row.accuracy

    @property
    def epsilon(self) -> float | None:
        """Accounted epsilon, which may be infinite; None if no run finished."""
        return self.row.epsilon_accounted

    @property
    def delta(self) -> float | None:
        """The delta of the accounted epsilon; None if no run finished."""
        return self.row.delta

    @property
    def older(self) -> str:
        """A phrase saying that the method has changed since; "" if it has not."""
        method, version = self.row.method, self.row.version
        if version >= installed_version("method", method, self.row.variant):
            return ""
        return f"made by version {version:g} of {method}, which has changed since: run it again"

    @property
    def finished(self) -> int:
        """Number of seeds with a result."""
        return sum(run.status != "failed" for run in self.counted)

    @property
    def seconds(self) -> float | None:
        """Mean seconds of a run; None if no run finished."""
        return mean([run.seconds for run in self.counted if run.status != "failed"])

    @property
    def device(self) -> str:
        """The device of the runs."""
        return " | ".join(sorted({run.device for run in self.counted if run.status != "failed"}))

    @property
    def attacks(self) -> tuple[str, ...]:
        """One line per attack."""
        return tuple(map(str, self.attacked))

    @property
    def strongest(self) -> Inversion | None:
        """The attack with the largest gain over public images, among those that proved their power, if any did.

        An attack that was not compared with public images comes last: without a baseline its gain would be overstated.
        """
        proven = [found for each in self.attacked if each.has_power and (found := inversion(each)) is not None]
        return max(proven, key=lambda found: (found.public is not None, found.gain), default=None)

    @property
    def best_membership(self) -> Attacked | None:
        """The membership attack with the largest AUC, among those that proved their power, if any did."""
        proven = [each for each in self.attacked if each.has_power and each.value("auc") is not None]
        return max(proven, key=lambda each: each.value("auc") or 0.0, default=None)

    @property
    def spread(self) -> str:
        """Standard deviation and number of seeds, and how many runs failed."""
        std = deviation([run.accuracy for run in self.counted if run.status != "failed"])
        failed = len(self.counted) - self.finished
        spread = "one seed" if std is None else f"sd {std:.3f}, {self.finished} seeds"
        return spread + (f", {failed} failed" if failed else "")


@dataclass(frozen=True)
class Choice:
    """Candidates that meet the constraints, grouped by place, best first; the others; the nearest misses."""

    taken: dict[tuple[str, str, str], list[Candidate]]
    excluded: list[Candidate]
    nearest: list[str]


def choose(boards: Iterable[Board], constraints: Constraints) -> Choice:
    """Split the releases of boards into those that meet the constraints and the others (`objection` says why)."""
    taken: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    excluded = []
    for candidate in candidates(boards):
        # Check last whether the method has changed, since that reads its source
        if _broken_limit(candidate, constraints) or candidate.older:
            excluded.append(candidate)
        else:
            taken[candidate.place].append(candidate)
    for found in taken.values():
        found.sort(key=by_accuracy)
    return Choice(dict(sorted(taken.items())), excluded, [] if taken else _nearest(excluded, constraints))


def by_accuracy(candidate: Candidate) -> tuple[float, float, str, str, str]:
    """Return the key that sorts candidates: the most accurate first, of equal ones that with the least epsilon."""
    row = candidate.row
    return -(candidate.accuracy or 0.0), candidate.epsilon or 0.0, row.method, row.options, row.release


def least_epsilon(found: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least accounted epsilon; among equal ones (`ALIKE`) that with the least delta, then
    the most accurate."""
    most = min(c.epsilon or 0.0 for c in found) * (1 + ALIKE)
    alike = [c for c in found if (c.epsilon or 0.0) <= most]
    return min(alike, key=lambda c: (c.delta or 0.0, -(c.accuracy or 0.0), c.name))


def candidates(boards: Iterable[Board]) -> list[Candidate]:
    """Return one candidate per release, in the boards' order; rows with only irrelevant differences are merged.

    Irrelevant are the teacher of a method that does not query it, and parts of the spec that the row does not show.
    Students of split canaries are left out: they learned wrong labels for audits and are not meant for release.
    """
    found = []
    for board in boards:
        runs, measured = group_rows(board)
        found += [_candidate(rows, runs, measured, board.whose) for rows in _same_releases(board)]
    return found


def _same_releases(board: Board) -> list[list[ReleaseRow]]:
    """Group the rows of a board by release."""
    groups: dict[tuple[object, ...], list[ReleaseRow]] = defaultdict(list)
    for row in board.releases:
        if not row.split.startswith(CANARIES):
            # A run with today's noise is another release
            is_coarse = "float32-noise" in row.flags.split()
            same = (row.tier, row.split, row.method, row.variant, row.version, row.student, row.delta, row.unit)
            weights = pretrained_flag(row.flags.split())
            groups[(*same, is_coarse, weights, described(read_options(row.options) | {"teacher": {}}))].append(row)
    found = []
    for rows in groups.values():
        by_teacher: dict[tuple[str, str], list[ReleaseRow]] = defaultdict(list)
        for row in rows:
            by_teacher[row.teacher, described({"teacher": read_options(row.options)["teacher"]})].append(row)
        is_one = len(by_teacher) == 1 or not any(map(queries_teachers, rows))
        found += [rows] if is_one else list(by_teacher.values())
    order = {row.release: number for number, row in enumerate(board.releases)}
    return sorted(found, key=lambda rows: order[rows[0].release])


def _candidate(
    rows: Sequence[ReleaseRow], runs: Mapping[str, list[RunRow]], measured: Mapping[str, list[AttackRow]], whose: str
) -> Candidate:
    """Build the candidate of rows that are one release; the row with most seeds represents it."""
    counted = {row.release: tuple(run for run in runs[row.release] if run.counted) for row in rows}

    def rank(row: ReleaseRow) -> tuple[int, bool, str, str]:
        first = counted[row.release][0]
        finished = sum(run.status != "failed" for run in counted[row.release])
        return -finished, any(each.attack for each in measured.get(first.evaluation, ())), row.options, first.run

    best = min(rows, key=rank)
    numbers = {each.metric: each for each in measured.get(counted[best.release][0].evaluation, ()) if not each.attack}
    evaluations = {run.evaluation for row in rows for run in runs[row.release]}
    bounds = [each for name in evaluations for each in measured.get(name, ()) if each.metric == LOWER]
    if bounds:  # an audit of any row applies to the release
        numbers[LOWER] = max(bounds, key=lambda each: (each.value or 0.0, each.teacher or 0.0))
        best = replace(best, epsilon_lower=numbers[LOWER].value)
    found = [each for row in rows for each in attacked(runs[row.release], measured)]
    flags = frozenset(flag for row in rows for flag in row.flags.split())
    return Candidate(best, counted[best.release], numbers, tuple(found), flags, whose)


def released(row: ReleaseRow) -> str:
    """Format the options of a release in a line, without those of a teacher that the method does not query."""
    return described(read_options(row.options) | ({} if queries_teachers(row) else {"teacher": {}}))


def queries_teachers(row: ReleaseRow) -> bool:
    """Whether the release depends on the teacher's network or recipe; True for a method that is not installed."""
    return teacher_matters(needs(row.method, row.variant, row.tier, read_options(row.options)["method"]))


def objection(candidate: Candidate, constraints: Constraints) -> str:
    """Return why a candidate does not meet the constraints, in a line; "" if it does."""
    if candidate.accuracy is not None and candidate.epsilon is not None and candidate.row.tier != "smoke":
        return candidate.older or _broken_limit(candidate, constraints)
    return _broken_limit(candidate, constraints)


def _broken_limit(candidate: Candidate, constraints: Constraints) -> str:
    """Return the same, ignoring whether the method has changed since."""
    row, epsilon, accuracy, claim = candidate.row, candidate.epsilon, candidate.accuracy, candidate.row.epsilon_claimed
    claimed = "nothing claimed" if claim is None else f"claimed {format_epsilon(claim)} per {row.claimed_unit}"
    if row.tier == "smoke":
        return "tier smoke, whose numbers mean nothing"
    if accuracy is None or epsilon is None:
        return "no run of it was finished"
    if row.unit != constraints.unit:
        return f"{claimed}, accounted per {row.unit}, not per {constraints.unit}"
    for flag in (flag for flag in UNTRUE if flag in candidate.row_flags):
        return f"{claimed}, {UNTRUE[flag]}"
    if epsilon > constraints.epsilon * (1 + EXACT):
        return f"{claimed}, accounted {format_epsilon(epsilon)}"
    if candidate.delta is not None and candidate.delta > constraints.delta * (1 + EXACT):
        return f"accounted {epsilon:.4g} at a delta of {candidate.delta:g}, above {constraints.delta:g}"
    if accuracy < constraints.accuracy:
        return f"accounted {epsilon:.4g}, accuracy {accuracy:.3f} below {constraints.accuracy:g}"
    return ""


def missing_measurements(candidate: Candidate) -> list[str]:
    """Return phrases for everything that was not measured of a release, so that its row may look better than it is."""
    row, found = candidate.row, []
    for name, score in (("reconstructs records", "attack_accuracy"), ("guesses members", "auc")):
        scored = [each for each in candidate.attacked if each.value(score) is not None]
        if not scored:
            found.append(f"no attack that {name}")
        elif not any(each.has_power for each in scored):
            found.append(f"no attack with proved power that {name}")
    if row.epsilon_lower is None:
        found.append("no audit")
    elif LOWER not in candidate.measured or not candidate.measured[LOWER].teacher:
        found.append("no audit that finds anything on the unprotected teacher")
    if candidate.finished < 2:
        found.append("no second seed")
    if row.tier != "paper":
        found.append(f"nothing at the papers' size (this is tier {row.tier})")
    if candidate.device and all(device.startswith("cpu") for device in candidate.device.split(" | ")):
        found.append("nothing on a GPU")
    seen = tuned_on_test_sets(row.method, row.variant).get(data.base_name(row.dataset))
    return [f"no unseen test set: on this one {seen}", *found] if seen else found  # first, as long lists are cut


def _nearest(found: list[Candidate], constraints: Constraints) -> list[str]:
    """Return the nearest misses: all but the delta; or best accuracy within epsilon and least epsilon with that
    accuracy.

    Without any such release it is the one with the least epsilon of all, or a sentence.
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
        line = f"no row is accounted per {constraints.unit} with a finite and valid epsilon"
        return [line if constraints.unit in HEADLINES else f"{line}; a row has one unit, and its record holds others"]
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
