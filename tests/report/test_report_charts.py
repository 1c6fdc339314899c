"""Charts of the report: panels, fronts, marks, names, colours."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from made import name_boxes, overlap, record

from bench import registry
from bench.papers.figures import sweep_charts
from bench.report import Sources, charts, figures, picture, points, render, runs
from bench.report.charts import Chart, Scale, styles
from bench.report.points import Point


def test_panels_have_one_unit_and_a_release_once() -> None:
    records = [record(seed=seed, accuracy=0.4 + 0.2 * seed, accounted=100.0) for seed in (0, 1)]
    records += [record(seed=0, accuracy=0.4, accounted=100.0, attack=name) for name in ("gmi", "mirror")]
    records += [record("lp-2st", claim=1.0, claim_unit="label"), record("no-defence", claim="none")]
    panels = {(panel.what, panel.unit): panel.points for panel in points.epsilons(records)}
    assert [" ".join(key) for key in panels] == [
        "claimed label",
        "claimed query",
        "accounted example",
        "accounted query",
    ]
    (only,) = panels["claimed", "query"]
    assert (only.method, only.seeds, only.x) == ("dpsd", 2, 10.0)
    assert only.y == pytest.approx(0.5) and only.spread == pytest.approx(math.sqrt(0.02))
    assert {p.method: p.x for p in panels["accounted", "example"]} == {
        **{"dpsd": 100.0, "lp-2st": math.inf, "no-defence": math.inf}
    }


def test_curves_join_points_that_differ_only_in_budget() -> None:
    records = [record(budget=e, claim=e, accuracy=e / 20) for e in (1.0, 10.0)] + [record("dgd")]
    (panel,) = [p for p in points.curves(points.epsilons(records)) if p.what == "claimed"]
    assert [(p.method, p.x) for p in panel.points] == [("dpsd", 1.0), ("dpsd", 10.0)]
    assert len({p.series for p in panel.points}) == 1
    assert points.curves(points.epsilons(records[1:])) == []


def point(x: float, y: float, unit: str = "query", proven: bool = True) -> Point:
    return Point("m", "", x, y, None, "", proven=proven, unit=unit)


def test_auc_below_half_counts_as_half() -> None:
    worse, coin, strong = point(0.3, 0.4), point(0.5, 0.8), point(0.7, 0.9)
    assert points.fronts([worse, coin, strong], 0.5) == {"query": [coin, strong]}
    assert points.fronts([worse, coin, strong]) == {"query": [worse, coin, strong]}
    drawn = figures.attack_panel(points.Panel("AUC", "", [worse, coin, strong], "lira"), styles(["m"]))
    assert drawn.count('class="best"') == 2 and "below 0.5 is as safe as 0.5" in drawn
    assert "ringed: no other release of its unit is as safe and as accurate (2 of 3 per query)" in drawn


def test_inversion_panel_has_level_of_public_images() -> None:
    made = [record(attack="gmi", seed=seed) for seed in (0, 1)]
    made[0].metrics["retrieval_accuracy"] = 0.6
    (gmi,) = points.attacks(made)
    assert gmi.lines["public images"] == 0.6


def test_chart_shows_largest_class_near_chance() -> None:
    old, new = record("dpsd", accuracy=0.6), record("dgd", accuracy=0.62)
    old.metrics["times_chance"], new.metrics["times_chance"] = 1.2, 0.62 / 0.58
    assert points.commonest([old, new]) == pytest.approx(0.58), "old records took classes for equal"
    made = figures.section([old, new], [], styles(["dpsd", "dgd"]))
    assert made.count(">largest class</text>") == 3 and "the largest class is 58.0 %" in made
    good = [record(method, accuracy=0.9) for method in ("dpsd", "dgd")]
    for each in good:
        each.metrics["times_chance"] = 9.0
    made = figures.section(good, [], styles(["dpsd", "dgd"]))
    assert ">largest class</text>" not in made and "the largest class is 10.0 %" in made


def test_panel_of_one_point_is_a_sentence() -> None:
    made = figures.section([record(accuracy=0.7, attack="gmi")], [].copy, styles(["dpsd"]))
    assert "<use" not in made.partition("</div>")[2] and made.count("<figure") == 4
    assert "</a>, printed: 70.0 % at 0.8, 1 seed, per query" in made
    assert "<span>on the teacher 0.9, on a random net 0.1" in made


def test_chart_has_label_description_and_table() -> None:
    nasty = "<b>&amp;"
    made = [replace(point(x, 0.5), method=nasty, setting=f"k={x:g}", run="ab", seeds=2) for x in (1.0, math.inf)]
    drawn = figures.epsilon_panel(points.Panel("claimed", "query", made), styles([nasty]))
    page = ElementTree.fromstring(drawn)
    svg, table = page.find("svg"), page.find("details//table")
    assert svg is not None and table is not None
    assert svg.get("aria-label") == "claimed by the paper, per query: accuracy against ε claimed, per query"
    assert svg[0].tag == "desc" and "the response to one synthetic image" in str(svg[0].text)
    heads, *rows = [["".join(cell.itertext()) for cell in row] for row in table]
    assert heads == ["name", "accuracy", "ε claimed, per query", "seeds", "notes", "setting"]
    assert rows == [
        [nasty, "50.0 %", "1", "2 seeds", "per query", "k=1"],
        [nasty, "50.0 %", "∞", "2 seeds", "per query", "k=inf"],
    ]
    marks = {title.text for title in svg.iter("title")}
    assert marks == {f"{nasty}, k={x}: 50.0 % at {y}, 2 seeds, per query" for x, y in (("1", "1"), ("inf", "∞"))}
    assert {link.get("href") for link in page.iter("a")} == {"#run-ab"}
    assert not [each for each in page.iter() if "style" in each.attrib], "the page's policy allows none"


def test_bars_are_cut_at_the_frame() -> None:
    wide = [point(1.0, 0.51), point(10.0, 0.9)]
    wide[0] = replace(wide[0], spread=0.2, run="a")
    made = figures.epsilon_panel(points.Panel("claimed", "query", wide), styles(["m"]))
    ((_, low, high),) = re.findall(r'<path d="M([\d.]+) ([\d.]+)V([\d.]+)" class="spread"', made)
    chart = Chart(Scale("x", [1.0, 10.0], "log"), Scale("y", [0.31, 0.71, 0.9]), wide, styles(["m"]))
    assert float(low) == pytest.approx(chart.at(1.0, 0.31)[1], abs=0.1)
    assert float(high) == pytest.approx(chart.at(1.0, 0.71)[1], abs=0.1)


def chart_of(made: list[Point], kind: charts.Kind = "log") -> Chart:
    x, y = Scale("x", [each.x for each in made], kind), Scale("y", [each.y for each in made])
    return Chart(x, y, made, styles(each.method for each in made))


def test_marks_at_one_place_are_side_by_side() -> None:
    made = [point(1.0, 0.5), point(1.0, 0.5), point(1.0, 0.9), point(10.0, 0.5)]
    chart = chart_of(made)
    under, over, away, _ = chart.places
    assert over == chart.at(1.0, 0.5) and away == chart.at(1.0, 0.9)
    assert abs(under[0] - over[0]) >= 7 and under[1] == over[1]
    shares = chart_of([point(0.5, 0.5), point(0.5, 0.5), point(1.0, 0.5)], "share")
    assert len(set(shares.places[:2])) == 1, "there the place is the message"


def test_infinite_values_are_spread_over_a_strip() -> None:
    chart = chart_of([point(1.0, 0.5), point(10.0, 0.6), point(math.inf, 0.5), point(math.inf, 0.9)])
    _, last, *far = (across for across, _ in chart.places)
    assert last < chart.edge - charts.BAND < far[0] < far[1] < chart.edge
    assert ">∞</text>" in chart.markup("", "", "")


def test_names_avoid_lines() -> None:
    lines = [
        replace(point(x, y), method=name, series=name) for name, y in (("a", 0.6), ("b", 0.62)) for x in (1.0, 10.0)
    ]
    chart = chart_of(lines)
    chart.join()
    chart.level(0.7)
    chart.name_methods(above=True)
    names = name_boxes(chart.markup("", "", ""))
    assert set(names) == {"a", "b"}
    curves = [(*chart.at(1.0, y), *chart.at(10.0, y)) for y in (0.6, 0.62)]
    level = (charts.LEFT, chart.at(1.0, 0.7)[1], chart.edge, chart.at(1.0, 0.7)[1])
    assert not any(overlap(box, line) for box in names.values() for line in (*curves, level))


def test_names_avoid_marks_and_each_other() -> None:
    rng = random.Random(2)
    for _ in range(20):
        made = [replace(point(10 ** rng.uniform(0, 3), rng.random()), method=f"method-{n}") for n in range(12)]
        chart = chart_of(made)
        for value in (0.3, 0.32):
            chart.level(value, f"at {value}")
        chart.level(30.0, "upright", upright=True)
        chart.name_methods()
        names = name_boxes(chart.markup("", "", ""))
        assert {"at 0.3", "at 0.32", "upright"} <= set(names), "names of levels are needed"
        assert not any(overlap(a, b) for a, b in combinations(names.values(), 2))
        marks = [(x - 4, y - 4, x + 4, y + 4) for x, y in chart.places]
        assert not any(overlap(box, mark) for box in names.values() for mark in marks)
        assert all(box[0] >= charts.LEFT - 1 and box[2] <= charts.WIDTH for box in names.values())


def test_fronts_match_the_definition() -> None:
    rng = random.Random(1)
    for _ in range(200):
        drawn = [point(rng.randrange(6), rng.randrange(6), rng.choice(["query", "none"])) for _ in range(12)]
        found = points.fronts([*drawn, point(0.0, 9.0, proven=False)])
        for unit in ("query", "none"):
            mine = {(p.x, p.y) for p in drawn if p.unit == unit}
            best = {(x, y) for x, y in mine if not any(u <= x and v >= y and (u, v) != (x, y) for u, v in mine)}
            assert {(p.x, p.y) for p in found.get(unit, [])} == best
            assert found.get(unit, []) == sorted(found.get(unit, []), key=lambda p: p.x)


def test_attack_panels_keep_units_and_power() -> None:
    records = [
        record(attack="gmi", success=0.8),
        record("pate", attack="gmi", claim="none", accounted=3.0, status="inconclusive"),
        record("no-defence", attack="gmi", claim="none"),
        record(attack="mirror"),
        record("dgd"),
    ]
    outgrown = record("dgd", attack="gmi", claim="none")  # the gate of its time was weaker than today's
    outgrown.metrics |= {"teacher_floor_p": 0.4}
    assert runs.page(outgrown, []).status == "inconclusive" and runs.page(records[0], []).status == "ok"
    gmi, mirror = points.attacks([*records, outgrown])
    assert (gmi.attack, mirror.attack, len(mirror.points)) == ("gmi", "mirror", 1)
    found = {p.method: (p.unit, p.proven) for p in gmi.points}
    assert found == {
        "dpsd": ("query", True),
        "pate": ("example", False),
        "no-defence": ("none", True),
        "dgd": ("none", False),
    }
    assert gmi.lines == {"on the teacher": pytest.approx(0.9), "on a random net": pytest.approx(0.1)}


def test_limits_contain_finite_values_with_margin() -> None:
    low, high = Scale("", [1.0, 100.0, math.inf], "log").limits
    assert low < 1.0 and 100.0 < high < 1000.0
    assert Scale("", [0.448, 0.99]).limits == (0.4, 1.0)
    assert Scale("", [1.0]).limits == pytest.approx((0.8, 1.0)) and Scale("", [0.0]).limits == pytest.approx((0.0, 0.2))
    assert Scale("", [0.0, 10.0], "number").limits[0] == 0 and Scale("", [0.0], "number").limits == (0.0, 1.0)
    low, high = Scale("", [5.0], "number").limits
    assert low < 5 < high
    assert Scale("", [], "log").limits[0] < 1 < Scale("", [], "log").limits[1], "no value at all"


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        ([1.0, 100.0], "log", ["1", "10", "100"]),
        ([10.0], "log", ["5", "10", "20"]),
        ([1.0, 10.0], "log", ["1", "2", "5", "10"]),
        ([1e3, 1e6], "log", ["1000", "10⁴", "10⁵", "10⁶"]),
        ([0.448, 0.99], "share", ["40 %", "50 %", "60 %", "70 %", "80 %", "90 %", "100 %"]),
        ([0.0, 10.0], "number", ["0", "2", "4", "6", "8", "10"]),
    ],
)
def test_ticks_are_round_numbers(values: list[float], kind: charts.Kind, labels: list[str]) -> None:
    assert list(Scale("", values, kind).ticks().values()) == labels


def test_scale_places_values_by_kind() -> None:
    scale = Scale("", [1.0, 100.0], "log")
    assert scale.part(10.0) == pytest.approx(0.5) and scale.part(0.0) == 0, "a claim of 0 is where the axis begins"
    names = Scale("", [], "names", ("a", "b"))
    assert (names.part(0.0), names.part(1.0), names.ticks()) == (0.25, 0.75, {0.0: "a", 1.0: "b"})


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(scheme: int) -> None:
    css = render(Sources([record()]))["web/style.css"].decode()
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", css)
    colours = {name: luminance((light, dark)[scheme]) for name, light, dark in pairs}

    def contrast(front: str, back: str) -> float:
        low, high = sorted((colours[front], colours[back]))
        return (high + 0.05) / (low + 0.05)

    text = [(name, back) for name in ("text", "quiet", "link") for back in ("back", "soft")]
    text += [(name, f"{name}-back") for name in ("warn", "bad", "good", "ahead")]
    assert all(contrast(*pair) >= 4.5 for pair in text), {pair: contrast(*pair) for pair in text}
    inks = [f"c{number}" for number in range(charts.COLOURS)]
    assert all(contrast(name, "back") >= 3 for name in inks), {name: contrast(name, "back") for name in inks}


def test_styles_differ_for_all_methods() -> None:
    methods = list(registry.entries("method"))
    look = styles(methods)
    assert len(set(look.values())) == len(methods) and {shape for _, shape in look.values()} <= set(picture.MARKERS)
    assert sweep_charts.PRINTED_COLOUR not in {colour for colour, _ in look.values()}, "grey is for published numbers"
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in pairwise(look.values()))
