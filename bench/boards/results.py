"""Results: every release of a board with each attack on it, joined from the three tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.boards.build import mean
from bench.boards.flags import OLDER, pretrained_flag
from bench.boards.installed import installed_version, needs, teacher_matters
from bench.boards.tables import ACCURACY, AttackRow, Board, ReleaseRow, RunRow, read_options
from bench.config import STUDENT
from bench.storage.records import BUDGET, Changed, described


@dataclass(frozen=True)
class Result:
    """A release with one attack or none, over its seeds.

    Attributes:
        release: its row in the table of releases.
        runs: its runs, sorted by seed.
        numbers: metric to row of the table of attacks. Numbers of the release that were not repeated for these runs are
            those of the release's row.
    """

    release: ReleaseRow
    runs: tuple[RunRow, ...]
    numbers: Mapping[str, AttackRow]

    @cached_property
    def attack(self) -> AttackRow | None:
        """One of the rows of its attack, which share name, variant, version, access and power; None without one."""
        return next((row for row in self.numbers.values() if row.attack), None)

    @cached_property
    def options(self) -> Changed:
        """Options that differ from the defaults: of the method, the attack, the teacher, the evaluator, the budget."""
        of_attack = read_options(next((row.options for row in self.numbers.values() if row.options), ""))
        return read_options(self.release.options) | {group: given for group, given in of_attack.items() if given}

    @cached_property
    def setting(self) -> str:
        """The options in a line."""
        return described(self.options)

    def value(self, metric: str) -> float | None:
        """Return the mean of a number over seeds; None where it was not measured."""
        row = self.numbers.get(metric)
        return None if row is None else row.value

    def on_teacher(self, metric: str) -> float | None:
        """Return the same number of the unprotected teacher; None where it was not measured."""
        row = self.numbers.get(metric)
        return None if row is None else row.teacher

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over seeds, in [0, 1]; None if no run finished."""
        return self.value(ACCURACY)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the accuracy over seeds; None for one seed."""
        return self.numbers[ACCURACY].deviation if ACCURACY in self.numbers else None

    @property
    def claimed(self) -> float | None:
        """The epsilon that the method's paper claims; None without a claim."""
        return self.value("epsilon_claimed") if "epsilon_claimed" in self.numbers else self.release.epsilon_claimed

    @property
    def accounted(self) -> float | None:
        """The accounted epsilon; None if no run finished."""
        row = self.numbers.get("epsilon_accounted")
        return self.release.epsilon_accounted if row is None else row.value

    @property
    def information(self) -> float | None:
        """Upper bound in nats on the information in all responses; None where it is not known."""
        return self.value("information") if "information" in self.numbers else self.release.information

    @cached_property
    def finished(self) -> tuple[RunRow, ...]:
        """The runs that did not fail."""
        return tuple(run for run in self.runs if run.status != "failed")

    @property
    def seconds(self) -> float | None:
        """Mean seconds of a run; None if no run finished."""
        return mean([run.seconds for run in self.finished])

    @property
    def device(self) -> str:
        """The devices of the runs."""
        return " | ".join(sorted({run.device for run in self.finished}))

    @cached_property
    def is_older(self) -> bool:
        """Whether the installed method or attack is newer than the one that was run."""
        release, attack = self.release, self.attack
        if release.version < installed_version("method", release.method, release.variant):
            return True
        if attack is None or attack.version is None:
            return False
        return attack.version < installed_version("attack", attack.attack, attack.variant)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Facts that a reader must know before using the result; none if no run finished."""
        if not self.finished:
            return frozenset()
        return frozenset(self.runs[0].flags.split()) | ({OLDER} if self.is_older else set())

    @property
    def release_setting(self) -> str:
        """The options of the release in a line, without those of a teacher that the method does not use."""
        release = self.release
        found = needs(release.method, release.variant, release.tier, self.options["method"])
        unused = ("attack", "evaluator") if teacher_matters(found) else ("attack", "evaluator", "teacher")
        return described({group: given for group, given in self.options.items() if group not in unused})


@dataclass(frozen=True)
class Reference:
    """Scores of reference images, which were made without querying a network.

    Attributes:
        kind: a key of `bench.metrics.metric.REFERENCES`.
        attack, variant: the attack whose generator made the images; "" for images of no attack.
        numbers: metric to mean over runs.
    """

    tier: str
    split: str
    kind: str
    attack: str
    variant: str
    numbers: Mapping[str, float | None]


def results(board: Board) -> list[Result]:
    """Return the results of a board, sorted by tier, split, method, variant, setting, networks and attack."""
    runs, measured = group_rows(board)
    found = []
    for release in board.releases:
        evaluations: dict[str, list[RunRow]] = defaultdict(list)
        for run in runs[release.release]:
            evaluations[run.evaluation].append(run)
        counted = {run.evaluation for run in runs[release.release] if run.counted}
        of_release = {row.metric: row for name in counted for row in measured.get(name, ()) if not row.attack}
        for evaluation, of in evaluations.items():
            own = {row.metric: row for row in measured.get(evaluation, ())}
            found.append(Result(release, tuple(of), of_release | own))
    return sorted(found, key=_order)


def _order(result: Result) -> tuple[str | float, ...]:
    release, attack = result.release, result.attack
    of_attack = ("", "") if attack is None else (attack.attack, attack.variant)
    return (
        release.tier, release.split, release.method, release.variant, result.setting, release.teacher, release.student,
        *of_attack, -1.0 if release.delta is None else release.delta, " ".join(run.run for run in result.runs),
    )  # fmt: skip


def references(board: Board) -> list[Reference]:
    """Return the scores of a board's reference images, by tier, split, kind and attack."""
    found: dict[tuple[str, str, str], dict[str, float | None]] = defaultdict(dict)
    for row in board.attacks:
        if not row.evaluation:
            found[row.release, row.attack, row.variant][row.metric] = row.value
    made = []
    for (key, attack, variant), numbers in found.items():
        _, tier, place = key.split("/", 2)  # reference/TIER/SPLIT/KIND
        split, _, kind = place.rpartition("/")
        made.append(Reference(tier, split, kind, attack, variant, numbers))
    return made


def group_rows(board: Board) -> tuple[dict[str, list[RunRow]], dict[str, list[AttackRow]]]:
    """Group the runs by release, and the rows of the table of attacks by evaluation."""
    runs: dict[str, list[RunRow]] = defaultdict(list)
    measured: dict[str, list[AttackRow]] = defaultdict(list)
    for run in board.runs:
        runs[run.release].append(run)
    for row in board.attacks:
        measured[row.evaluation].append(row)
    return runs, measured


def of_tier(found: Iterable[Result], tier: str | None = None) -> list[Result]:
    """Select the results of a tier; None = of all tiers except smoke, whose numbers mean nothing."""
    return [each for each in found if each.release.tier == tier or (tier is None and each.release.tier != "smoke")]


def release_command(row: ReleaseRow, dataset: str, budget: Mapping[str, Any], tier: str = "") -> str:
    """Return the `bench run` command that makes a release again.

    Args:
        dataset: the data set as it is typed.
        budget: options of the budget; of the row's budget only the unit is kept.
        tier: another tier than the row's.
    """
    options = read_options(row.options)
    limits = {"unit": options["budget"].get("unit", "example"), **budget}
    usual = {"teacher": "resnet18", "tier": "quick", "unit": "example", "solve": "none"}
    named = {"teacher": row.teacher, "tier": tier or row.tier} | {key: limits[key] for key in BUDGET if key in limits}
    words = [f"bench run --method {row.method} --variant {row.variant} --dataset {dataset}"]
    given = {name: write_option(value) for name, value in named.items()}
    words += [f"--{name} {value}" for name, value in given.items() if value not in ("", usual.get(name))]
    words += [f"--student {row.student}"] if row.student not in ("", STUDENT) else []
    words += [f"--split {row.split}"] if row.split not in ("", "iid") else []
    words += ["--pretrained FILE"] if pretrained_flag(row.flags.split()) else []
    for group in ("method", "teacher"):
        words += [f"--{group}.{name} {write_option(value)}" for name, value in options[group].items()]
    return " ".join(words)


def write_option(value: Any) -> str:
    """Format an option's value as the command takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
