"""The points of charts: releases and attacks, sorted into panels of one unit each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bench import boards
from bench.boards.flags import UNTRUE, pretrained_source, share_of_commonest, standing
from bench.boards.installed import installed_version
from bench.privacy.budget import epsilon_from_json
from bench.report.glossary import UNITS
from bench.storage.records import Record
from bench.storage.specs import canonical

OLDER = "older version"


@dataclass(frozen=True)
class Point:
    """A mark of a chart.

    Attributes:
        setting: the variant, and options that differ from its defaults.
        x: epsilon, infinity included, or the attack's success.
        y: accuracy in [0, 1]; `spread` is its standard deviation over seeds, None for one seed.
        run: the hash of one of its runs; "" for a number from a paper.
        series: points of one series differ only in the budget.
        proven: whether its attack has proved its power.
        unit: the protected unit of the release, in panels of attacks.
        account: the accounted epsilon and its unit, if the axis shows another number; None if unknown.
        commonest: the accuracy of always predicting the commonest class; None if unknown.
        is_pretrained: whether the release began from public pretrained weights.
    """

    method: str
    setting: str
    x: float
    y: float
    spread: float | None
    run: str
    series: str = ""
    seeds: int = 1
    proven: bool = True
    unit: str = ""
    account: tuple[float, str] | None = None
    commonest: float | None = None
    is_pretrained: bool = False

    def format_y(self, is_share: bool) -> str:
        """Format `y` with its deviation, in percent if it is a share."""
        if is_share:
            spread = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
            return f"{100 * self.y:.1f}{spread} %"
        return f"{self.y:,.4g}" + ("" if self.spread is None else f" ± {self.spread:,.3g}")


@dataclass(frozen=True)
class Panel:
    """Points that may be compared: of one kind of epsilon and one unit, or of one attack.

    Attributes:
        what: the number on the x axis: "claimed", "accounted" or "reported" epsilon, or the measure of an attack.
        unit: the protected unit; "" in a panel of an attack, whose points have their own units.
    """

    what: str
    unit: str
    points: list[Point]
    attack: str = ""
    lines: dict[str, float] = field(default_factory=dict)
    """Label to a level: of accuracy in a panel of epsilon, of the attack's success in a panel of an attack."""

    commonest: float | None = None
    """The accuracy of always predicting the commonest class."""


def commonest(records: Iterable[Record]) -> float | None:
    """Return the accuracy of always predicting the commonest class; the largest, as older runs assumed equal
    classes."""
    return largest(share_of_commonest(record) for record in records)


def largest(shares: Iterable[float | None]) -> float | None:
    """Return the largest of the known values."""
    return max((share for share in shares if share is not None), default=None)


def reach(points: Iterable[Point]) -> list[float]:
    """Return the y values of points, and of the ends of their bars."""
    return [point.y + way * (point.spread or 0.0) for point in points for way in (-1, 0, 1)]


def grouped(records: Iterable[Record], attacks: bool) -> list[list[Record]]:
    """Group finished records that differ only in seeds, one per seed; without `attacks`, merge all attacks on a
    release.

    Several rows of a board may have the same setting, such as one for each attack, from different trainings. Seeds are
    taken from one row as far as it has them, so that their mean is also on a board: first a row with valid noise, then
    the one with most seeds, then the one without an attack. Missing seeds are taken from other rows with the same kind
    of noise.
    """
    groups: dict[str, dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in sorted(records, key=lambda record: record.hash):
        if record.privacy and record.metrics.get("accuracy") is not None:
            release = boards.with_all_options(record.spec["release"], record.spec["tier"])
            kept = (record.spec if attacks else {"tier": record.spec["tier"]}) | {"release": release}
            row = groups[canonical(boards.identity(kept))][canonical(boards.identity(record.spec))]
            row.setdefault(boards.seed(record), record)

    def order(row: dict[int, Record]) -> tuple[int, bool, str]:
        return -len(row), any(each.spec["attack"] for each in row.values()), min(each.hash for each in row.values())

    found = []
    for _, group in sorted(groups.items()):
        rows = list(group.values())
        if len(rows) > 1:
            of_kind = {coarse: [row for row in rows if is_coarse(row.values()) is coarse] for coarse in (False, True)}
            rows = sorted(of_kind[False] or of_kind[True], key=order)
        by_seed: dict[int, Record] = {}
        for row in rows:
            by_seed = row | by_seed
        found.append([by_seed[seed] for seed in sorted(by_seed)])
    return found


def epsilons(records: Iterable[Record]) -> list[Panel]:
    """Return accuracy against epsilon for one tier and split: claimed and accounted apart, one panel per unit.

    Invalid accounted epsilons (`UNTRUE`) are not drawn. Over several seeds the largest is drawn, as on boards: a mean
    of guarantees is not a guarantee.
    """
    records = list(records)
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for group in grouped(records, attacks=False):
        claims = [record.privacy["claimed"] for record in group]
        if all(claim is not None for claim in claims):
            claimed = [epsilon_from_json(claim["epsilon"]) for claim in claims]
            found["claimed", claims[0]["unit"]].append(release(group, claimed))
        for unit in group[0].privacy["accounted_units"] if has_valid_account(group) else ():
            parts = [part for record in group if (part := record.privacy["accounted_units"].get(unit)) is not None]
            if len(parts) == len(group):
                most = max(epsilon_from_json(part["epsilon"]) for part in parts)
                found["accounted", unit].append(release(group, [most]))
    teacher = mean_of([record.metrics.get("teacher_accuracy") for record in records])
    lines = {} if teacher is None else {"mean of the teachers": teacher}
    order = [(what, unit) for what in ("claimed", "accounted") for unit in UNITS]
    return [Panel(*key, _sorted(found[key]), lines=lines) for key in order if key in found]


def curves(panels: Iterable[Panel]) -> list[Panel]:
    """Return the series of epsilon panels with at least two finite budgets; panels without one are left out."""
    found: list[Panel] = []
    for panel in panels:
        finite = [point for point in panel.points if math.isfinite(point.x)]
        budgets: dict[str, set[float]] = defaultdict(set)
        for point in finite:
            budgets[point.series].add(point.x)
        points = [point for point in finite if len(budgets[point.series]) > 1]
        if points:
            found.append(replace(panel, points=points))
    return found


def attacks(records: Iterable[Record]) -> list[Panel]:
    """Return accuracy against the success of an attack, one panel for each, the one with most points first.

    Points keep the protected unit of their release.
    """
    found: dict[str, list[Point]] = defaultdict(list)
    levels: dict[str, list[Record]] = defaultdict(list)
    for group in grouped([r for r in records if _success(r, "") is not None], attacks=True):
        attack = group[0].spec["attack"]["attack"]
        success = mean_of([_success(record, "") for record in group])
        if success is not None:
            proven = all(standing(record) == "pass" for record in group)
            found[attack].append(replace(release(group, [success]), proven=proven, unit=promised(group[0])))
            levels[attack] += group
    panels = []
    for attack, points in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        measure = "AUC" if "auc" in levels[attack][0].metrics else "attack accuracy"
        means = {
            "on the teacher": mean_of([_success(record, "teacher_") for record in levels[attack]]),
            "on a random net": mean_of([_success(record, "random_") for record in levels[attack]]),
            "public images": mean_of([record.metrics.get("retrieval_accuracy") for record in levels[attack]]),
        }
        lines = {label: mean for label, mean in means.items() if mean is not None}
        panels.append(Panel(measure, "", _sorted(points), attack, lines))
    return panels


def promised(record: Record) -> str:
    """Return the protected unit of a release: that of its claim, else of a finite account, else "none"."""
    claim, accounted = record.privacy["claimed"], record.privacy["accounted"]
    if claim is not None:
        return str(claim["unit"])
    return str(accounted["unit"]) if math.isfinite(epsilon_from_json(accounted["epsilon"])) else "none"


def fronts(points: Iterable[Point], least: float = 0.0) -> dict[str, list[Point]]:
    """Return the Pareto front of each unit: points that no other point of the unit beats in both safety and accuracy.

    A point beats another with at most its attack success and at least its accuracy, one of them strictly better; of
    equal points the first stays. Points whose attack did not prove its power are left out, as its failure shows
    nothing; so are releases that began from public pretrained weights, which no other release had. Success below
    `least`, that of random guessing, counts as `least`.
    """
    found: dict[str, list[Point]] = {}
    compared = (point for point in points if point.proven and not point.is_pretrained)
    for point in sorted(compared, key=lambda p: (list(UNITS).index(p.unit), max(p.x, least), -p.y)):
        mine = found.setdefault(point.unit, [])
        if not mine or point.y > mine[-1].y:
            mine.append(point)
    return found


def release(group: list[Record], xs: list[float]) -> Point:
    """Return the point of runs that differ only in seeds: the mean of `xs` and of their accuracies."""
    first, accuracies = group[0], [float(record.metrics["accuracy"] or 0) for record in group]
    spec = first.spec["release"]
    method, variant = spec["method"], spec.get("variant", "printed")
    setting = f"{variant}, {first.setting}" if first.setting else variant
    setting += f", {OLDER}" if spec["version"] < installed_version("method", method, variant) else ""
    is_pretrained = pretrained_source(spec.get("public")) is not None
    setting += ", public weights" if is_pretrained else ""
    mean = math.fsum(accuracies) / len(accuracies)
    spread = None
    if len(accuracies) > 1:
        spread = math.sqrt(math.fsum((a - mean) ** 2 for a in accuracies) / (len(accuracies) - 1))
    # Points of one curve are equal except for the budget and the seeds
    budget = {key: spec["budget"].get(key) for key in ("account", "solve", "unit", "delta")}
    series = canonical(boards.identity(spec | {"budget": budget}))
    x = math.fsum(xs) / len(xs) if all(map(math.isfinite, xs)) else math.inf
    return Point(
        method,
        setting,
        x,
        mean,
        spread,
        first.hash,
        series,
        len(group),
        commonest=commonest(group),
        is_pretrained=is_pretrained,
    )


def is_coarse(group: Iterable[Record]) -> bool:
    """Whether noise was drawn in float32, whose tails end, so that the accounted epsilon is not exactly valid."""
    return any("float32-noise" in boards.flags(record) for record in group)


def has_valid_account(group: Iterable[Record]) -> bool:
    """Whether the accounted epsilon is valid."""
    return all(UNTRUE.keys().isdisjoint(boards.flags(record)) for record in group)


def accounted(group: list[Record]) -> tuple[float, str] | None:
    """Return the largest valid accounted epsilon of runs that differ only in seeds, with its unit; None without one."""
    parts = [part for record in group if (part := record.privacy.get("accounted"))]
    if len(parts) < len(group) or not has_valid_account(group):
        return None
    return max(epsilon_from_json(part["epsilon"]) for part in parts), str(parts[0]["unit"])


def _success(record: Record, prefix: str) -> float | None:
    """Return the AUC or the attack accuracy of a record on a target."""
    value = record.metrics.get(f"{prefix}auc")
    return record.metrics.get(f"{prefix}attack_accuracy") if value is None else value


def mean_of(values: list[float | None]) -> float | None:
    """Return the mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _sorted(points: list[Point]) -> list[Point]:
    return sorted(points, key=lambda p: (p.method, p.x, p.y, p.setting, p.run))
