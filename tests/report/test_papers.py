"""The papers' tables and figures in the report, the reasons, the releases to choose from: what is beside what."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from made import record

from bench import leaderboard, registry
from bench.leaderboard import reported
from bench.leaderboard.reasons import CODES, reason, without_noise
from bench.leaderboard.reported import Line, Reported
from bench.leaderboard.row_members import options_json
from bench.leaderboard.selection import Constraints, choose, objection
from bench.report import (
    Sources,
    charts,
    method_pages,
    paper_cells,
    paper_tables,
    releases,
)
from bench.report.axes import linear, named
from bench.report.charts import overlap
from bench.report.paper_figures import FIGURES, sweep_charts, sweep_points
from bench.report.paper_figures.kinds import Printed, Sweep
from bench.report.points import Point, grouped
from bench.report.site import parts
from bench.report.sources import recipes
from bench.storage.records import Record

ROW = {"dataset": "mnist", "method": "dpsd", "variant": "working", "tier": "quick", "accuracy_mean": 0.9}


def board(*records: Record) -> list[dict[str, Any]]:
    """Rows of the board as the report has them, with the data set in each."""
    name = leaderboard.dataset(records[0])
    rows = leaderboard.table(records).to_dict("records")
    return [{**{k: "" if v is None or v != v else v for k, v in row.items()}, "dataset": name} for row in rows]


def line(entry: Reported, accuracy: float, **changes: Any) -> Line:
    return Line(entry, ROW | {"accuracy_mean": accuracy} | changes, "", "")


def printed(paper: str, table: str, method: str, epsilon: float | None, dataset: str = "mnist") -> Reported:
    entries = reported.table(paper, table)
    return next(e for e in entries if (e.method, e.epsilon, e.dataset) == (method, epsilon, dataset))


def test_a_reason_is_given_for_more_than_two_points_and_for_no_less() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    assert reason(line(entry, entry.value - 0.0199, method="dpdfd")) is None
    assert reason(line(entry, entry.value + 0.2, method="dpdfd")) is None
    assert reason(Line(entry, None, "not run", "")) is None
    found = reason(line(entry, entry.value - 0.021, method="dpdfd"))
    assert found is not None and found.code == "size"
    assert found.experiment == "bench run --method dpdfd --variant working --dataset mnist --tier paper"


def test_the_surest_reason_comes_first() -> None:
    dpsd, dgd = printed("dpsd", "Table I", "dpsd", 10.0), printed("dgd", "Table I", "dgd", 10.0)
    codes = [
        reason(line(dpsd, 0.5)),
        reason(line(printed("dpsd", "Table III", "dpsd", 2.0, "cifar10"), 0.1, dataset="cifar10-jpeg")),
        reason(line(printed("dgd", "Table II", "dgd", 3.0, "cifar10"), 0.1, dataset="cifar10-jpeg", method="dgd")),
        reason(line(dgd, 0.5, method="dgd")),
        reason(line(dgd, 0.5, method="dgd", variant="printed")),
        reason(line(dgd, 0.5, method="dgd", variant="printed", tier="paper")),
    ]
    assert [found and found.code for found in codes] == [
        *("information", "information", "data-subset", "unprotected-generator", "size", "unknown")
    ]
    assert {found.code for found in codes if found} | {"noise", "teacher", "learns-less"} == set(CODES)


def test_a_teacher_that_is_behind_print_explains_a_student_that_learns_from_nothing_else() -> None:
    jpeg = {"dataset": "cifar10-jpeg", "teacher_accuracy": 0.3}
    entry = printed("dpdfd", "Table 2", "dpdfd", 2.0, "cifar10")
    rows = [line(entry, 0.1, method="dpdfd", **jpeg | {"teacher_accuracy": teacher}) for teacher in (0.3, 0.6, 0.9, "")]
    codes = [reason(row) for row in rows]
    assert [found and found.code for found in codes] == ["teacher", *["data-subset"] * 3]
    # DP-SGD trains its own network on the records: the undefended teacher is nothing to it
    sgd = printed("dpsd", "Table III", "dp-sgd", 2.0, "cifar10")
    found = reason(line(sgd, 0.1, method="dp-sgd", **jpeg))
    assert found is not None and found.code == "data-subset"


def test_the_command_of_a_reason_is_that_of_the_row() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    options = options_json(
        {"method": {"teachers": 50.0}, "budget": {"epsilon": 10.0, "unit": "label", "solve": "none"}}
    )
    told = [
        reason(line(entry, 0.1, method="dpdfd", options=options, teacher="resnet34", tier=t))
        for t in ("quick", "paper")
    ]
    command = "bench run --method dpdfd --variant working --dataset mnist --teacher resnet34 --tier paper"
    assert [found and (found.code, found.experiment) for found in told] == [
        ("size", f"{command} --epsilon 10 --unit label --method.teachers 50"),
        ("unknown", f"{command} --epsilon inf --unit label --method.teachers 50"),
    ]


def test_the_same_run_without_noise_says_what_noise_costs() -> None:
    def boards(method: str, without: float, **other: Any) -> list[Record]:
        made = {"dataset": "mnist", "claim_unit": "example", "variant": "working"}
        noisy = record(method, 0, 0.4, accounted=10.0, **made)
        options = {"budget": {"epsilon": "inf", "solve": "none"}}
        control = record(method, 0, without, budget="inf", claim="none", options=options, **made | other)
        return [noisy, control]

    def found(method: str, without: float, **other: Any) -> str:
        rows = board(*boards(method, without, **other))
        (mine, *_) = reported.compare([printed("dpsd", "Table I", method, 10.0)], rows, lambda *_: True)
        told = reason(mine, without_noise(rows))
        assert told is not None
        return f"{told.code}: {told.experiment}"

    command = "bench run --method {} --variant working --dataset mnist --epsilon inf # {} %"
    assert found("pate-gan", 0.66) == f"noise: {command.format('pate-gan', '66.0')}"
    assert found("pate-gan", 0.60) == f"learns-less: {command.format('pate-gan', '60.0')}"
    assert found("pate-gan", 0.66, tier="standard").startswith("size: ")
    # A smaller run without noise that reaches print speaks for noise; one that does not, for nothing
    large = record("pate-gan", 0, 0.4, accounted=10.0, dataset="mnist", variant="working", tier="paper")
    for without, code in ((0.66, "noise"), (0.60, "unknown")):
        rows = board(large, boards("pate-gan", without)[1])
        (mine, *_) = reported.compare([printed("dpsd", "Table I", "pate-gan", 10.0)], rows, lambda *_: True)
        told = reason(mine, without_noise(rows))
        assert told is not None and told.code == code
    free = {"dataset": "mnist", "claim": "none", "variant": "printed", "budget": "inf"}
    rows = board(record("fedavg", 0, 0.8, options={"budget": {"epsilon": "inf", "solve": "none"}}, **free))
    entries = [each for each in reported.table("dpsd", "Table V") if (each.method, each.dataset) == ("fedavg", "mnist")]
    (mine,) = reported.compare(entries, rows, lambda *_: True)
    told = reason(mine, without_noise(rows))
    assert mine.row is not None and told is not None and told.code == "size"  # nothing is its own control
    none = {**rows[0], "options": options_json({"budget": {"epsilon": None, "solve": "none"}})}
    told = reason(Line(entries[0], none, "", ""), without_noise(rows))
    assert told is not None and told.code == "size"  # no budget decides a noise of it: no more its own control
    assert found("datalens", 0.90, version=0).startswith("size: ")


def test_a_noise_that_was_given_has_the_same_control_as_one_that_was_solved() -> None:
    def options(**method: float) -> str:
        return options_json({"method": method, "budget": {"epsilon": None, "solve": "none"}})

    entry = next(e for e in reported.table("dpdfd", "Table 5") if (e.dataset, e.ablation) == ("mnist", "sigma=50"))
    same = {"method": "dpdfd", "variant": "working", "dataset": "mnist", "tier": "quick", "split": "iid"}
    same |= {"teacher": "resnet18", "student": "datalens", "flags": ""}
    control = same | {"options": options_json({"budget": {"epsilon": "inf", "solve": "none"}}), "accuracy_mean": "0.97"}
    for given, code in ((options(sigma=50.0), "noise"), (options(sigma=50.0, iterations=9), "size")):
        row = same | {"options": given, "accuracy_mean": "0.09"}
        told = reason(Line(entry, row, "", ""), without_noise([control, row]))
        assert told is not None and told.code == code


def test_the_command_of_a_control_names_what_is_not_usual() -> None:
    entry = next(e for e in reported.table("dpsd", "Table IV") if (e.method, e.dataset) == ("lp-2st", "mnist"))
    same = {"method": "lp-2st", "variant": "working", "dataset": "mnist", "tier": "quick", "split": "iid"}
    same |= {"teacher": "resnet34", "student": "datalens", "flags": "", "accuracy_mean": "0.5"}
    budget = {"unit": "label", "epsilon": "inf", "solve": "none"}
    control = same | {"options": options_json({"method": {"batch": 9}, "budget": budget}), "accuracy_mean": "0.999"}
    row = same | {"options": options_json({"method": {"batch": 9}, "budget": {"unit": "label", "epsilon": 1.0}})}
    told = reason(Line(entry, row, "", ""), without_noise([control, row]))
    command = (
        "bench run --method lp-2st --variant working --dataset mnist --teacher resnet34 --epsilon inf --unit label"
    )
    assert told is not None and told.experiment == f"{command} --method.batch 9 # 99.9 %"
    # of a smaller tier and with another teacher it is a control of the same kind, whose command says so
    larger = row | {"tier": "paper", "teacher": "resnet18"}
    told = reason(Line(entry, larger, "", ""), without_noise([control | {"tier": "standard"}, larger]))
    assert told is not None and " --teacher resnet34 --tier standard --epsilon inf --unit label " in told.experiment


def some_rows() -> list[dict[str, Any]]:
    made = {"dataset": "mnist", "claim_unit": "query", "accounted": 7639.0}
    records = [record("dpsd", seed, 0.7 + seed / 100, variant="working", **made) for seed in (0, 1)]
    return board(*records, record("dpsd", 0, 0.1, variant="printed", **made), record("dp-merf", 0, 0.8, **made))


def test_a_table_has_every_printed_number_and_ours_of_each_variant() -> None:
    rows = some_rows()
    found = {table["slug"]: table for table in paper_tables.tables(rows, recipes())}
    one = found["dpsd-table-i"]
    assert one["cells"] == len(reported.table("dpsd", "Table I")) and one["recipe"] == "recipes/dpsd-table1.toml"
    own = [each for each in one["lines"] if each["method"] == "dpsd" and each["ours"]]
    assert [(each["epsilon"], each["printed"]) for each in own] == [(10.0, 0.9785)] * 2
    assert len({each["entry"] for each in own}) == 1, "one printed number, two variants of ours"
    told = {each["ours"]["variant"]: each["ours"] for each in own}
    assert told["working"]["usual"] and not told["printed"]["usual"]
    assert told["working"]["difference"] == pytest.approx(0.705 - 0.9785)
    assert told["working"]["reason"][0] == "information" and told["working"]["seeds"] == 2
    assert (one["ours"], one["within"]) == (2, 1), "dp-merf is ahead; dpsd counts by the variant run by default"
    empty = [each for each in one["lines"] if not each["ours"]]
    assert {each["state"] for each in empty} <= {"not run", "planned"} and empty


def test_one_line_counts_for_a_number_the_furthest_behind_where_its_epsilon_is_not_known() -> None:
    (entry,) = (e for e in reported.load() if (e.paper, e.dataset, e.method) == ("dp-dfd", "celeba-g", "dp-merf"))
    of_merf = {"method": "dp-merf", "variant": "printed"}
    near, far = line(entry, entry.value + 0.01, **of_merf), line(entry, entry.value - 0.05, **of_merf)
    for lines in ([near, far], [far, near]):
        assert paper_tables.standing_for(lines) == {entry: far} and paper_tables.counted(lines)["within"] == 0
    for table in paper_tables.tables(some_rows(), {}):
        assert sum(each["counts"] for each in table["lines"]) == table["ours"]


def cell(entry: int, variant: str, tier: str = "quick", **changes: Any) -> dict[str, Any]:
    ours = {"variant": variant, "tier": tier, "claimed": changes.pop("claimed", 10.0)}
    made = {"entry": entry, "method": "dpsd", "ablation": "", "issues": [], "counts": False, "ours": ours}
    return made | changes


def test_a_cell_of_a_number_of_one_of_two_epsilons_shows_ours_of_both_with_their_epsilons() -> None:
    unsure: dict[str, Any] = {"issues": ["eps-uncertain"]}
    counting = cell(0, "working", claimed=0.9997, counts=True, **unsure)
    other, printed_too = cell(0, "working", claimed=10.0, **unsure), cell(0, "printed", claimed=1.0, **unsure)
    found = paper_cells.cells([other, counting, printed_too, cell(1, "working", counts=True), cell(1, "printed")])
    assert [(one["shown"], one["told"]) for one in found] == [
        *((True, "ε 10"), (True, "ε 1"), (False, ""), (True, ""), (False, ""))
    ]


def test_the_number_that_ablations_are_held_against_is_shown_in_their_variant_and_all_say_what_they_are() -> None:
    full = [cell(0, "working", "paper", counts=True), cell(0, "printed")]
    without = [cell(1, "printed", ablation="loss=CE+IE", counts=True), {**cell(2, ""), "ours": None}]
    other = cell(3, "own", method="pate", counts=True)
    found = paper_cells.cells([*full, *without, other])
    assert [(one["shown"], one["told"]) for one in found] == [
        *((True, "working, paper"), (True, "printed, quick"), (True, "printed, quick"), (True, ""), (True, ""))
    ]
    alike = [cell(0, "printed", counts=True), cell(1, "printed", ablation="loss=CE+IE", counts=True)]
    assert [one["told"] for one in paper_cells.cells(alike)] == ["", ""]


def test_a_number_of_one_of_two_epsilons_has_both_and_one_of_no_data_set_says_so() -> None:
    tables = {table["slug"]: table for table in paper_tables.tables(some_rows(), {})}
    (merf,) = (e for e in tables["dp-dfd-table-i"]["lines"] if (e["method"], e["dataset"]) == ("dp-merf", "celeba-g"))
    assert (merf["epsilon"], merf["either"], merf["shown"]) == (None, [1.0, 10.0], True)
    (nowhere,) = tables["dgd-text-iv-b-label-query"]["lines"]
    assert nowhere["state"] == "no data set named"
    assert tables["dgd-text-iv-b-label-query"]["title"].endswith("dgd, no data set named")
    claimed = {one["ours"]["claimed"] for one in tables["dpsd-table-i"]["lines"] if one["ours"]}
    assert claimed == {10.0}


def test_a_seed_that_failed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row | {"failed": 1} if row["seeds"] == "0 1" else row for row in some_rows()]
    told = {
        each["ours"]["variant"]: each["ours"]["seeds"]
        for table in paper_tables.tables(rows, {})
        for each in table["lines"]
        if each["ours"] and each["method"] == "dpsd"
    }
    assert told == {"working": 1, "printed": 1}


def test_a_data_set_can_be_asked_for_alone() -> None:
    found = paper_tables.tables(some_rows(), {}, "fmnist")
    assert {line["dataset"] for table in found for line in table["lines"]} == {"fmnist"}
    assert paper_tables.tables(some_rows(), {}, "digits") == []


def test_ours_against_print_marks_every_number_of_ours() -> None:
    table = next(t for t in paper_tables.tables(some_rows(), {}) if t["slug"] == "dpsd-table-i")
    markup = sweep_charts.agreement(table["lines"])
    assert markup.count('href="#run-') == sum(each["ours"] is not None for each in table["lines"]) == 3
    assert sweep_charts.agreement([each for each in table["lines"] if not each["ours"]]) == ""


def test_the_band_of_two_points_is_two_points_everywhere() -> None:
    table = next(t for t in paper_tables.tables(some_rows(), {}) if t["slug"] == "dpsd-table-i")
    markup = sweep_charts.agreement(table["lines"])
    (band,) = re.findall(r'<path d="M([^"]+)z" fill="currentColor"', markup)
    corners = [tuple(map(float, each.split())) for each in band.split("L")]
    assert len(corners) == 6
    (x0, y0), (x3, y3) = corners[0], corners[3]
    assert (x0, y0) == (charts.LEFT, charts.BOTTOM) and (x3, y3) == (charts.RIGHT, charts.TOP), "from corner to corner"
    (a, b), (c, d) = corners[1], corners[5]
    wide, tall = charts.RIGHT - charts.LEFT, charts.BOTTOM - charts.TOP
    assert (
        a == charts.LEFT
        and d == charts.BOTTOM
        and (charts.BOTTOM - b) / tall == pytest.approx((c - x0) / wide, abs=1e-3)
    )


def test_equality_is_drawn_where_print_and_ours_are_far_apart() -> None:
    table = next(t for t in paper_tables.tables(some_rows(), {}) if t["slug"] == "dpsd-table-i")
    lines = [
        each | {"printed": 0.95, "ours": each["ours"] | {"accuracy": 0.1}} for each in table["lines"] if each["ours"]
    ]
    markup = sweep_charts.agreement(lines)
    assert 'class="level"' in markup and 'fill="currentColor"' in markup


def release_with(**changes: Any) -> Record:
    """A run of dpsd with options of the method in its spec, as a runner writes them."""
    own = changes.pop("own")
    found = record("dpsd", changes.pop("seed", 0), changes.pop("accuracy", 0.5), dataset="mnist", **changes)
    found.spec["release"]["options"] = {"mode": "data", "beta": 0.0, "sigma": 100.0} | own
    found.options = {"method": {key: value for key, value in own.items() if key != "mode"}}
    if found.spec["attack"]:
        found.spec["attack"]["target"] = found.spec["release"]
    return found


BETA = Sweep("over beta", ("dpsd",), "beta", "beta", "log", where={"mode": "data"})


def drawn(sweep: Sweep, *records: Record, rows: Any = ()) -> list[sweep_points.Picture]:
    return sweep_points.pictures(sweep, "dpsd", grouped(records, attacks=bool(sweep.attack)), list(rows))


def test_a_line_joins_runs_that_differ_in_the_axis_and_the_seed_alone() -> None:
    runs = [release_with(own={"beta": b}, seed=seed, accuracy=b + 0.2 * seed) for b in (0.1, 0.3) for seed in (0, 1)]
    others = [release_with(own={"beta": 0.1, "k": 3}), release_with(own={"beta": 0.2, "mode": "label"})]
    (picture,) = drawn(BETA, *runs, *others, release_with(own={"beta": 0.0}))
    assert [(p.x, pytest.approx(p.y), p.seeds) for p in sorted(picture.points, key=lambda p: p.x)] == [
        (0.1, 0.2, 2),
        (0.3, 0.4, 2),
    ], "an option of its own and a place alone, another mode, and a beta that a log axis has no place for are left out"
    assert len({point.series for point in picture.points}) == 1 and picture.ours == 2
    plain = release_with(own={"beta": 0.5}, budget=1.0, claim=1.0)
    assert [p.x for p in drawn(BETA, plain)[0].points] == [0.5], "a place alone is drawn where nothing else was chosen"


def test_one_experiment_at_one_place_is_one_point() -> None:
    given = [release_with(own={"k": k}, seed=seed) for k, seeds in ((5, 1), (10, 2)) for seed in range(seeds)]
    solved = release_with(own={"k": 0}, seed=7)
    solved.privacy["solved"] = {"k": 10}
    (picture,) = drawn(Sweep("over k", ("dpsd",), "k", "k"), *given, solved)
    assert sorted((point.x, point.seeds) for point in picture.points) == [(5, 1), (10, 2)]


def test_what_is_proved_is_told_beside_what_is_claimed() -> None:
    runs = [release_with(own={"beta": beta}, accounted=proved) for beta, proved in ((0.1, 32.0), (0.3, 11_935_344.0))]
    (picture,) = drawn(BETA, *runs)
    markup = sweep_charts.sweep_figure(picture)
    assert "ε accounted from 32 to 11,935,344 per example" in markup
    assert "dpsd printed, quick: 50.0 % at 0.1, 1 seed, ε accounted 32 per example" in markup
    coarse = [release_with(own={"beta": beta}, accounted=32.0) for beta in (0.1, 0.3)]
    for each in coarse:
        del each.privacy["noise_version"]
    (picture,) = drawn(BETA, *coarse)
    assert "accounted" not in sweep_charts.sweep_figure(picture), "none of noise in float32"


def test_a_line_looks_the_same_in_all_pictures_of_a_figure() -> None:
    def run(dataset: str, at: float, bound: str) -> Record:
        made = record("dpsd", dataset=dataset, budget=1.0, claim=1.0)
        made.spec["release"]["options"] = {"mode": "data", "beta": at, "bound": bound}
        made.options = {"method": {"beta": at, "bound": bound}}
        return replace(made, hash=f"{dataset}{at}{bound}")

    where = (("mnist", "clip"), ("mnist", "normalise"), ("fmnist", "normalise"))
    found, _ = parts(Sources([run(name, at, bound) for name, bound in where for at in (0.1, 0.3)]))
    markup = found["figure-dpsd-fig-5"]["markup"]
    looks = re.findall(r'<button type="button" class="(c\d)" data-method="([^"]+)"', markup)
    assert len(looks) == 3 and len(set(looks)) == 2, "the only line of one picture is the second of the other"


def test_clients_that_are_all_alike_stand_at_the_end_of_the_axis() -> None:
    sweep = Sweep("over alpha", ("dpsd",), "alpha", "alpha", "log", endless=1e6, beyond="iid")
    (picture,) = drawn(sweep, *[release_with(own={"alpha": alpha}) for alpha in (0.1, 0.5, 1e6)])
    markup = sweep_charts.sweep_figure(picture)
    assert ">iid</text>" in markup and " at iid, 1 seed" in markup and "10⁵" not in markup


def test_lines_of_one_name_are_told_apart_by_their_networks() -> None:
    def runs(teacher: str, student: str) -> list[Record]:
        found = [release_with(own={"beta": beta}) for beta in (0.1, 0.3)]
        for each in found:
            each.spec["release"] |= {"student": student, "teacher": each.spec["release"]["teacher"] | {"arch": teacher}}
        return found

    def named(*records: Record) -> set[str]:
        (picture,) = drawn(BETA, *records)
        return {point.method.partition(", ")[2] for point in picture.points}

    tier = release_with(own={}).spec["tier"]
    assert named(*runs("resnet18", "datalens")) == {tier}
    assert named(*runs("resnet18", "datalens"), *runs("resnet34", "datalens")) == {
        f"{tier} teacher=resnet18",
        f"{tier} teacher=resnet34",
    }
    assert named(*runs("resnet18", "datalens"), *runs("resnet34", "resnet18")) == {
        f"{tier} teacher=resnet18 student=datalens",
        f"{tier} teacher=resnet34 student=resnet18",
    }


def test_a_place_alone_stands_grey_beside_the_lines_and_says_what_it_is() -> None:
    line = [release_with(own={"beta": beta}, budget=1.0, claim=1.0) for beta in (0.1, 0.3)]
    alone = release_with(own={"beta": 0.2}, budget=2.0, claim=2.0)
    alone.options = {"budget": {"epsilon": 2.0}}
    (picture,) = drawn(BETA, *line, alone)
    first, *rest = picture.points
    assert (first.method, first.x) == (sweep_points.OTHERS, 0.2) and "epsilon=2.0" in first.setting
    assert {point.method for point in rest} == {"dpsd printed, quick"} and first.series not in {p.series for p in rest}
    markup = sweep_charts.sweep_figure(picture)
    buttons = re.findall(r"</svg>([^<]+)</button>", markup)
    assert buttons == ["dpsd printed, quick", sweep_points.OTHERS] and f"c{sweep_charts.PRINTED_COLOUR}" in markup
    (without,) = drawn(BETA, alone)
    assert [point.method for point in without.points] == ["dpsd printed, quick epsilon=2.0"], (
        "with nothing to be beside"
    )


def test_methods_are_compared_under_the_conditions_that_most_share() -> None:
    which = Sweep("compared", ("dpsd", "dpdfd", "dgd"), "method", "method", "names")
    here = [record(name, 0, 0.5, dataset="mnist", budget=1.0, claim=1.0) for name in ("dpsd", "dpdfd", "dgd")]
    there = [record(name, 0, 0.6, dataset="mnist", budget=2.0, claim=2.0) for name in ("dpsd", "dpdfd")]
    elsewhere = [record("dpsd", 0, 0.7, dataset="mnist", budget=8.0, claim=8.0)]
    (picture,) = drawn(which, *here, *there, *elsewhere)
    grey = [point.y for point in picture.points if point.method == sweep_points.OTHERS]
    assert grey == [0.7] and len(picture.points) == 6, "two of three places are more than half"


def test_a_line_over_the_teachers_joins_ensembles_of_many_sizes() -> None:
    def run(count: int) -> Record:
        found = release_with(own={"teachers": count})
        found.spec["release"]["ensemble"] = {"kind": "ensemble", "shards": {"count": count, "steps": 3}}
        return found

    (picture,) = drawn(Sweep("over teachers", ("dpsd",), "teachers", "teachers", "log"), *map(run, (10, 50, 250)))
    assert len({point.series for point in picture.points}) == 1 and len(picture.points) == 3


def test_a_number_that_only_some_seeds_have_is_of_those() -> None:
    runs = [release_with(own={"beta": 0.1}, seed=seed) for seed in (0, 1, 2)]
    runs[0].metrics["votes_accuracy"], runs[1].metrics["votes_accuracy"] = 0.4, 0.6
    (picture,) = drawn(replace(BETA, y="votes_accuracy"), *runs)
    assert [(point.y, point.seeds) for point in picture.points] == [(0.5, 2)]


def test_the_noise_that_was_solved_is_where_the_run_stands() -> None:
    run = release_with(own={})
    run.privacy["solved"] = {"sigma": 7.5, "steps": None}
    (picture,) = drawn(Sweep("over sigma", ("dpsd",), "sigma", "sigma", "log"), run)
    assert [point.x for point in picture.points] == [7.5]


def test_a_figure_of_one_budget_draws_runs_of_it_alone() -> None:
    runs = [release_with(own={"beta": at}, budget=e, claim=e) for at in (0.1, 0.2) for e in (1.0, 2.0, None, "inf")]
    (picture,) = drawn(replace(BETA, epsilon=2), *runs)
    assert sorted(point.x for point in picture.points) == [0.1, 0.2] and len(drawn(BETA, *runs)[0].points) == 8


def test_an_attack_does_not_hide_a_run_and_is_asked_for_where_it_counts() -> None:
    run = release_with(own={"beta": 0.1}, attack="gmi")
    assert [point.y for point in drawn(BETA, run)[0].points] == [0.5]
    run = release_with(own={}, attack="gmi")
    run.metrics["inception_e6"] = 3e6
    which = Sweep("IS", ("dpsd",), "method", "student", "names", y="inception_e6", series=("mode",), attack="gmi")
    (picture,) = drawn(which, run)
    assert (picture.names, [point.y for point in picture.points]) == (("dpsd data",), [3e6])
    assert drawn(Sweep("IS", ("dpsd",), "method", "", "names", y="inception_e6", attack="vmi"), run) == []


def test_only_the_newest_version_of_a_method_is_drawn() -> None:
    old, new = release_with(own={"beta": 0.1}), release_with(own={"beta": 0.3})
    new.spec["release"]["version"] += 1
    assert [point.x for point in drawn(BETA, old, new)[0].points] == [0.3]


def row(**changes: str) -> dict[str, str]:
    made = {"paper": "dpsd", "table": "Table I", "dataset": "mnist", "method": "dpsd", "kind": "", "note": ""}
    made |= {"unit_claimed": "data", "epsilon": "1", "delta": "", "metric": "accuracy", "value": "0.9", "setting": ""}
    return made | {"issue": ""} | changes


def test_print_is_a_point_a_level_or_an_upright_line() -> None:
    rules = (
        Printed("Table I", "dpsd"),
        Printed("Table V", at="partition"),
        Printed("text 1", at=""),
        Printed("text 2", metric="place", at="value"),
    )
    sweep = Sweep("over epsilon", ("dpsd",), "epsilon", "epsilon", "log", printed=rules)
    rows = [row(), row(table="Table II"), row(paper="dgd"), row(epsilon=""), row(unit_claimed="label", epsilon="2")]
    rows += [row(table="Table V", setting="partition=dirichlet-0.5", epsilon=""), row(table="text 1 and more")]
    rows += [row(table="text 2", metric="place", value="50", dataset="unspecified")]
    (picture,) = drawn(sweep, rows=rows)
    assert sorted(point.x for point in picture.points) == [0.5, 1.0, 2.0]
    assert not [point for point in picture.points if point.run] and (picture.ours, picture.printed) == (0, 5)
    assert picture.levels == {"dpsd, text 1 and more": 0.9} and picture.uprights == {"dpsd, text 2": 50.0}


TEXT = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="(?:quiet )?name">([^<]+)</text>')


def test_a_sentence_of_no_data_set_is_drawn_on_the_papers_own_and_counted_once() -> None:
    sweep = Sweep("over epsilon", ("dpsd",), "epsilon", "", "log", printed=(Printed("Table I"), Printed("text 1")))
    rows = [row(), row(dataset="fmnist"), row(table="text 1", dataset="unspecified")]
    runs = [record("dpsd", dataset=name, claim=5.0) for name in ("digits", "mnist")]
    found = {each.dataset: each for each in drawn(sweep, *runs, rows=rows)}
    assert {name: each.printed for name, each in found.items()} == {"fmnist": 2, "mnist": 2, "digits": 0}
    assert len(frozenset().union(*(each.rows for each in found.values()))) == 3


def names(markup: str) -> dict[str, tuple[float, float, float, float]]:
    """The box of each name in a chart, by what it says."""
    found = {}
    for across, at, anchor, told in TEXT.findall(markup):
        start = float(across) - (6.0 * len(told) if anchor == "end" else 0)
        found[told] = (start, float(at) - 10, start + 6.0 * len(told), float(at))
    return found


def test_names_of_printed_places_cover_neither_each_other_nor_points() -> None:
    """Fashion-MNIST in DP-DFD's Fig. 2: a level high up, and an upright whose name once lay across it."""
    points = [Point("dp-dfd", "", x, y, None, "a") for x, y in ((2e4, 0.25), (5e4, 0.3), (8e4, 0.29), (1.2e5, 0.31))]
    sweep = Sweep("over images", ("dp-dfd",), "amount", "images", "log")
    uprights = {"where it saturates": 1.2e5, "and once more": 1.1e5}
    for level in (0.2, 0.26, 0.5, 0.89):
        picture = sweep_points.Picture(sweep, "fmnist", points, uprights=uprights, levels={"Table I": level})
        drawn = sweep_charts.sweep_figure(picture)
        boxes = names(drawn)
        assert len(boxes) == 3 and not any(overlap(a, b) for a, b in combinations(boxes.values(), 2))
        marks = [(float(x), float(y)) for x, y in re.findall(r'<path d="M([\d.]+) ([\d.]+)m-5 0', drawn)][:-1]
        assert len(marks) == 4, "the last one is the legend's"
        upright = [box for told, box in boxes.items() if "Table" not in told]
        assert not any(overlap(box, (x - 4, y - 4, x + 4, y + 4)) for box in upright for x, y in marks)


def test_names_of_levels_beside_each_other_are_apart_and_long_ones_inside() -> None:
    points = [Point("dgd", "", x, 0.5, None, "a") for x in (1.0, 10.0)]
    sweep, long = Sweep("over images", ("dgd",), "amount", "images", "log"), "dp-dfd, text III-C data amount and so on"
    levels = {"teacher, text IV-B VAE": 0.928, "dgd-plus, text IV-B VAE": 0.927}
    picture = sweep_points.Picture(
        sweep, "svhn", points, levels=levels, uprights={long: 8.0, "dp-dfd, text III-C": 4.0}
    )
    boxes = names(sweep_charts.sweep_figure(picture))
    assert len(boxes) == 4 and not any(overlap(a, b) for a, b in combinations(boxes.values(), 2))
    assert all(box[0] >= charts.LEFT and box[2] <= charts.WIDTH for box in boxes.values())


def test_a_name_moves_off_a_line_where_there_is_room() -> None:
    on, off = Point("dpsd", "", 1, 0.9, None, "a"), Point("dpsd", "", 10, 0.5, None, "b")
    places, line = {on: (100.0, 50.0), off: (300.0, 200.0)}, [(64.0, 49.0, 436.0, 51.0)]
    ((_, _, _, moved),) = names(charts._names([on, off], list(places.values()), 436, lines=line)).values()
    ((_, _, _, stays),) = names(charts._names([on], [places[on]], 436, lines=line)).values()
    assert (moved, stays) == (204.5, 54.5)


def test_names_beside_each_other_keep_apart() -> None:
    """The first ends at 167 by its room; the second, which has none on its right, would begin there, or further on."""
    points = [Point("pate-gan", "", 1, 0.5, None, "a"), Point("dpdfd", "", 2, 0.5, None, "b")]
    touching, apart = (names(charts._names(points, [(100.0, 50.0), (at, 50.0)], 240)) for at in (213.0, 225.0))
    assert set(touching) == {"pate-gan"} and set(apart) == {"pate-gan", "dpdfd"}


def test_every_printed_number_of_a_figure_is_found_in_the_file() -> None:
    with reported.FILE.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for figure in FIGURES:
        for sweep in figure.sweeps:
            for rule in sweep.printed:
                only = Sweep(sweep.title, (), sweep.x, "", sweep.axis, sweep.y, printed=(rule,))
                found = sweep_points.pictures(only, figure.paper, [], rows)
                assert sum(picture.printed for picture in found) > 0, f"{figure.paper} {figure.name}: {rule}"


def test_every_figure_of_the_recipes_is_drawn_or_a_gallery() -> None:
    known = {(figure.paper, figure.name) for figure in FIGURES}
    wanted = {key for key in recipes() if key[1].startswith("Fig.")}
    assert wanted <= known and len(wanted) > 10
    for figure in FIGURES:
        assert figure.sweeps or figure.pictures
        for sweep in figure.sweeps:
            assert any(name in registry.entries("method") for name in sweep.methods), sweep.title


def test_scales_of_names_and_of_plain_numbers() -> None:
    names = named(["a", "b"], 0, 100)
    assert (names.ticks(), names.at(0.0), names.at(1.0)) == ([0.0, 1.0], 25.0, 75.0)
    counts = linear([0.0, 10.0], 0, 100)
    assert counts.low == 0 and counts.high > 10 and len(counts.ticks()) <= 7
    assert linear([5.0], 0, 1).low < 5 < linear([5.0], 0, 1).high and linear([0.0], 0, 1).low == 0


def test_what_was_not_measured_is_said() -> None:
    (bare,) = releases.lines(board(record("a", accounted=3.0)))
    assert bare["lacking"] == [
        "no attack that reconstructs records",
        "no attack that guesses members",
        "no audit",
        "no second seed",
        "nothing at the papers' size (this is tier quick)",
        "nothing on a GPU",
    ]
    attacked = [
        record("a", seed, accounted=3.0, attack="gmi", status=status) for seed, status in ((0, "ok"), (1, "ok"))
    ]
    (more,) = releases.lines(board(*attacked))
    assert more["lacking"][0] == "no attack that guesses members" and "no second seed" not in more["lacking"]
    weak = [record("a", 0, accounted=3.0, attack="gmi", status="inconclusive")]
    assert releases.lines(board(*weak))[0]["lacking"][0] == "no attack with proved power that reconstructs records"


def test_releases_are_those_of_the_command_and_infinity_is_said() -> None:
    records = [record("a", 0, accounted=3.0, attack=name) for name in ("gmi", "ami")] + [record("b", accounted=None)]
    rows = board(*records)
    lines = releases.lines(rows)
    assert [(one["method"], one["epsilon"], len(one["attacks"])) for one in lines] == [("a", 3.0, 2), ("b", "inf", 0)]
    limits = Constraints("example", 10.0, 0.0)
    taken = [c.name for found in choose(rows, limits).taken.values() for c in found]
    assert taken == [lines[0]["name"]]
    assert [bool(objection(c, limits)) for c in releases.candidates(rows)] == [False, True]


def test_methods_are_ranked_by_what_is_proved_in_one_place_and_unit() -> None:
    made = [("a", 0.9, 3.0), ("a", 0.7, 1.0), ("b", 0.8, 10.0), ("c", 0.99, 10.1), ("d", 0.95, None)]
    records = [
        record(name, accuracy=accuracy, accounted=epsilon, claim=0.1, options={"method": {"n": index}})
        for index, (name, accuracy, epsilon) in enumerate(made)
    ]
    for found, (_, _, epsilon) in zip(records, made, strict=True):
        found.spec["release"]["options"] = {"n": epsilon}
    lines = releases.lines(board(*records))
    told = {
        name: [(one["accuracy"], one["rank"], one["of"]) for one in method_pages.standings(name, lines)]
        for name in "abcd"
    }
    assert told == {"a": [(0.9, 1, 2)], "b": [(0.8, 2, 2)], "c": [], "d": []}
    for without in ({"flags": ["refuted"]}, {"flags": ["float32-noise"]}, {"older": "made by version 1"}):
        assert method_pages.standings("a", [line | without for line in lines]) == []


def test_a_method_page_says_what_the_source_says_and_what_was_measured() -> None:
    run = record("dpsd", attack="gmi", claim_unit="query")
    run.privacy["claimed"]["disputed"] = "for-a-reason"
    sources = Sources([run, record("from-elsewhere")])
    pages = {page["name"]: page for name, page in parts(sources)[0].items() if name.startswith("method-")}
    assert set(pages) == {*registry.entries("method"), "from-elsewhere"} == set(method_pages.names(sources.records))
    page = pages["dpsd"]
    assert [one["variant"] for one in page["variants"]] == ["working", "printed"], "the one that is run comes first"
    assert page["variants"][0]["departures"] and not page["variants"][1]["departures"]
    (claim,) = page["claims"]
    assert (claim["source"], claim["unit"], claim["dispute"]) == ("Theorem 1", "query", "for-a-reason")
    assert (claim["told"], claim["by"], claim["runs"]) == ("for a reason", ["variant printed"], 1)
    assert [line["accuracy"] for line in page["releases"]] == [0.5] and page["folder"] == "methods"
    assert {"dpsd-table-i"} <= {table["slug"] for table in page["tables"]}
    assert pages["from-elsewhere"]["variants"] == [] and pages["from-elsewhere"]["summary"] == "not installed here"
    assert (page["runs"], pages["from-elsewhere"]["runs"], pages["dp-merf"]["runs"]) == (1, 1, 0)


def test_a_claim_says_which_variants_and_choices_it_is_of() -> None:
    runs = [record("dpsd", seed, variant=variant) for seed, variant in ((0, "printed"), (1, "working"), (2, "working"))]
    for run, mode in zip(runs, ("data", "data", "label"), strict=True):
        run.spec["release"]["options"] = {"mode": mode, "sigma": 2.0, "augment": True}
    runs[2].privacy["claimed"]["source"] = "Theorem 2"
    assert [(one["source"], one["by"], one["runs"]) for one in method_pages.claims(runs)] == [
        ("Theorem 1", ["variant printed", "variant working", "mode=data"], 2),
        ("Theorem 2", ["variant working", "mode=label"], 1),
    ]


def test_a_summary_says_as_printed_where_that_is_run_by_default_alone() -> None:
    assert method_pages.AS_PRINTED in registry.entries("method")["dpsd"].summary
    assert method_pages.summary("dpsd").endswith("of one teacher into a student.")


def test_releases_of_one_name_are_told_apart_by_what_differs() -> None:
    runs = [record("dpsd", accounted=3.0) for _ in range(4)]
    runs[1].spec["release"]["teacher"]["arch"] = "resnet34"
    runs[2].spec["release"]["version"], runs[2].student = 0, "resnet10t"
    runs[3].spec["release"] |= {"options": {"mode": "label"}}
    runs[3].options = {"method": {"mode": "label"}}
    found = releases.lines([row for run in runs for row in board(run)])
    assert len({line["name"] for line in found}) == 2
    assert [line["apart"] for line in found] == [
        *("teacher=resnet18, student=datalens", "teacher=resnet34, student=datalens"),
        *("teacher=resnet18, student=resnet10t, version 0", ""),
    ]
    rows = [row for _ in range(2) for row in board(record("dpsd", accounted=3.0))]
    rows[0]["flags"] += " float32-noise"
    assert [line["apart"] for line in releases.lines(rows)] == ["float32 noise", ""]


def test_smoke_runs_are_no_points_of_a_figure() -> None:
    for tier, points in (("smoke", 0), ("quick", 2)):
        runs = [release_with(own={}, tier=tier, claim=epsilon, budget=epsilon) for epsilon in (1.0, 10.0)]
        found, _ = parts(Sources(runs))
        assert sum(figure["ours"] for figure in found["index"]["figures"] if figure["figure"] == "Fig. 9") == points


def test_a_chart_of_one_place_is_folded_away_unless_print_stands_beside_it() -> None:
    one = release_with(own={}, tier="quick", budget=10.0)
    found, _ = parts(Sources([one]))
    figure = found["figure-dpsd-fig-9"]
    assert figure["markup"] == "" and "<svg" in figure["single"] and figure["ours"] == 0
    beta = [release_with(own={"beta": at}) for at in (0.1, 0.3)]
    assert drawn(BETA, *beta)[0].shows and not drawn(BETA, beta[0])[0].shows
    rules = (Printed("Table V", at="beta"),)
    same, other = (row(table="Table V", setting=f"beta={at}", epsilon="") for at in (0.1, 0.3))
    assert drawn(replace(BETA, printed=rules), beta[0], rows=[other])[0].shows
    assert not drawn(replace(BETA, printed=rules), beta[0], rows=[same])[0].shows, "one place is no axis"
