"""The papers' figures drawn from runs: points, lines and levels, and the positions of their names."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from made import name_boxes, overlap, parts_of, record

from bench import registry
from bench.papers.figures import FIGURES, sweep_charts, sweep_points
from bench.papers.figures.kinds import Printed, Sweep, read_figures
from bench.papers.printed_numbers import PrintedNumber, load, read_row
from bench.papers.tables import read_recipes
from bench.report import Sources
from bench.report.charts import LEFT, WIDTH
from bench.report.points import Point, grouped
from bench.storage.records import Record


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


def test_line_joins_runs_that_differ_only_in_axis_and_seed() -> None:
    runs = [release_with(own={"beta": b}, seed=seed, accuracy=b + 0.2 * seed) for b in (0.1, 0.3) for seed in (0, 1)]
    others = [release_with(own={"beta": 0.1, "k": 3}), release_with(own={"beta": 0.2, "mode": "label"})]
    (picture,) = drawn(BETA, *runs, *others, release_with(own={"beta": 0.0}))
    assert [(p.x, pytest.approx(p.y), p.seeds) for p in sorted(picture.points, key=lambda p: p.x)] == [
        (0.1, 0.2, 2),
        (0.3, 0.4, 2),
    ], "single points with an option, another mode, and a beta of 0 on a log axis are left out"
    assert len({point.series for point in picture.points}) == 1 and picture.ours == 2
    plain = release_with(own={"beta": 0.5}, budget=1.0, claim=1.0)
    assert [p.x for p in drawn(BETA, plain)[0].points] == [0.5], "a single point of default options is drawn"


def test_one_experiment_is_one_point() -> None:
    given = [release_with(own={"k": k}, seed=seed) for k, seeds in ((5, 1), (10, 2)) for seed in range(seeds)]
    solved = release_with(own={"k": 0}, seed=7)
    solved.privacy["solved"] = {"k": 10}
    (picture,) = drawn(Sweep("over k", ("dpsd",), "k", "k"), *given, solved)
    assert sorted((point.x, point.seeds) for point in picture.points) == [(5, 1), (10, 2)]


def test_sweep_chart_shows_accounted_epsilons() -> None:
    runs = [release_with(own={"beta": beta}, accounted=proved) for beta, proved in ((0.1, 32.0), (0.3, 11_935_344.0))]
    (picture,) = drawn(BETA, *runs)
    markup = sweep_charts.sweep_figure(picture)
    assert "ε accounted from 32 to 11,935,344 per example" in markup
    assert "dpsd printed, quick: 50.0 % at 0.1, 1 seed, ε accounted 32 per example" in markup
    coarse = [release_with(own={"beta": beta}, accounted=32.0) for beta in (0.1, 0.3)]
    for each in coarse:
        del each.privacy["noise_version"]
    (picture,) = drawn(BETA, *coarse)
    assert "accounted" not in sweep_charts.sweep_figure(picture), "no epsilon with noise in float32"


def test_line_has_same_style_in_all_pictures() -> None:
    def run(dataset: str, at: float, bound: str) -> Record:
        made = record("dpsd", dataset=dataset, budget=1.0, claim=1.0)
        made.spec["release"]["options"] = {"mode": "data", "beta": at, "bound": bound}
        made.options = {"method": {"beta": at, "bound": bound}}
        return replace(made, hash=f"{dataset}{at}{bound}")

    where = (("mnist", "clip"), ("mnist", "normalise"), ("fmnist", "normalise"))
    found = parts_of(Sources([run(name, at, bound) for name, bound in where for at in (0.1, 0.3)]))
    markup = found["figure-dpsd-fig-5"]["markup"]
    looks = re.findall(r'<button type="button" class="(c\d)" data-method="([^"]+)"', markup)
    assert len(looks) == 3 and len(set(looks)) == 2, "the only line of one picture is the second of the other"


def test_endless_value_is_at_end_of_axis() -> None:
    sweep = Sweep("over alpha", ("dpsd",), "alpha", "alpha", "log", endless=1e6, beyond="iid")
    (picture,) = drawn(sweep, *[release_with(own={"alpha": alpha}) for alpha in (0.1, 0.5, 1e6)])
    markup = sweep_charts.sweep_figure(picture)
    assert ">iid</text>" in markup and " at iid, 1 seed" in markup and "10⁵" not in markup


def test_lines_of_one_name_show_their_networks() -> None:
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


def test_single_point_next_to_lines_is_grey() -> None:
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
    assert [point.method for point in without.points] == ["dpsd printed, quick epsilon=2.0"], "no line"


def test_methods_are_compared_at_most_common_conditions() -> None:
    which = Sweep("compared", ("dpsd", "dpdfd", "dgd"), "method", "method", "names")
    here = [record(name, 0, 0.5, dataset="mnist", budget=1.0, claim=1.0) for name in ("dpsd", "dpdfd", "dgd")]
    there = [record(name, 0, 0.6, dataset="mnist", budget=2.0, claim=2.0) for name in ("dpsd", "dpdfd")]
    elsewhere = [record("dpsd", 0, 0.7, dataset="mnist", budget=8.0, claim=8.0)]
    (picture,) = drawn(which, *here, *there, *elsewhere)
    grey = [point.y for point in picture.points if point.method == sweep_points.OTHERS]
    assert grey == [0.7] and len(picture.points) == 6, "two of three places are more than half"


def test_line_over_teachers_joins_ensemble_sizes() -> None:
    def run(count: int) -> Record:
        found = release_with(own={"teachers": count})
        found.spec["release"]["ensemble"] = {"kind": "ensemble", "shards": {"count": count, "steps": 3}}
        return found

    (picture,) = drawn(Sweep("over teachers", ("dpsd",), "teachers", "teachers", "log"), *map(run, (10, 50, 250)))
    assert len({point.series for point in picture.points}) == 1 and len(picture.points) == 3


def test_point_uses_seeds_that_have_the_number() -> None:
    runs = [release_with(own={"beta": 0.1}, seed=seed) for seed in (0, 1, 2)]
    runs[0].metrics["votes_accuracy"], runs[1].metrics["votes_accuracy"] = 0.4, 0.6
    (picture,) = drawn(replace(BETA, y="votes_accuracy"), *runs)
    assert [(point.y, point.seeds) for point in picture.points] == [(0.5, 2)]


def test_solved_noise_is_the_place_of_a_run() -> None:
    run = release_with(own={})
    run.privacy["solved"] = {"sigma": 7.5, "steps": None}
    (picture,) = drawn(Sweep("over sigma", ("dpsd",), "sigma", "sigma", "log"), run)
    assert [point.x for point in picture.points] == [7.5]


def test_sweep_of_one_budget_draws_only_its_runs() -> None:
    runs = [release_with(own={"beta": at}, budget=e, claim=e) for at in (0.1, 0.2) for e in (1.0, 2.0, None, "inf")]
    (picture,) = drawn(replace(BETA, epsilon=2), *runs)
    assert sorted(point.x for point in picture.points) == [0.1, 0.2] and len(drawn(BETA, *runs)[0].points) == 8


def test_sweep_needs_attack_only_for_attack_numbers() -> None:
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


def row(**changes: str) -> PrintedNumber:
    made = {"paper": "dpsd", "table": "Table I", "dataset": "mnist", "method": "dpsd", "kind": "", "note": ""}
    made |= {"unit_claimed": "data", "epsilon": "1", "delta": "", "metric": "accuracy", "value": "0.9", "setting": ""}
    return read_row(made | {"issue": ""} | changes)


def test_printed_number_is_point_level_or_upright() -> None:
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


def test_number_without_data_set_is_drawn_on_own_data_sets() -> None:
    sweep = Sweep("over epsilon", ("dpsd",), "epsilon", "", "log", printed=(Printed("Table I"), Printed("text 1")))
    rows = [row(), row(dataset="fmnist"), row(table="text 1", dataset="unspecified")]
    runs = [record("dpsd", dataset=name, claim=5.0) for name in ("digits", "mnist")]
    found = {each.dataset: each for each in drawn(sweep, *runs, rows=rows)}
    assert {name: each.printed for name, each in found.items()} == {"fmnist": 2, "mnist": 2, "digits": 0}
    assert len(frozenset().union(*(each.numbers for each in found.values()))) == 3


def test_names_of_printed_places_avoid_points() -> None:
    """Fashion-MNIST in DP-DFD's Fig. 2: a horizontal level near the top, and a vertical one crossed by its name."""
    points = [Point("dp-dfd", "", x, y, None, "a") for x, y in ((2e4, 0.25), (5e4, 0.3), (8e4, 0.29), (1.2e5, 0.31))]
    sweep = Sweep("over images", ("dp-dfd",), "amount", "images", "log")
    uprights = {"where it saturates": 1.2e5, "and once more": 1.1e5}
    for level in (0.2, 0.26, 0.5, 0.89):
        picture = sweep_points.Picture(sweep, "fmnist", points, uprights=uprights, levels={"Table I": level})
        drawn = sweep_charts.sweep_figure(picture)
        boxes = name_boxes(drawn)
        assert len(boxes) == 3 and not any(overlap(a, b) for a, b in combinations(boxes.values(), 2))
        marks = [
            (float(x), float(y)) for x, y in re.findall(r'<use href="#mark-\w+" x="([\d.]+)" y="([\d.]+)"', drawn)
        ][:-1]
        assert len(marks) == 4, "the last one is the legend's"
        upright = [box for told, box in boxes.items() if "Table" not in told]
        assert not any(overlap(box, (x - 4, y - 4, x + 4, y + 4)) for box in upright for x, y in marks)


def test_names_of_close_levels_do_not_overlap() -> None:
    points = [Point("dgd", "", x, 0.5, None, "a") for x in (1.0, 10.0)]
    sweep, long = Sweep("over images", ("dgd",), "amount", "images", "log"), "dp-dfd, text III-C data amount and so on"
    levels = {"teacher, text IV-B VAE": 0.928, "dgd-plus, text IV-B VAE": 0.927}
    picture = sweep_points.Picture(
        sweep, "svhn", points, levels=levels, uprights={long: 8.0, "dp-dfd, text III-C": 4.0}
    )
    boxes = name_boxes(sweep_charts.sweep_figure(picture))
    assert len(boxes) == 4 and not any(overlap(a, b) for a, b in combinations(boxes.values(), 2))
    assert all(box[0] >= LEFT and box[2] <= WIDTH for box in boxes.values())


def test_every_rule_of_a_figure_finds_a_number() -> None:
    for figure in FIGURES:
        for sweep in figure.sweeps:
            for rule in sweep.printed:
                only = Sweep(sweep.title, (), sweep.x, "", sweep.axis, sweep.y, printed=(rule,))
                found = sweep_points.pictures(only, figure.paper, [], load())
                assert sum(picture.printed for picture in found) > 0, f"{figure.paper} {figure.name}: {rule}"


def test_every_recipe_figure_is_drawn_or_a_gallery() -> None:
    known = {(figure.paper, figure.name) for figure in FIGURES}
    wanted = {key for key in read_recipes() if key[1].startswith("Fig.")}
    assert wanted <= known and len(wanted) > 10
    for figure in FIGURES:
        assert figure.sweeps or figure.pictures
        for sweep in figure.sweeps:
            assert any(name in registry.entries("method") for name in sweep.methods), sweep.title


def test_smoke_runs_are_not_drawn() -> None:
    for tier, points in (("smoke", 0), ("quick", 2)):
        runs = [release_with(own={}, tier=tier, claim=epsilon, budget=epsilon) for epsilon in (1.0, 10.0)]
        found = parts_of(Sources(runs))
        figures = found["index"]["papers"]["figures"]
        assert sum(figure["ours"] for figure in figures if figure["figure"] == "Fig. 9") == points


def test_chart_of_one_place_is_folded() -> None:
    one = release_with(own={}, tier="quick", budget=10.0)
    found = parts_of(Sources([one]))
    figure = found["figure-dpsd-fig-9"]
    assert figure["markup"] == "" and "<svg" in figure["single"] and figure["ours"] == 0
    beta = [release_with(own={"beta": at}) for at in (0.1, 0.3)]
    assert drawn(BETA, *beta)[0].is_comparable and not drawn(BETA, beta[0])[0].is_comparable
    rules = (Printed("Table V", at="beta"),)
    same, other = (row(table="Table V", setting=f"beta={at}", epsilon="") for at in (0.1, 0.3))
    assert drawn(replace(BETA, printed=rules), beta[0], rows=[other])[0].is_comparable
    assert not drawn(replace(BETA, printed=rules), beta[0], rows=[same])[0].is_comparable, "one place is not an axis"


def test_figures_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "figures.toml"
    wrong.write_text('[[figures]]\npaper = "dgd"\nname = "Fig. 3"\nnotes = "a key that no figure has"\n')
    with pytest.raises(ValueError, match="notes"):
        read_figures(wrong)
    assert read_figures() == FIGURES
