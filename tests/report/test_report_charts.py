"""Charts of the report: panels, fronts, marks, names, colours."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from made import record

from bench import registry
from bench.papers.figures import sweep_charts
from bench.report import (
    Sources,
    figures,
    picture,
    points,
    render,
    runs,
)
from bench.report.axes import BAND, logarithmic, share
from bench.report.charts import marks, panels, places, svg
from bench.report.points import Point


def test_labels_of_fronts_are_apart_and_inside_the_figure() -> None:
    assert places.stacked([200.0, 100.0, 60.0]) == [200.0, 100.0, 60.0]
    crowded = places.stacked([svg.TOP + 5.0, svg.TOP + 4.0, svg.TOP + 1.0])
    assert crowded == [svg.TOP + 2 * svg.LINE, svg.TOP + svg.LINE, svg.TOP]


def test_panels_hold_one_unit_each_and_a_release_once() -> None:
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


def test_curves_join_what_differs_in_the_budget_alone() -> None:
    records = [record(budget=e, claim=e, accuracy=e / 20) for e in (1.0, 10.0)] + [record("dgd")]
    (panel,) = [p for p in points.curves(points.epsilons(records)) if p.what == "claimed"]
    assert [(p.method, p.x) for p in panel.points] == [("dpsd", 1.0), ("dpsd", 10.0)]
    assert len({p.series for p in panel.points}) == 1
    assert points.curves(points.epsilons(records[1:])) == []


def point(x: float, y: float, unit: str = "query", proven: bool = True) -> Point:
    return Point("m", "", x, y, None, "", proven=proven, unit=unit)


def test_fronts_by_hand() -> None:
    a, b, c, d = point(0.1, 0.3), point(0.2, 0.3), point(0.5, 0.9), point(0.4, 0.5)
    found = points.fronts([d, c, b, a, point(0.0, 1.0, proven=False), point(0.0, 0.1, "example")])
    assert found == {"example": [point(0.0, 0.1, "example")], "query": [a, d, c]}


def test_an_attack_that_is_worse_than_a_coin_is_no_safer_than_a_coin() -> None:
    worse, coin, strong = point(0.3, 0.4), point(0.5, 0.8), point(0.7, 0.9)
    assert points.fronts([worse, coin, strong], 0.5) == {"query": [coin, strong]}
    assert points.fronts([worse, coin, strong]) == {"query": [worse, coin, strong]}
    drawn = panels.attack_panel(points.Panel("AUC", "", [worse, coin, strong], "lira"), marks.styles(["m"]))
    assert drawn.count('class="best"') == 2 and "below 0.5 is as safe as 0.5" in drawn
    assert "ringed: no other release of its unit is as safe and as accurate (2 of 3 per query)" in drawn


def test_public_images_are_a_level_of_an_attack_that_reconstructs() -> None:
    made = [record(attack="gmi", seed=seed) for seed in (0, 1)]
    made[0].metrics["retrieval_accuracy"] = 0.6
    (gmi,) = points.attacks(made)
    assert gmi.lines["public images"] == 0.6


def test_the_largest_class_is_a_level_where_a_student_may_know_no_more() -> None:
    old, new = record("dpsd", accuracy=0.6), record("dgd", accuracy=0.62)
    old.metrics["times_chance"], new.metrics["times_chance"] = 1.2, 0.62 / 0.58
    assert points.commonest([old, new]) == pytest.approx(0.58), "old records took classes for equal"
    made = figures.section([old, new], [], marks.styles(["dpsd", "dgd"]))
    assert made.count(">largest class</text>") == 3 and "the largest class is 58.0 %" in made
    good = [record(method, accuracy=0.9) for method in ("dpsd", "dgd")]
    for each in good:
        each.metrics["times_chance"] = 9.0
    made = figures.section(good, [], marks.styles(["dpsd", "dgd"]))
    assert ">largest class</text>" not in made and "the largest class is 10.0 %" in made


def test_a_panel_of_one_point_is_a_line_of_text() -> None:
    made = figures.section([record(accuracy=0.7, attack="gmi")], [], marks.styles(["dpsd"]))
    assert "<figure" not in made and made.count("<li>") == 4
    assert "70.0 % at attack accuracy of gmi 0.8, 1 seed, on the teacher 0.9, on a random net 0.1" in made


def test_bars_are_inside_of_the_frame() -> None:
    wide = [point(1.0, 0.51), point(10.0, 0.9)]
    wide[0] = replace(wide[0], spread=0.2, run="a")
    made = panels.epsilon_panel(points.Panel("claimed", "query", wide), marks.styles(["m"]))
    ((_, low, high),) = re.findall(r'<path d="M([\d.]+) ([\d.]+)V([\d.]+)" class="spread"', made)
    scale = share([0.31, 0.71, 0.9], svg.BOTTOM, svg.TOP)
    assert float(low) == pytest.approx(scale.at(0.31), abs=0.1) and float(high) == pytest.approx(
        scale.at(0.71), abs=0.1
    )


def test_marks_at_one_place_stand_side_by_side_and_the_last_one_stays() -> None:
    x = logarithmic([1.0, 10.0], svg.LEFT, svg.RIGHT)
    y = share([0.5, 0.9], svg.BOTTOM, svg.TOP)
    under, over, away = places.placed([point(1.0, 0.5), point(1.0, 0.5), point(1.0, 0.9)], x, y)
    assert over == (x.at(1.0), y.at(0.5)) and away == (x.at(1.0), y.at(0.9))
    assert abs(under[0] - over[0]) >= 7 and under[1] == over[1]
    shares = share([0.0, 1.0], svg.LEFT, svg.RIGHT)
    assert len(set(places.placed([point(0.5, 0.5), point(0.5, 0.5)], shares, y))) == 1, "there the place is the message"


def test_no_line_runs_through_a_name() -> None:
    made = [
        replace(point(x, y), method=name, series=name) for name, y in (("a", 0.6), ("b", 0.62)) for x in (1.0, 10.0)
    ]
    panel = points.Panel("claimed", "query", made)
    drawn = panels.epsilon_panel(panel, marks.styles(["a", "b"]), lines=True)
    x = logarithmic([1.0, 10.0], svg.LEFT, svg.RIGHT)
    boxes = places.along(made, x, panels.upward(panel))
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="name">', drawn)
    assert names and len(boxes) > 100
    for across, height, anchor in names:
        left = float(across) - (svg.LETTER if anchor == "end" else 0)
        box = (left, float(height) - 10, left + svg.LETTER, float(height))
        assert not any(places.overlap(box, other) for other in boxes)


def test_fronts_against_the_definition() -> None:
    rng = random.Random(1)
    for _ in range(200):
        drawn = [point(rng.randrange(6), rng.randrange(6), rng.choice(["query", "none"])) for _ in range(12)]
        found = points.fronts(drawn)
        for unit in ("query", "none"):
            mine = {(p.x, p.y) for p in drawn if p.unit == unit}
            best = {(x, y) for x, y in mine if not any(u <= x and v >= y and (u, v) != (x, y) for u, v in mine)}
            assert {(p.x, p.y) for p in found.get(unit, [])} == best


def test_attacks_have_a_panel_each_and_points_know_their_promise() -> None:
    records = [
        record(attack="gmi", success=0.8),
        record("pate", attack="gmi", claim="none", accounted=3.0, status="inconclusive"),
        record("no-defence", attack="gmi", claim="none"),
        record(attack="mirror"),
        record("dgd"),
    ]
    outgrown = record("dgd", attack="gmi", claim="none")  # its day's gate asked for less than today's
    outgrown.metrics |= {"teacher_floor_p": 0.4}
    assert runs.page(outgrown, [])["status"] == "inconclusive" and runs.page(records[0], [])["status"] == "ok"
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


def test_scales() -> None:
    scale = logarithmic([1.0, 100.0, math.inf], 0, 300)
    assert scale.end == 300 - BAND and scale.edge == 300 and scale.ticks() == [1.0, 10.0, 100.0]
    assert scale.at(10) == pytest.approx(scale.end / 2)
    assert all(0 < scale.at(value) < scale.end for value in (1.0, 100.0))
    assert logarithmic([10.0], 0, 100).ticks() == [5.0, 10.0, 20.0]
    assert logarithmic([1.0, 10.0], 64, 436).ticks() == [1.0, 2.0, 5.0, 10.0]
    assert logarithmic([1.0, 10.0], 64, 150).ticks() == [1.0, 10.0], "no room for more"
    assert logarithmic([0.0, 1.0, 100.0], 0, 300).at(0.0) == 0, "a claim of 0 lies at the beginning"
    accuracy = share([0.448, 0.99], 288, 14)
    assert (accuracy.low, accuracy.high) == (0.4, 1.0) and accuracy.at(0.4) == 288
    assert share([1.0], 0, 1).low == pytest.approx(0.8) and share([0.0], 0, 1).high == pytest.approx(0.2)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_what_is_behind_them(scheme: int) -> None:
    css = render(Sources([record()]))["web/style.css"].decode()
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", css)
    colours = {name: luminance((light, dark)[scheme]) for name, light, dark in pairs}

    def contrast(front: str, back: str) -> float:
        low, high = sorted((colours[front], colours[back]))
        return (high + 0.05) / (low + 0.05)

    text = [(name, back) for name in ("text", "quiet", "link") for back in ("back", "soft")]
    text += [(name, f"{name}-back") for name in ("warn", "bad", "good", "ahead")]
    assert all(contrast(*pair) >= 4.5 for pair in text), {pair: contrast(*pair) for pair in text}
    inks = [f"c{number}" for number in range(marks.COLOURS)]
    assert all(contrast(name, "back") >= 3 for name in inks), {name: contrast(name, "back") for name in inks}


def test_no_two_methods_look_alike_in_a_chart() -> None:
    methods = list(registry.entries("method"))
    look = marks.styles(methods)
    assert len(set(look.values())) == len(methods) and {shape for _, shape in look.values()} <= set(picture.MARKERS)
    assert sweep_charts.PRINTED_COLOUR not in {colour for colour, _ in look.values()}, "grey is for print"
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in pairwise(look.values())), "neither alone tells"
