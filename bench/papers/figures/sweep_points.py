"""Points of the papers' figures: our runs, sorted into lines that differ in one setting, and published numbers."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from bench import boards, data
from bench.papers.figures.kinds import CLAIMED, TEACHER, WHICH, Printed, Sweep
from bench.papers.printed_numbers import TEACHERS, UNNAMED, PrintedNumber
from bench.privacy.budget import epsilon_from_json
from bench.renamed import present_names
from bench.report.points import OLDER, Point, accounted, mean_of, release
from bench.storage.records import Record, described
from bench.storage.specs import canonical

OTHERS = "other settings"
"""The line of points that a picture does not compare; each point has its own setting."""
At = float | str
"""A position on the x axis: a number, or a name on an axis of names."""
Placed = tuple[At, Point]
Drawn = tuple[Printed, PrintedNumber]


@dataclass(frozen=True)
class Picture:
    """One picture of a figure, of one data set.

    Attributes:
        points: the points; `method` is the name of the line, and published points have no run.
        names: labels of the positions 0, 1, ... on an axis of names.
        uprights, levels: label to x, or to y, of published numbers that have only an x, or only a y.
        numbers: published numbers that it draws; another picture may draw the same.
    """

    sweep: Sweep
    dataset: str
    points: list[Point]
    names: tuple[str, ...] = ()
    uprights: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    numbers: frozenset[PrintedNumber] = frozenset()

    @property
    def is_comparable(self) -> bool:
        """Whether it shows a comparison: a line of two points, two names, or ours with published numbers at two x."""
        if self.names:
            return len(self.names) > 1
        places: dict[str, set[str]] = defaultdict(set)
        for point in self.points:
            places[point.method].add(f"{point.x:.2g}")
        if any(len(found) > 1 for found in places.values()):
            return True
        has_one_place = not self.uprights and not self.levels and len(set().union(*places.values())) < 2
        return self.ours > 0 and self.printed > 0 and not has_one_place

    @property
    def ours(self) -> int:
        """Number of points with a run."""
        return sum(bool(point.run) for point in self.points)

    @property
    def printed(self) -> int:
        """Number of published numbers that are drawn."""
        return len(self.points) - self.ours + len(self.uprights) + len(self.levels)


def pictures(
    sweep: Sweep, paper: str, groups: Sequence[list[Record]], numbers: Sequence[PrintedNumber]
) -> list[Picture]:
    """Return a picture for each data set with runs or published numbers; only runs of the newest version count.

    Args:
        groups: lists of records that differ only in seeds (`bench.report.points.grouped`).
    """

    def kind(group: list[Record]) -> tuple[str, ...]:
        release = group[0].spec["release"]
        return boards.dataset(group[0]), group[0].spec["tier"], release["method"], release.get("variant", "printed")

    groups = [group for group in groups if group[0].spec["release"]["method"] in sweep.methods]
    highest: dict[tuple[str, ...], int] = {}
    for group in groups:
        highest[kind(group)] = max(highest.get(kind(group), 0), group[0].spec["release"]["version"])
    found: dict[str, list[Placed]] = defaultdict(list)
    for group in groups:
        if group[0].spec["release"]["version"] != highest[kind(group)]:
            continue
        name = data.base_name(boards.dataset(group[0]))
        placed = _place_group(sweep, group) if not sweep.datasets or name in sweep.datasets else None
        if placed is not None:
            found[name].append(placed)
    drawn = [(rule, each) for rule in sweep.printed for each in numbers if rule.selects(each, paper)]
    named = {name for _, each in drawn for name in _datasets(each)} - {UNNAMED}
    names = set(found) | {name for name in named if not sweep.datasets or name in sweep.datasets}
    theirs = {each.dataset for each in numbers if each.paper == paper}
    made = []
    # The paper's own data sets come first
    for name in sorted(names, key=lambda name: (name not in theirs, name)) or ([UNNAMED] if drawn else []):
        # A number that names no data set may be of any data set of the paper
        meant = {name, UNNAMED} if name in theirs else {name}
        printed = [(rule, each) for rule, each in drawn if meant & set(_datasets(each))]
        ours = _compared(sweep, _lines(_merged(sweep, found[name])))
        made.append(_picture(sweep, name, ours, printed))
    return made


def _place_group(sweep: Sweep, group: list[Record]) -> Placed | None:
    """Return position and point of runs that differ only in seeds; None if they do not belong to the sweep."""
    first = group[0]
    spec, options = first.spec["release"], first.spec["release"]["options"]
    attack = first.spec["attack"]["attack"] if first.spec["attack"] else ""
    is_meant = all(options.get(key) == value for key, value in sweep.where.items())
    if not is_meant or sweep.epsilon not in (None, spec["budget"]["epsilon"]) or sweep.attack not in ("", attack):
        return None
    height, spread = _claimed(group), None
    if sweep.y != CLAIMED:  # records older than the number do not have it
        group = [record for record in group if record.metrics.get(sweep.y) is not None]
        known = [value for record in group if (value := record.metrics.get(sweep.y)) is not None]
        height = mean = math.fsum(known) / max(1, len(known))
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    at = _place(sweep, group) if group else None
    if at is None or height is None:
        return None
    # The name of a line has the options that distinguish it
    axis = {sweep.x, *sweep.where} | ({"epsilon"} if sweep.x == CLAIMED else set())
    shown = {
        group: present_names({key: value for key, value in given.items() if key not in axis})
        for group, given in first.options.items()
        if group in ("method", "budget")
    }
    series = {key: options[key] for key in sweep.series if key in options and sweep.x != WHICH}
    rest = described(shown | {"method": shown.get("method", {}) | present_names(series)})
    own = set(first.options.get("method", {})) - {sweep.x, *sweep.where}
    point = release(group, [at if isinstance(at, float) else 0.0])  # names get their places when all are known
    point = replace(
        point, y=height, spread=spread, account=accounted(group), series=_fixed(sweep, first.spec),
        method=f"{spec['method']} {spec.get('variant', 'printed')}, {first.spec['tier']} {rest}".strip(),
        setting=OLDER if point.setting.endswith(OLDER) else "", proven=own <= set(sweep.series),
    )  # fmt: skip
    return at, point


def _place(sweep: Sweep, group: list[Record]) -> At | None:
    """Return the x of runs; None for a value that the axis cannot show."""
    spec = group[0].spec["release"]
    if sweep.x == TEACHER:
        return str(spec["teacher"]["arch"])
    if sweep.x == WHICH:
        own = [str(spec["options"][key]) for key in sweep.series if key in spec["options"]]
        return " ".join([spec["method"], *own])
    if sweep.x == CLAIMED:
        value = _claimed(group)
    else:  # a value that was solved for the budget replaces the given one
        given, solved = spec["options"].get(sweep.x), (group[0].privacy.get("solved") or {}).get(sweep.x)
        value = given if given is None or solved is None else solved
    if value is None or isinstance(value, (bool, str)):
        return None
    if value >= sweep.endless:
        return math.inf
    return float(value) if sweep.axis != "log" or value > 0 else None


def _claimed(group: list[Record]) -> float | None:
    """Return the mean claim of runs; None unless it is finite."""
    claims = [record.privacy["claimed"] for record in group]
    found = mean_of([None if claim is None else epsilon_from_json(claim["epsilon"]) for claim in claims])
    return found if found is not None and math.isfinite(found) else None


def _fixed(sweep: Sweep, spec: Mapping[str, Any]) -> str:
    """Return the key of a line: a run's release without the option of the axis and the seeds."""
    found = boards.with_all_options(spec["release"], spec["tier"])
    found["options"] = {key: value for key, value in found["options"].items() if key != sweep.x}
    if sweep.x == "teachers" and found.get("ensemble"):  # the shards repeat their number
        shards = {key: value for key, value in found["ensemble"]["shards"].items() if key != "count"}
        found["ensemble"] = found["ensemble"] | {"shards": shards}
    if sweep.x == CLAIMED:
        found["budget"] = {key: value for key, value in found["budget"].items() if key != "epsilon"}
    if sweep.x == TEACHER:
        found["teacher"] = {key: value for key, value in found["teacher"].items() if key not in ("arch", "recipe")}
    return canonical(boards.identity({"tier": spec["tier"], "release": found}))


def _merged(sweep: Sweep, found: list[Placed]) -> list[Placed]:
    """Return one point for each line and x (to three digits), the one with most seeds.

    An option that was given and one that was solved for the same budget are one experiment.
    """
    if sweep.axis == "names":
        return found
    kept: dict[tuple[str, str], Placed] = {}
    for at, point in found:
        where = (point.series, f"{at:.3g}")
        if where not in kept or point.seeds > kept[where][1].seeds:
            kept[where] = (at, point)
    return list(kept.values())


def _lines(found: list[Placed]) -> list[Placed]:
    """Return the points of lines with at least two x, and single points of runs without other options.

    Lines of one name are distinguished by the networks in which they differ: the teacher, the student.
    """
    places: dict[str, set[At]] = defaultdict(set)
    for at, point in found:
        places[point.series].add(at)
    kept = [(at, replace(point, proven=True)) for at, point in found if len(places[point.series]) > 1 or point.proven]
    networks: dict[str, list[Networks]] = defaultdict(list)
    for _, point in kept:
        networks[point.method].append(_networks(point.series))
    named = []
    for at, point in kept:
        own, others = _networks(point.series), networks[point.method]
        words = [point.method]
        words += [f"teacher={own.teacher}"] if len({each.teacher for each in others}) > 1 else []
        words += [f"student={own.student}"] if len({each.student for each in others}) > 1 else []
        named.append((at, replace(point, method=" ".join(words))))
    return named


class Networks(NamedTuple):
    """The networks of a release."""

    teacher: str
    student: str


@cache
def _networks(series: str) -> Networks:
    release = json.loads(series)["release"]
    return Networks(str(release["teacher"].get("arch", "")), str(release["student"]))


def _compared(sweep: Sweep, found: list[Placed]) -> list[Placed]:
    """Return the points; those that the picture does not compare come first, as `OTHERS`, so that they are drawn below.

    If there is a line, single points are not compared. If x is the method, runs with one tier, teacher, student and
    epsilon are compared: the combination with the most methods, and others with at least half as many.
    """
    is_which = sweep.x == WHICH

    def key(point: Point) -> object:
        if not is_which:
            return point.series
        spec = json.loads(point.series)
        return spec["tier"], spec["release"]["budget"].get("epsilon"), _networks(point.series)

    places: dict[object, set[At]] = defaultdict(set)
    for at, point in found:
        places[key(point)].add(at)
    most = max(map(len, places.values()), default=0)
    if most < 2:
        return found
    enough = max(2, most / 2) if is_which else 2
    main = [(at, point) for at, point in found if len(places[key(point)]) >= enough]
    others = [(at, point) for at, point in found if len(places[key(point)]) < enough]
    single = []
    for index, (at, point) in enumerate(others):
        setting = f"{point.method}, {point.setting}" if point.setting else point.method
        # A series for each: no line joins them
        single.append((at, replace(point, method=OTHERS, setting=setting, series=f"{index} {point.series}")))
    return single + main


def _datasets(number: PrintedNumber) -> list[str]:
    named = dict(number.setting).get("datasets")
    return named.split(",") if named else [number.dataset]


def _picture(sweep: Sweep, dataset: str, ours: list[Placed], printed: Sequence[Drawn]) -> Picture:
    """Add the published numbers to our points: as points, as levels, or as upright lines."""
    points, uprights, levels = list(ours), {}, {}
    for rule, number in printed:
        label = f"{number.named}, {number.table}"
        if rule.at == "value":
            uprights[label] = number.value
        elif rule.at == "":
            levels[label] = number.value
        else:
            setting = dict(number.setting)
            at: At
            if rule.at == CLAIMED:
                at = number.epsilon or 0.0
            elif sweep.axis == "names":
                at = TEACHERS.get(setting[rule.at], setting[rule.at])
            else:
                at = float(re.findall(r"[0-9.]+$", setting[rule.at])[0])
            words = [f"printed: {number.named}", setting.get("accounting", "")]
            words += ["no data set named"] if UNNAMED in _datasets(number) else []
            name = ", ".join(word for word in words if word)
            x = at if isinstance(at, float) else 0.0
            points.append((at, Point(name, number.table, x, number.value, None, "", series=name)))
    names: tuple[str, ...] = ()
    placed = [point for _, point in points]
    if sweep.axis == "names":
        names = tuple(sorted({str(at) for at, _ in points}))
        placed = [replace(point, x=float(names.index(str(at)))) for at, point in points]
    return Picture(sweep, dataset, placed, names, uprights, levels, frozenset(number for _, number in printed))
