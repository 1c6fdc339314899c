"""Points of the papers' figures: our runs sorted into lines that differ in one thing alone, and what is printed."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench import boards, data
from bench.papers.figures.kinds import CLAIMED, TEACHER, WHICH, Axis, Printed, Sweep
from bench.papers.printed_numbers import TEACHERS, UNNAMED
from bench.privacy.budget import epsilon_from_json
from bench.report.points import OLDER, Point, accounted, mean_of, release
from bench.storage.options import described
from bench.storage.records import Record
from bench.storage.specs import canonical

OTHERS = "other settings"
"""The name that points share which are beside what a picture compares; each tells its own setting."""
Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Picture:
    """One picture of a figure, of one data set.

    Attributes:
        points: `method` is the name of the line; printed ones have no run.
        names: of the places 0, 1, ... of an axis of names.
        uprights, levels: label to a place on either axis, for printed numbers that give one alone.
        rows: of reported.csv, of which it draws something; another picture may draw the same.
        ours: how many points are.
    """

    sweep: Sweep
    dataset: str
    points: list[Point]
    names: tuple[str, ...] = ()
    uprights: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    rows: frozenset[tuple[str, ...]] = frozenset()

    @property
    def axis(self) -> Axis:
        """Of x."""
        return self.sweep.axis

    @property
    def shows(self) -> bool:
        """Whether anything can be read from it: a line of two places, names to compare, or print beside ours on an axis
        of two places."""
        if self.names:
            return len(self.names) > 1
        places: dict[str, set[str]] = defaultdict(set)
        for point in self.points:
            places[point.method].add(f"{point.x:.2g}")
        if any(len(found) > 1 for found in places.values()):
            return True
        one = not self.uprights and not self.levels and len(set().union(*places.values())) < 2
        return self.ours > 0 and self.printed > 0 and not one

    @property
    def ours(self) -> int:
        """Points with a run."""
        return sum(bool(point.run) for point in self.points)

    @property
    def printed(self) -> int:
        """Numbers of the paper."""
        return len(self.points) - self.ours + len(self.uprights) + len(self.levels)


def pictures(sweep: Sweep, paper: str, groups: Sequence[list[Record]], rows: Rows) -> list[Picture]:
    """A picture for each data set that has runs or printed numbers; of our runs, those of a method's newest version.

    Args:
        groups: records that differ in seeds alone, together (`bench.report.points.grouped`).
        rows: of reported.csv.
    """
    found: dict[str, list[tuple[Any, Point]]] = defaultdict(list)
    mine = [group for group in groups if group[0].spec["release"]["method"] in sweep.methods]
    for group in _newest(mine):
        name = data.base_name(boards.dataset(group[0]))
        point = _ours(sweep, group) if not sweep.datasets or name in sweep.datasets else None
        if point is not None:
            found[name].append(point)
    printed = [(rule, row) for rule in sweep.printed for row in rows if _is_meant(rule, paper, row)]
    named = {name for _, row in printed for name in _datasets(row)} - {UNNAMED}
    drawn = set(found) | {name for name in named if not sweep.datasets or name in sweep.datasets}
    theirs = {row["dataset"] for row in rows if row["paper"] == paper}
    # The paper's own data sets come first
    places = sorted(drawn, key=lambda name: (name not in theirs, name))
    return [
        _picture(sweep, name, _compared(sweep, _lines(_merged(sweep, found[name]))), _named(printed, name, theirs))
        for name in places or ([UNNAMED] if printed else [])
    ]


def _named(
    printed: list[tuple[Printed, Mapping[str, str]]], dataset: str, theirs: set[str]
) -> list[tuple[Printed, Mapping[str, str]]]:
    """What is printed of a data set; what names none may be of any of the paper's own."""
    meant = {dataset, UNNAMED} if dataset in theirs else {dataset}
    return [(rule, row) for rule, row in printed if meant & set(_datasets(row))]


def _merged(sweep: Sweep, found: list[tuple[Any, Point]]) -> list[tuple[Any, Point]]:
    """Of points of one line at one place, to three digits, the one of most seeds: what a run was given and what another
    one solved for the same budget are one experiment."""
    if sweep.axis == "names":
        return found
    kept: dict[tuple[str, str], tuple[Any, Point]] = {}
    for at, point in found:
        where = (point.series, f"{at:.3g}")
        if where not in kept or point.seeds > kept[where][1].seeds:
            kept[where] = (at, point)
    return list(kept.values())


def _ours(sweep: Sweep, group: list[Record]) -> tuple[Any, Point] | None:
    """The place of some runs that differ in seeds alone, and their point; None where they are not of the sweep."""
    first = group[0]
    spec, options = first.spec["release"], first.spec["release"]["options"]
    attack = first.spec["attack"]["attack"] if first.spec["attack"] else ""
    asked = all(options.get(key) == value for key, value in sweep.where.items())
    asked = asked and sweep.epsilon in (None, spec["budget"]["epsilon"])
    if not asked or sweep.attack not in ("", attack):
        return None
    if sweep.y != CLAIMED:  # some may be older than the number
        group = [record for record in group if record.metrics.get(sweep.y) is not None]
    if not group:
        return None
    at, value = _place(sweep, group), _height(sweep, group)
    if at is None or value is None:
        return None
    mean, spread = value
    # An axis of names has its places where all points are known
    point = replace(release(group, [at if isinstance(at, float) else 0.0]), y=mean, spread=spread)
    rest = _rest(sweep, first)
    name = " ".join([f"{spec['method']} {spec.get('variant', 'printed')},", first.spec["tier"], rest]).strip()
    plain = not any(key not in sweep.series for key in _own(sweep, first))
    older = OLDER if point.setting.endswith(OLDER) else ""  # the name says the rest
    point = replace(point, method=name, setting=older, series=_fixed(sweep, first.spec), proven=plain)
    return at, replace(point, account=accounted(group))


def _newest(groups: Sequence[list[Record]]) -> list[list[Record]]:
    """The runs of a method's variant on a data set by the highest version that made any."""
    highest: dict[tuple[str, ...], int] = {}
    for group in groups:
        where = _by(group[0])
        highest[where] = max(highest.get(where, 0), group[0].spec["release"]["version"])
    return [group for group in groups if group[0].spec["release"]["version"] == highest[_by(group[0])]]


def _by(record: Record) -> tuple[str, ...]:
    release = record.spec["release"]
    return boards.dataset(record), record.spec["tier"], release["method"], release.get("variant", "printed")


def _lines(found: list[tuple[Any, Point]]) -> list[tuple[Any, Point]]:
    """Points of lines with at least two places; of the others those alone whose runs have no option of their own."""
    places: dict[str, set[Any]] = defaultdict(set)
    for at, point in found:
        places[point.series].add(at)
    kept = [(at, replace(point, proven=True)) for at, point in found if len(places[point.series]) > 1 or point.proven]
    return _told_apart(kept)


def _compared(sweep: Sweep, found: list[tuple[Any, Point]]) -> list[tuple[Any, Point]]:
    """Points with those under one name, and first, so that they lie below, that are beside what the picture compares.

    Lines are compared where there is one; where each place is a method of its own, the runs of one tier, teacher's
    network, student and epsilon that fill the most places, and those that fill half as many.
    """
    by = (lambda point: _conditions(point.series)) if sweep.x == WHICH else (lambda point: point.series)
    places: dict[str, set[Any]] = defaultdict(set)
    for at, point in found:
        places[by(point)].add(at)
    most = max(map(len, places.values()), default=0)
    if most < 2:
        return found
    enough = max(2, most / 2) if sweep.x == WHICH else 2
    main = [(at, point) for at, point in found if len(places[by(point)]) >= enough]
    beside = [(at, point) for at, point in found if len(places[by(point)]) < enough]
    # A series of its own for each: no line joins them
    single = [
        (at, replace(point, method=OTHERS, setting=_all_of(point), series=f"{index} {point.series}"))
        for index, (at, point) in enumerate(beside)
    ]
    return single + main


def _all_of(point: Point) -> str:
    return f"{point.method}, {point.setting}" if point.setting else point.method


def _conditions(series: str) -> str:
    """Under what the methods of an axis of names are compared."""
    told = json.loads(series)
    release = told["release"]
    return canonical({"tier": told["tier"], "epsilon": release["budget"].get("epsilon"), **_networks(series)})


def _told_apart(found: list[tuple[Any, Point]]) -> list[tuple[Any, Point]]:
    """Lines of one name, by the networks in which they differ: the teacher, the student."""
    networks = {point.series: _networks(point.series) for _, point in found}
    lines: dict[str, list[dict[str, str]]] = defaultdict(list)
    for _, point in found:
        lines[point.method].append(networks[point.series])
    keys = {
        line: [key for key in ("teacher", "student") if len({each[key] for each in alike}) > 1]
        for line, alike in lines.items()
    }

    def named(point: Point) -> str:
        return " ".join([point.method, *(f"{key}={networks[point.series][key]}" for key in keys[point.method])])

    return [(at, replace(point, method=named(point))) for at, point in found]


def _networks(series: str) -> dict[str, str]:
    release = json.loads(series)["release"]
    return {"teacher": str(release["teacher"].get("arch", "")), "student": str(release["student"])}


def _place(sweep: Sweep, group: list[Record]) -> float | str | None:
    spec = group[0].spec["release"]
    if sweep.x == TEACHER:
        return str(spec["teacher"]["arch"])
    if sweep.x == WHICH:
        own = [str(spec["options"][key]) for key in sweep.series if key in spec["options"]]
        return " ".join([spec["method"], *own])
    value = _claimed(group) if sweep.x == CLAIMED else _used(group[0], sweep.x)
    if value is None or isinstance(value, (bool, str)):
        return None
    if value >= sweep.endless:
        return math.inf
    return float(value) if sweep.axis != "log" or value > 0 else None


def _used(record: Record, option: str) -> Any:
    """An option of the method as the run used it: what was solved for the budget stands before what was given."""
    given = record.spec["release"]["options"].get(option)
    solved = (record.privacy.get("solved") or {}).get(option)
    return given if given is None or solved is None else solved


def _claimed(group: list[Record]) -> float | None:
    claims = [record.privacy["claimed"] for record in group]
    found = mean_of([None if claim is None else epsilon_from_json(claim["epsilon"]) for claim in claims])
    return found if found is not None and math.isfinite(found) else None


def _height(sweep: Sweep, group: list[Record]) -> tuple[float, float | None] | None:
    """Mean and deviation of what is drawn upwards."""
    if sweep.y == CLAIMED:
        claimed = _claimed(group)
        return None if claimed is None else (claimed, None)
    known = [value for record in group if (value := record.metrics.get(sweep.y)) is not None]
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return mean, deviation


def _own(sweep: Sweep, record: Record) -> set[str]:
    """The options of the method that a run was given, but the axis and what the sweep asks for."""
    return set(record.options.get("method", {})) - {sweep.x, *sweep.where}


def _rest(sweep: Sweep, record: Record) -> str:
    """What sets a line apart besides its method, in words."""
    axis = {sweep.x} | ({"epsilon"} if sweep.x == CLAIMED else set())
    kept = {
        group: {key: value for key, value in given.items() if key not in axis and key not in sweep.where}
        for group, given in record.options.items()
        if group in ("method", "budget")
    }
    options = record.spec["release"]["options"]
    told = {key: options[key] for key in sweep.series if key in options and sweep.x != WHICH}
    return described(kept | {"method": kept.get("method", {}) | told})


def _fixed(sweep: Sweep, spec: Mapping[str, Any]) -> str:
    """All of a run's release but what the axis is about and the seeds."""
    found = boards.with_all_options(spec["release"], spec["tier"])
    found["options"] = {key: value for key, value in found["options"].items() if key != sweep.x}
    if sweep.x == "teachers" and found.get("ensemble"):  # their number stands there too
        shards = {key: value for key, value in found["ensemble"]["shards"].items() if key != "count"}
        found["ensemble"] = found["ensemble"] | {"shards": shards}
    if sweep.x == CLAIMED:
        found["budget"] = {key: value for key, value in found["budget"].items() if key != "epsilon"}
    if sweep.x == TEACHER:
        found["teacher"] = {key: value for key, value in found["teacher"].items() if key not in ("arch", "recipe")}
    return canonical(boards.identity({"tier": spec["tier"], "release": found}))


def _is_meant(rule: Printed, paper: str, row: Mapping[str, str]) -> bool:
    table = row["table"] == rule.table or (rule.table.startswith("text") and row["table"].startswith(rule.table))
    setting = _setting(row)
    return (
        table
        and row["paper"] == paper
        and row["metric"] == rule.metric
        and rule.method in ("", row["method"])
        and rule.unit in ("", row["unit_claimed"])
        and (rule.epsilon is None or (row["epsilon"] != "" and float(row["epsilon"]) == rule.epsilon))
        and (rule.at in ("", "value", CLAIMED) or rule.at in setting)
        and (rule.at != CLAIMED or row["epsilon"] != "")
    )


def _setting(row: Mapping[str, str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in row["setting"].split(";") if "=" in part)


def _datasets(row: Mapping[str, str]) -> list[str]:
    named = _setting(row).get("datasets")
    return named.split(",") if named else [row["dataset"]]


def _picture(
    sweep: Sweep, dataset: str, ours: list[tuple[Any, Point]], printed: Sequence[tuple[Printed, Mapping[str, str]]]
) -> Picture:
    points, uprights, levels = list(ours), {}, {}
    rows = frozenset(tuple(row.values()) for _, row in printed)
    for rule, row in printed:
        value, label = float(row["value"]), f"{row['method']}, {row['table']}"
        if rule.at == "value":
            uprights[label] = value
        elif rule.at == "":
            levels[label] = value
        else:
            told = row["epsilon"] if rule.at == CLAIMED else _setting(row)[rule.at]
            at = TEACHERS.get(told, told) if sweep.axis == "names" else float(re.findall(r"[0-9.]+$", told)[0])
            points.append((at, _as_printed(row, value, at)))
    if sweep.axis != "names":
        return Picture(sweep, dataset, [point for _, point in points], (), uprights, levels, rows)
    names = tuple(sorted({str(at) for at, _ in points}))
    placed = [replace(point, x=float(names.index(str(at)))) for at, point in points]
    return Picture(sweep, dataset, placed, names, uprights, levels, rows)


def _as_printed(row: Mapping[str, str], value: float, at: float | str) -> Point:
    x = at if isinstance(at, float) else 0.0
    apart = [how] if (how := _setting(row).get("accounting")) else []
    apart += ["no data set named"] if UNNAMED in _datasets(row) else []
    name = ", ".join([f"printed: {row['method']}", *apart])
    return Point(name, row["table"], x, value, None, "", series=name)
