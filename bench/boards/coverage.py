"""Coverage: which attacks ran on the releases that `bench choose` recommends, with no empty cell.

A recommended release and a kind of attack have a cell: the attack's result and its baseline without the target, the
reason why the kind does not apply, or that it is missing and why (`bench.boards.gaps`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench import data, registry
from bench.boards.attacked import Attacked, Inversion, inversion, percent
from bench.boards.selection import (
    ANY_FINITE,
    EXACT,
    Candidate,
    Constraints,
    by_accuracy,
    candidates,
    least_epsilon,
    objection,
)
from bench.boards.tables import LOWER, LOWER_NULL, Board
from bench.core.verdict import GUESSING, Success, exceeds
from bench.data.splits import AUX_SHARE, FEW, FROM_ANOTHER_SET, HALVES
from bench.errors import BenchError

FEWEST_CLASSES = 4
"""Smallest number of classes with a test of an inversion's power (`bench.metrics.power`)."""
WITHOUT_MODEL = "blind_auc"
"""Metric of the AUC of a classifier that sees the suspects only."""


class AttackKind(StrEnum):
    """A kind of attack: a column of the table of coverage."""

    INVERSION = "inversion"
    LOSS = "loss"
    REFERENCES = "references"
    QUANTILE = "quantile"
    LABEL_ONLY = "label-only"
    RELEASED = "released"
    AUDIT = "audit"


EXPLAINED: Mapping[AttackKind, str] = {
    AttackKind.INVERSION: "images of a class: the attack that gains most over public images",
    AttackKind.LOSS: "membership by the loss of a record",
    AttackKind.REFERENCES: "membership by reference models: the strongest of rmia, lira, base, ramia, duci, shadow",
    AttackKind.QUANTILE: "membership by quantile regression",
    AttackKind.LABEL_ONLY: "membership by predicted classes only",
    AttackKind.RELEASED: "membership by released images or a released generator: gan-leaks, domias, moment-tracing",
    AttackKind.AUDIT: "the audit of one training run with canaries",
}
MEMBERSHIP: Mapping[AttackKind, tuple[str, ...]] = {
    AttackKind.LOSS: ("loss-threshold",),
    AttackKind.REFERENCES: ("rmia", "lira", "base", "ramia", "duci", "shadow"),
    AttackKind.QUANTILE: ("quantile",),
    AttackKind.LABEL_ONLY: ("label-only",),
    AttackKind.RELEASED: ("gan-leaks", "domias", "moment-tracing"),
}
"""Attacks of each kind that decides on membership; the first one is run where none is named."""
NAMED = (AttackKind.INVERSION, AttackKind.REFERENCES, AttackKind.RELEASED)
"""Kinds of several attacks: a cell names the one that it shows."""
UNLABELLED = "the attacker's images have no labels of the private classes"


class State(StrEnum):
    """Whether a kind of attack ran on a release."""

    RAN = "ran"
    NOT_APPLICABLE = "does not apply"
    MISSING = "missing"


@dataclass(frozen=True)
class Cell:
    """One kind of attack on one release.

    Attributes:
        attack: name of the attack that ran; for an audit "audit".
        metric: `attack_accuracy` or `judge_accuracy`, `auc`, or `epsilon_lower`; "" where nothing ran.
        value: the number of the release: a share or an AUC in [0, 1], or a lower bound on epsilon.
        baseline: the same number without the target; None where it was not measured.
        baseline_of: "public images", "no model", "random weights" or "no canaries".
        teacher: the same number of the unprotected teacher or the memorising generator.
        power: whether the attack works on the unprotected teacher.
        is_older: whether the attack has changed since.
        reason: why it has no power, why the kind does not apply, or why it is missing.
    """

    kind: AttackKind
    state: State
    attack: str = ""
    metric: str = ""
    value: float | None = None
    baseline: float | None = None
    baseline_of: str = ""
    teacher: float | None = None
    power: bool = False
    is_older: bool = False
    reason: str = ""

    def __str__(self) -> str:
        """Format as in "gmi 81.0 % / 94.0 %", value and baseline; a cell that did not run is its state."""
        if self.state is not State.RAN:
            return str(self.state)
        baseline = "not measured" if self.baseline is None else self._format(self.baseline)
        value = "no score" if self.value is None else self._format(self.value)
        notes = ("" if self.power else ", no power") + (", older version" if self.is_older else "")
        name = f"{self.attack} " if self.kind in NAMED else ""
        return f"{name}{value} / {baseline}{notes}"

    def _format(self, value: float) -> str:
        if self.metric.endswith("accuracy"):
            return percent(value)
        return f"{value:.3f}" if self.metric == "auc" else f"{value:.2f}"


@dataclass(frozen=True)
class CoveredRelease:
    """A recommended release with one cell per kind of attack, in the order of `AttackKind`."""

    release: Candidate
    cells: tuple[Cell, ...]


def coverage(board: Board) -> list[CoveredRelease]:
    """Return the recommended releases of a board with their cells, by place, unit and epsilon."""
    void = void_splits(board)
    return [CoveredRelease(each, cells(each, void)) for each in recommended(candidates([board]))]


def cells(release: Candidate, void: Mapping[str, str]) -> tuple[Cell, ...]:
    """Return the cells of a release, in the order of `AttackKind`; `void` is that of `void_splits`."""
    return tuple(_cell(release, kind, void) for kind in AttackKind)


def numbered_reasons(found: Iterable[CoveredRelease]) -> dict[str, int]:
    """Number the reasons of cells from 1, in the order of their first cell."""
    reasons = dict.fromkeys(cell.reason for each in found for cell in each.cells if cell.reason)
    return {reason: number for number, reason in enumerate(reasons, 1)}


def recommended(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that `bench choose` names at its usual delta, for some limits on epsilon and accuracy.

    For a limit on epsilon it names the most accurate candidate of a place, for one on accuracy that of least epsilon.
    """
    groups: dict[tuple[str, ...], list[Candidate]] = defaultdict(list)
    for each in found:
        if not objection(each, Constraints(each.row.unit, ANY_FINITE, 0.0)):
            groups[(*each.place, each.row.unit)].append(each)
    return [each for _, of_group in sorted(groups.items()) for each in _named(of_group)]


def _named(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates of one place and unit that are named for some limit, by rising epsilon."""
    ranked = sorted(found, key=by_accuracy)
    named = {}
    for limit in {each.epsilon or 0.0 for each in found}:
        best = next(each for each in ranked if (each.epsilon or 0.0) <= limit * (1 + EXACT))
        named[best.row.release] = best
    for limit in {each.accuracy or 0.0 for each in found}:
        best = least_epsilon([each for each in found if (each.accuracy or 0.0) >= limit])
        named[best.row.release] = best
    return sorted(named.values(), key=lambda each: (each.epsilon or 0.0, by_accuracy(each)))


def void_splits(board: Board) -> dict[str, str]:
    """Return the splits on which every membership attack is void, with the reason: without any model, a classifier
    separates members from other suspects."""
    splits = {row.release: row.split for row in board.releases}
    return {
        splits[row.release]: f"void on this split: a classifier without a model has AUC {row.value:.3f} "
        f"[{row.low:.3f}, {row.high:.3f}]"
        for row in board.attacks
        if row.metric == WITHOUT_MODEL and row.release in splits and exceeds(Success(row.low, row.high), GUESSING)
    }


def _cell(release: Candidate, kind: AttackKind, void: Mapping[str, str]) -> Cell:
    """Return the result of a kind of attack on a release, or why there is none."""
    if kind is AttackKind.AUDIT:
        ran = _audit(release)
    elif kind is AttackKind.INVERSION:
        ran = _inversion(release)
    else:
        ran = _membership(release, kind)
    if ran is not None:
        return ran
    reason = skip_reason(release, kind) or (void.get(release.row.split, "") if kind in MEMBERSHIP else "")
    return Cell(kind, State.NOT_APPLICABLE if reason else State.MISSING, reason=reason)


def _audit(release: Candidate) -> Cell | None:
    """Return the strongest audit of a release; None without one."""
    bound = release.measured.get(LOWER)
    if bound is None:
        return None
    null = release.measured.get(LOWER_NULL)
    power = bool(bound.teacher)
    return Cell(
        AttackKind.AUDIT, State.RAN, "audit", LOWER, bound.value, None if null is None else null.value, "no canaries",
        bound.teacher, power, reason="" if power else "it finds nothing on the unprotected teacher",
    )  # fmt: skip


def _inversion(release: Candidate) -> Cell | None:
    """Return the inversion with the largest gain, of those with power if any has it; None where none ran."""
    ran = [(each, found) for each in release.attacked if not _is_null(each) and (found := inversion(each)) is not None]
    if not ran:
        return None

    def rank(each: tuple[Attacked, Inversion]) -> tuple[bool, bool, float]:
        attacked, found = each
        return attacked.has_power, found.public is not None, found.gain

    attacked, found = max(ran, key=rank)
    metric = "attack_accuracy" if found.judge == "evaluator" else "judge_accuracy"
    return Cell(
        AttackKind.INVERSION, State.RAN, found.attack, metric, found.success, found.public, "public images",
        found.on_teacher, attacked.has_power, attacked.is_older, attacked.any.reason,
    )  # fmt: skip


def _membership(release: Candidate, kind: AttackKind) -> Cell | None:
    """Return the membership attack of a kind with the largest AUC, of those with power if any has it; None where none
    ran."""
    ran = [each for each in release.attacked if each.any.attack in MEMBERSHIP[kind] and each.value("auc") is not None]
    if not ran:
        return None
    best = max(ran, key=lambda each: (each.has_power, each.value("auc") or 0.0))
    row, blind = best.rows["auc"], best.value(WITHOUT_MODEL)
    return Cell(
        kind, State.RAN, row.attack, "auc", row.value, row.untrained if blind is None else blind,
        "random weights" if blind is None else "no model", row.teacher, best.has_power, best.is_older, row.reason,
    )  # fmt: skip


def skip_reason(release: Candidate, kind: AttackKind) -> str:
    """Return why a kind of attack cannot give a result on a release, from facts that are known without running it; ""
    if it applies."""
    name, split = release.row.dataset, release.row.split
    if kind is AttackKind.AUDIT:
        return "" if split == "iid" else "audits draw their canaries from split iid"
    if kind is AttackKind.INVERSION:
        classes = len(data.facts(name).classes_of(split))
        too_few = 0 < classes < FEWEST_CLASSES
        return f"{classes} classes: the test of power needs {FEWEST_CLASSES}" if too_few else ""
    if release.row.unit == "label":
        return "unit label protects labels only, not whether an image was used"
    if kind is AttackKind.RELEASED and not _fact("method", release.row.method, "releases_images", True):
        return "neither images nor a generator are released"
    return _missing_records(name, split, kind)


def _missing_records(name: str, split: str, kind: AttackKind) -> str:
    """Return why the attacker's records do not suffice for any attack of a kind; "" if they do."""
    attacks = MEMBERSHIP[kind]
    if all(_fact("attack", attack, "labelled", True) for attack in attacks) and not attacker_has_labels(name, split):
        return UNLABELLED
    least, there = min(_fact("attack", attack, "min_records", 0) for attack in attacks), most_population(name, split)
    if there is not None and there < least:
        return f"{there} labelled records of the attacker; it needs {least}"
    return ""


def attacker_has_labels(name: str, split: str) -> bool:
    """Whether the attacker's images on a split have labels of the private classes."""
    facts = data.facts(name)
    return not (
        split in (*FROM_ANOTHER_SET, *HALVES)
        or (split == "identity" and (facts.has_outsiders or facts.classes_are_people))
    )


def most_population(name: str, split: str) -> int | None:
    """Return an upper limit of the attacker's labelled records, without the suspects; None if it is not known."""
    counts = data.facts(name).counts
    if counts is None or split not in ("iid", "few"):
        return None
    of_attacker = counts[0] // AUX_SHARE if split == "iid" else max(counts[0] - FEW, 0)
    return of_attacker // 2


def _is_null(attacked: Attacked) -> bool:
    return bool(_fact("attack", attacked.any.attack, "is_null", False))


def _fact(kind: str, name: str, fact: str, usual: bool | int) -> bool | int:
    """Return a fact of a plug-in; the usual value if it does not declare one, or is not installed."""
    try:
        found: bool | int = registry.describe(kind, name).facts.get(fact, usual)
    except BenchError:
        return usual
    return found
