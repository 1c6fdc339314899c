"""What the report shows, without a browser: commands, panels, fronts, sources, escaping."""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import write_toy
from made import NASTY, png, record

from bench import cli, leaderboard, registry
from bench.cli import report as report_command
from bench.cli import run as run_command
from bench.errors import BenchError
from bench.leaderboard.columns import ALL
from bench.leaderboard.flags import flags_of_row
from bench.pipeline.job import load_job
from bench.pipeline.run_spec import changed_options, run_spec
from bench.privacy.claims import DEFECTS, NO_EPSILON
from bench.report import (
    Sources,
    boards,
    charts,
    command,
    figures,
    gather,
    glossary,
    picture,
    points,
    render,
    runs,
)
from bench.report.axes import BAND, logarithmic, share
from bench.report.command import notes
from bench.report.files import script, slug
from bench.report.files import write as save
from bench.report.paper_figures import sweep_charts
from bench.report.points import Point
from bench.report.site import parts
from bench.storage.records import Record

SMOKE = "run --method dpsd --tier smoke --teacher datalens"


def made_by(line: str, out: Path) -> Record:
    """The record that a command line would write, without its results."""
    settings, seeds = run_command.settle(cli.read([*shlex.split(line), "--out", str(out)]))
    job = load_job(settings)
    spec = run_spec(job, seeds[0])
    return Record(spec.hash, "ok", "", json.loads(json.dumps(asdict(spec))), changed_options(job))


def test_a_setting_names_every_option_that_is_not_the_tiers(tmp_path: Path) -> None:
    given = "--attack gmi --attack.iterations 7 --teacher.lr 0.01 --teacher.flip --method.k 2 --teacher.epochs 1"
    named = "k=2 attack.iterations=7 teacher.flip=true teacher.lr=0.01 epsilon=1.0"
    assert made_by(f"{SMOKE} {given} --epsilon 1", tmp_path).setting == named, "epochs are the tier's"


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--attack gmi",
        "--attack gmi --attack.iterations 7 --attack.keep_best --seeds 3",
        "--method.mode label --method.k 2 --method.replay false --epsilon 1",
        "--method class-moments --method.teachers 4 --account accounted --epsilon 8 --unit example --delta 1e-6",
        "--epsilon inf --noise os --student resnet18",
        "--epsilon none --method.sigma 3.5",
        "--solve steps --epsilon 0.30000000000000004 --method.sigma 50",
        "--teacher.lr 0.01 --teacher.flip --split full --dataset digits --split disjoint-low",
        "--attack gmi --evaluator.epochs 3 --evaluator.flip",
        "--attack gmi --evaluator.recipe objects --evaluator.max_steps 5 --teacher.recipe faces",
        "--attack gmi --evaluator.recipe standard",
        "--attack gmi --evaluator evaluator-vgg --evaluator.epochs 3",
    ],
)
def test_the_command_of_a_record_makes_the_same_spec(options: str, tmp_path: Path) -> None:
    wanted = made_by(f"{SMOKE} {options}", tmp_path)
    line = command(wanted)
    program, *arguments = shlex.split(line)
    found = made_by(shlex.join(arguments), tmp_path)
    assert program == "bench"
    assert (found.hash, found.setting) == (wanted.hash, wanted.setting)
    assert ("--epsilon none" in line) == ("none" in options) and ("--epsilon inf" in line) == ("inf" in options)


def test_an_evaluator_that_judges_nothing_is_in_no_command_and_no_setting(tmp_path: Path) -> None:
    for options in ("", "--attack lira"):
        found = made_by(f"{SMOKE} {options} --evaluator.epochs 3 --evaluator evaluator-vgg", tmp_path)
        assert "evaluator" not in command(found) and found.setting == ""
    judged = made_by(f"{SMOKE} --attack gmi --evaluator.recipe objects --evaluator.epochs 3", tmp_path)
    assert judged.setting == "evaluator.epochs=3 evaluator.recipe=objects"
    other = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-vgg", tmp_path)
    assert other.setting == "evaluator.network=evaluator-vgg" and other.spec["evaluator"]["arch"] == "evaluator-vgg"
    default = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-cnn", tmp_path)
    assert default.hash == made_by(f"{SMOKE} --attack gmi", tmp_path).hash != other.hash and default.setting == ""


def test_the_command_says_what_no_record_knows(tmp_path: Path) -> None:
    write_toy(tmp_path, 80)
    weights = tmp_path / "teacher.safetensors"
    weights.write_bytes(b"any bytes have a hash")
    own = f"--dataset npz:{tmp_path}/toy.npz --teacher-weights {weights} --teacher-normalise=0.1,0.3"
    wanted = made_by(f"{SMOKE} {own}", tmp_path)
    line = command(wanted)
    assert "npz:PATH/toy.npz" in line and "--teacher-weights FILE" in line
    filled = line.removeprefix("bench ").replace("PATH", str(tmp_path)).replace("FILE", str(weights))
    assert made_by(filled, tmp_path).hash == wanted.hash
    told = " ".join(notes(wanted))
    assert wanted.spec["release"]["teacher"]["weights"] in told
    assert wanted.spec["release"]["teacher"]["data"]["fingerprint"] in told


def test_a_plugin_that_is_not_installed_has_all_its_options_written() -> None:
    found = record("from-elsewhere")
    found.spec["release"]["options"] = {"a": 1.0, "b": True, "c": "-x", "d": "two words"}
    assert shlex.split(command(found))[-7:] == [
        *("--method.a", "1.0", "--method.b", "true", "--method.c=-x", "--method.d", "two words")
    ]
    assert "not installed" in " ".join(notes(found))


def test_another_version_of_a_plugin_is_said() -> None:
    found = record("dpsd")
    found.spec["release"]["version"] = 0
    assert "Version 0 of dpsd made it" in " ".join(notes(found))


def test_every_flag_has_a_sentence() -> None:
    texts = [leaderboard.flags.__doc__ or "", flags_of_row.__doc__ or ""]
    documented = set(re.findall(r"`([^`]+)`:", " ".join(texts))) | {"refuted"}
    assert "mixed-versions" in documented
    assert len(documented) >= 6
    for flag in documented:
        assert glossary.flag(flag).endswith(".")
    assert "noise too small" in glossary.flag("disputed:noise-too-small")
    assert "issue dgd-1," in glossary.flag("reported:dgd-1") and glossary.flag("reported-differs")
    assert glossary.flag("reported:eps-not-stated") == glossary.ISSUES["eps-not-stated"]
    with pytest.raises(KeyError):
        glossary.flag("unheard-of")


def test_every_issue_and_every_dispute_has_words_of_its_own() -> None:
    issues = {issue for entry in leaderboard.reported.load() for issue in entry.issues}
    page = (registry.ROOT / "docs" / "reported.md").read_text(encoding="utf-8").partition("## Issues")[2]
    named = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("\n## ")[0], re.MULTILINE))
    assert issues <= named == set(glossary.ISSUES) and all(text.endswith(".") for text in glossary.ISSUES.values())
    sources = "".join(path.read_text(encoding="utf-8") for path in (registry.ROOT / "baselines").rglob("*.py"))
    known = {*DEFECTS.values(), NO_EPSILON, *re.findall(r'DISPUTED = "([a-z-]+)"', sources)}
    assert len(known) > 6 and known <= set(glossary.DISPUTES)


def test_an_attack_that_asks_nothing_is_the_floor_and_no_attack() -> None:
    runs = [record("a", accounted=3.0, attack=name) for name in ("gmi", "random-guess")]
    runs[1].metrics["queries"] = 0
    (digits,) = parts(Sources(sorted(runs, key=lambda r: r.hash)))[0]["index"]["datasets"]
    assert digits["attacks"] == ["gmi"] and [one["attacks"] for one in digits["best"]] == [1]


def test_tiers_are_named_from_the_largest_to_the_smallest() -> None:
    index = value_of(script("index", parts(Sources([record()]))[0]["index"]))
    assert index["order"]["tiers"] == ["paper", "standard", "quick", "smoke"]
    assert index["order"]["units"][0] == "example"


def test_figures_of_pictures_of_which_there_are_none_are_named() -> None:
    one = record("dpsd")
    assert ["dpsd", "Fig. 7"] in parts(Sources([one]))[0]["index"]["undrawn"]
    pictured = parts(Sources([one], pictures={one.hash: {"synthetic": png()}}))[0]["index"]["undrawn"]
    assert ["dpsd", "Fig. 7"] not in pictured and ["dp-dfd", "Fig. 4"] in pictured


def test_every_column_of_the_boards_has_a_name_and_sorts_within_columns_that_there_are() -> None:
    assert set(leaderboard.COLUMNS) <= {column.key for column in ALL} and all(column.label for column in ALL)
    assert {key for column in ALL for key in column.within} <= set(leaderboard.COLUMNS)
    shown = boards.columns(boards.rows(leaderboard.table([record(attack="gmi")]).to_dict("records")))
    assert shown[:2] == ["method", "variant"] and "attack_variant" in shown and "claim_unit" not in shown


def test_an_infinite_epsilon_is_not_an_empty_cell() -> None:
    records = [record(accounted=None), record("failing", status="failed"), record("none", claim="none")]
    found = boards.rows(leaderboard.table(records).to_dict("records"))
    rows = {row["method"]: row for row in found}
    assert rows["dpsd"]["epsilon_accounted"] == "inf" and rows["dpsd"]["epsilon_claimed"] == 10.0
    assert "epsilon_accounted" not in rows["failing"] and "epsilon_claimed" not in rows["none"]
    assert rows["failing"]["runs"] and rows["failing"]["seeds"] == ["0"]


def test_the_front_page_recommends_by_what_is_proved_and_shows_the_strongest_attack() -> None:
    records = [record("a", seed, 0.7, accounted=3.0, attack="gmi", success=0.4) for seed in (0, 1)]
    records += [record("a", 0, 0.7, accounted=3.0, attack="ami", success=0.6)]
    records += [record("a", 0, 0.7, accounted=3.0, attack="vmi", success=0.99, status="inconclusive")]
    records += [
        record("a", 0, 0.7, accounted=3.0, attack=name, auc=auc) for name, auc in (("lira", 0.6), ("rmia", 0.5))
    ]
    records += [record("d", 0, 0.6, accounted=9.0, attack="rmia", auc=0.9, status="inconclusive")]
    records += [record("b", 0, 0.9, accounted=10.5, claim=0.1), record("c", 0, 0.95, accounted=None, claim=0.1)]
    records += [record(name, 0, accuracy, accounted=9.0) for name, accuracy in (("d", 0.6), ("e", 0.8), ("f", 0.1))]
    (digits,) = parts(Sources(sorted(records, key=lambda r: r.hash)))[0]["index"]["datasets"]
    assert [(one["method"], one["unit"], one["accuracy"]) for one in digits["best"]] == [
        ("e", "example", 0.8),
        ("a", "example", 0.7),
        ("d", "example", 0.6),
    ]
    assert [(one["attack"], one["success"], one["seeds"]) for one in digits["best"]][:2] == [
        (None, None, 1),
        ("ami", 0.6, 2),
    ]
    assert [(one["membership"], one["attacks"]) for one in digits["best"]] == [
        (None, 0),
        (["lira", 0.6, 0.7], 5),
        (None, 1),
    ]


def test_labels_of_fronts_are_apart_and_inside_the_figure() -> None:
    assert charts._stacked([200.0, 100.0, 60.0]) == [200.0, 100.0, 60.0]
    crowded = charts._stacked([charts.TOP + 5.0, charts.TOP + 4.0, charts.TOP + 1.0])
    assert crowded == [charts.TOP + 2 * charts.LINE, charts.TOP + charts.LINE, charts.TOP]


def test_flags_of_rows_are_explained_as_those_of_runs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = leaderboard.table
    monkeypatch.setattr(leaderboard, "table", lambda *given: made(*given).assign(flags="reported-differs reported:x-1"))
    found = parts(Sources([record()]))[0]["index"]
    assert {"reported-differs", "reported:x-1", "other-unit"} <= set(found["flags"])


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


def test_numbers_of_papers_keep_to_their_own_words_and_methods() -> None:
    row = {"paper": "dpsd", "dataset": "mnist", "method": "dpsgd", "kind": "training", "unit_claimed": "data"}
    row |= {"epsilon": "2", "metric": "accuracy", "value": "0.95", "note": ""}
    rows = [row, row, row | {"method": "other"}, row | {"kind": "ablation"}, row | {"epsilon": ""}]
    rows += [
        row | {"unit_claimed": "label"},
        row | {"kind": "ablation", "note": "lowest point of Fig. 9", "value": "0.3"},
    ]
    found = {panel.unit: [(p.method, p.x, p.y) for p in panel.points] for panel in points.reported(rows, ["dp-sgd"])}
    assert found == {"data": [("dp-sgd", 2.0, 0.3), ("dp-sgd", 2.0, 0.95)], "label": [("dp-sgd", 2.0, 0.95)]}


def test_dp_dfd_and_dpdfd_are_two_methods() -> None:
    row = {"paper": "dp-dfd", "dataset": "mnist", "kind": "generator", "unit_claimed": "label", "note": ""}
    row |= {"epsilon": "1", "metric": "accuracy"}
    rows = [row | {"method": "dp-dfd", "value": "0.97"}, row | {"method": "dpdfd", "value": "0.9"}]

    def drawn(*methods: str) -> list[tuple[str, float]]:
        return [(p.method, p.y) for panel in points.reported(rows, methods) for p in panel.points]

    assert drawn("dp-dfd", "dpdfd") == [("dp-dfd", 0.97), ("dpdfd", 0.9)]
    assert drawn("dpdfd") == [("dpdfd", 0.9)] and drawn("dp-dfd") == [("dp-dfd", 0.97)]


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
    drawn = charts.attack_panel(points.Panel("AUC", "", [worse, coin, strong], "lira"), charts.styles(["m"]))
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
    made = figures.section([old, new], [], charts.styles(["dpsd", "dgd"]))
    assert made.count(">largest class</text>") == 3 and "the largest class is 58.0 %" in made
    good = [record(method, accuracy=0.9) for method in ("dpsd", "dgd")]
    for each in good:
        each.metrics["times_chance"] = 9.0
    made = figures.section(good, [], charts.styles(["dpsd", "dgd"]))
    assert ">largest class</text>" not in made and "the largest class is 10.0 %" in made


def test_a_panel_of_one_point_is_a_line_of_text() -> None:
    made = figures.section([record(accuracy=0.7, attack="gmi")], [], charts.styles(["dpsd"]))
    assert "<figure" not in made and made.count("<li>") == 4
    assert "70.0 % at attack accuracy of gmi 0.8, 1 seed, on the teacher 0.9, on a random net 0.1" in made


def test_bars_are_inside_of_the_frame() -> None:
    wide = [point(1.0, 0.51), point(10.0, 0.9)]
    wide[0] = replace(wide[0], spread=0.2, run="a")
    made = charts.epsilon_panel(points.Panel("claimed", "query", wide), charts.styles(["m"]))
    ((_, low, high),) = re.findall(r'<path d="M([\d.]+) ([\d.]+)V([\d.]+)" class="spread"', made)
    scale = share([0.31, 0.71, 0.9], charts.BOTTOM, charts.TOP)
    assert float(low) == pytest.approx(scale.at(0.31), abs=0.1) and float(high) == pytest.approx(
        scale.at(0.71), abs=0.1
    )


def test_marks_at_one_place_stand_side_by_side_and_the_last_one_stays() -> None:
    x = logarithmic([1.0, 10.0], charts.LEFT, charts.RIGHT)
    y = share([0.5, 0.9], charts.BOTTOM, charts.TOP)
    under, over, away = charts.placed([point(1.0, 0.5), point(1.0, 0.5), point(1.0, 0.9)], x, y)
    assert over == (x.at(1.0), y.at(0.5)) and away == (x.at(1.0), y.at(0.9))
    assert abs(under[0] - over[0]) >= 7 and under[1] == over[1]
    shares = share([0.0, 1.0], charts.LEFT, charts.RIGHT)
    assert len(set(charts.placed([point(0.5, 0.5), point(0.5, 0.5)], shares, y))) == 1, "there the place is the message"


def test_no_line_runs_through_a_name() -> None:
    made = [
        replace(point(x, y), method=name, series=name) for name, y in (("a", 0.6), ("b", 0.62)) for x in (1.0, 10.0)
    ]
    panel = points.Panel("claimed", "query", made)
    drawn = charts.epsilon_panel(panel, charts.styles(["a", "b"]), lines=True)
    x = logarithmic([1.0, 10.0], charts.LEFT, charts.RIGHT)
    boxes = charts.along(made, x, charts._height(panel))
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="name">', drawn)
    assert names and len(boxes) > 100
    for across, height, anchor in names:
        left = float(across) - (charts.LETTER if anchor == "end" else 0)
        box = (left, float(height) - 10, left + charts.LETTER, float(height))
        assert not any(charts.overlap(box, other) for other in boxes)


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


def test_a_folder_of_other_files_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "site"
    save(mine, {"index.html": b"<title>dp-distill-bench report</title>", "web/a.js": b"1"})
    save(mine, {"index.html": b"<title>dp-distill-bench report</title> again"})
    assert (mine / "index.html").read_bytes().endswith(b"again")
    for name, content in (("index.html", b"my own page"), ("MANIFEST.json", b"{}")):
        theirs = tmp_path / name
        theirs.mkdir()
        (theirs / name).write_bytes(content)
        with pytest.raises(BenchError, match="has files in it, and no earlier report; give a new or an empty"):
            save(theirs, {"index.html": b"new"})
        assert [path.name for path in theirs.iterdir()] == [name] and (theirs / name).read_bytes() == content
    accuracy = share([0.448, 0.99], 288, 14)
    assert (accuracy.low, accuracy.high) == (0.4, 1.0) and accuracy.at(0.4) == 288
    assert share([1.0], 0, 1).low == pytest.approx(0.8) and share([0.0], 0, 1).high == pytest.approx(0.2)


def test_the_page_of_a_run_has_all_numbers_somewhere() -> None:
    found = record(attack="gmi", accounted=7639.0)
    found.metrics |= {
        "reference_held_out_attack_accuracy": 0.95,
        "brand_new_metric": 1.5,
        "teacher_brand_new_metric": 2,
    }
    page = runs.page(found, [])
    assert [line[0] for line in page["utility"]] == [
        *("teacher", "student, released", "evaluator, which judges reconstructions")
    ]
    assert page["measures"]["targets"] == ["student", "teacher", "random net", "unseen images"]
    rows = {label: cells for label, _, _, cells in page["measures"]["rows"]}
    tips = {label: tip for label, _, tip, _ in page["measures"]["rows"]}
    assert tips["attack accuracy"].endswith("aimed at.") and tips["brand_new_metric"] == ""
    assert ["queries", 1000] in page["alone"] and (page["variant"], page["attack_variant"]) == ("printed", "printed")
    assert [cell and cell[0] for cell in rows["attack accuracy"]] == [0.8, 0.9, 0.1, 0.95]
    assert [cell and cell[0] for cell in rows["brand_new_metric"]] == [1.5, 2, None, None]
    assert [(line["what"], line["epsilon"], line["unit"]) for line in page["epsilons"]] == [
        *(("claimed", 10.0, "query"), ("accounted", 7639.0, "example"), ("accounted", 35.7, "query"))
    ]
    assert page["ledger"] == [["query", "votes", "Gaussian(noise_multiplier 2)", 7]]
    assert page["flags"] == ["claim!=accounted", "other-unit"]
    assert page["information"]["nats"] is None and page["information"]["why"], "the made-up ledger is of queries alone"
    found.privacy["information"] = {"nats": 2.56, "why": "gradients", "classes": 10}
    assert runs.page(found, [])["information"] == {
        "nats": 2.56,
        "why": "gradients",
        "most": pytest.approx(0.5965, abs=1e-4),
    }
    assert page["spec"]["attack"]["target"] == "release"
    assert runs.page(record(status="failed"), [])["epsilons"] == []


def test_nested_events_are_written_out() -> None:
    inner = {"name": "SelfComposedDpEvent", "event": {"name": "GaussianDpEvent", "noise_multiplier": 1.5}, "count": 3}
    assert runs.event(inner) == "SelfComposed(Gaussian(noise_multiplier 1.5), count 3)"
    many = {"name": "ComposedDpEvent", "events": [inner["event"], {"name": "NonPrivateDpEvent"}]}
    assert runs.event(many) == "Composed([Gaussian(noise_multiplier 1.5), NonPrivate])"


def write(folder: Path, found: Record, **files: bytes) -> None:
    """A run's directory."""
    place = folder / "records" / found.hash
    place.mkdir(parents=True)
    for name, data in files.items():
        found.artifacts[name] = f"{name}.png"
        (place / f"{name}.png").write_bytes(data)
    (place / "record.json").write_text(found.to_json())


def test_published_records_stand_and_pictures_come_with_equal_numbers_only(tmp_path: Path) -> None:
    board, mine = tmp_path / "boards", tmp_path / "runs"
    (board / "records").mkdir(parents=True)
    for accuracy, seed in ((0.5, 0), (0.6, 1)):
        (board / "records" / f"{seed}.json").write_text(record(seed=seed, accuracy=accuracy).to_json())
    same, other, third = record(seed=0, accuracy=0.5), record(seed=1, accuracy=0.7), record(seed=2)
    same.metrics["newer_metric"] = 1.0
    write(mine, same, synthetic=png())
    write(mine, other, synthetic=png())
    third.artifacts["outside"] = "../../secret.png"
    (tmp_path / "secret.png").write_bytes(png())
    write(mine, third, reconstructions=b"<svg onload=alert(1)>")
    found = gather(board, [mine])
    assert sorted(r.metrics["accuracy"] for r in found.records) == [0.5, 0.5, 0.6]
    assert {name: list(kept) for name, kept in found.pictures.items()} == {same.hash: ["synthetic"]}
    assert len(found.remarks) == 3 and any("../../secret.png" in line for line in found.remarks)


def test_a_run_that_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    write(tmp_path, record(seed=0))
    write(tmp_path, record(seed=1))
    cut = tmp_path / "records" / record(seed=1).hash / "record.json"
    cut.write_text(cut.read_text()[:200])
    (tmp_path / "audits" / "0123").mkdir(parents=True)
    (tmp_path / "audits" / "0123" / "audit.json").write_text("{}")
    found = gather(None, [tmp_path])
    assert [r.hash for r in found.records] == [record(seed=0).hash] and not found.audits
    assert [str(cut) in found.remarks[0], "0123" in found.remarks[1]] == [True, True]
    assert all(line.endswith("left out, run it again or remove it") for line in found.remarks)
    (tmp_path / "records" / record(seed=0).hash / "record.json").write_text("")
    with pytest.raises(BenchError, match=r"no records in .* is not a record.*left out"):
        gather(None, [tmp_path])


def test_bad_sources_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    with pytest.raises(BenchError, match="no records in"):
        gather(tmp_path, [])
    with pytest.raises(BenchError, match="no such directory"):
        gather(tmp_path / "nowhere", [])
    with pytest.raises(BenchError, match=r"--runs .* no records/HASH"):
        gather(None, [tmp_path])
    (tmp_path / "records" / "a.json").write_text("{}")
    with pytest.raises(BenchError, match="is not a record"):
        gather(tmp_path, [])
    (tmp_path / "records" / "a.json").write_text(record().to_json())
    with pytest.raises(BenchError, match="no data set with records called 'mnist'"):
        gather(tmp_path, [], "mnist")


def test_the_command_writes_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", record(dataset="mnist"))
    write(tmp_path / "runs", record(), synthetic=png())
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    line = ["--boards", str(tmp_path / "runs"), "--runs", str(tmp_path / "runs"), "--dataset", "digits", "--out"]
    sites = []
    for name in ("a", "b"):
        assert report_command.execute(parser.parse_args([*line, str(tmp_path / name)])) == 0
        sites.append({p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")})
    assert sites[0] == sites[1]
    names = {path.as_posix() for path in sites[0]}
    assert {"index.html", "web/routes.js", "data/index.js", "data/board-digits.js"} <= names
    assert not [name for name in names if "mnist" in name], "the other data set is not there"
    assert [name for name in names if name.startswith("pictures/")]
    assert "1 runs" in capsys.readouterr().out


def test_the_order_of_records_changes_nothing() -> None:
    records = [record(method, seed) for method in ("dpsd", "dgd") for seed in (0, 1, 2)]
    assert render(Sources(sorted(records, key=lambda r: r.hash))) == render(
        Sources(sorted(reversed(records), key=lambda r: r.hash))
    )


class Elements(HTMLParser):
    """Collects start tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def value_of(content: bytes) -> Any:
    """What a part's script sets, as a browser reads it."""
    found = re.fullmatch(r"REPORT\[(\".*?\")\] = JSON\.parse\('(.*)'\);\n", content.decode(), re.DOTALL)
    assert found is not None
    return json.loads(re.sub(r"\\(.)", r"\1", found[2], flags=re.DOTALL))


def test_text_from_records_cannot_become_markup() -> None:
    bad = [
        record(NASTY, attack=NASTY, options={"method": {NASTY: NASTY}}, dataset=NASTY),
        record(options={"attack": {'"><script>': "alert(1)</script>"}}),
    ]
    reported = [dict.fromkeys(leaderboard_columns, "")]
    reported[0] |= {"paper": NASTY, "method": NASTY, "dataset": "digits", "unit_claimed": NASTY, "kind": NASTY}
    reported[0] |= {"epsilon": "1", "metric": "accuracy", "value": "0.5", "note": NASTY}
    found, _ = parts(Sources(bad, reported=reported))
    drawn = [value for part in found.values() if isinstance(part, dict) for value in marked(part)]
    assert "&lt;/script&gt;" in "".join(drawn), "it is shown, as text"
    for markup in drawn:
        names = [name for name, _ in Elements(markup).found]
        assert "script" not in names and "img" not in names
        assert not active(markup)
    assert found[f"runs-{bad[0].hash[:2]}"][bad[0].hash]["setting"] == f"{NASTY}={NASTY}"


leaderboard_columns = (
    *("paper", "table", "dataset", "method", "kind", "unit_claimed", "epsilon", "delta", "metric", "value"),
    *("setting", "note", "issue"),
)


def active(markup: str) -> list[str]:
    """Attributes that a page's policy would have to refuse."""
    return [key for _, pairs in Elements(markup).found for key in pairs if key.startswith("on") or key == "style"]


def marked(part: dict[str, Any]) -> list[str]:
    """The markup in a part: what the page does not write as text."""
    return [part[key] for key in ("markup", "chart") if part.get(key)]


def test_the_page_loads_what_is_beside_it_and_nothing_else() -> None:
    files = render(Sources([record()]))
    page = files["index.html"].decode()
    assert "default-src 'none'" in page
    named = [
        pairs.get("src") or pairs.get("href") for name, pairs in Elements(page).found if name in ("script", "link")
    ]
    assert named and all(name == "data:," or name in files for name in named)
    for name, content in files.items():
        if name.startswith("web/") or name == "index.html":
            assert not re.search(rb"https?://|//cdn|@import|url\(|fetch\(|eval\(", content), name
    assert not active(page)


@pytest.mark.parametrize("text", [NASTY, "it's \\ 'quoted' \\'", "\u2028\n\x00", "');alert(1)//", "</script>"])
def test_the_script_of_a_part_holds_any_text(text: str) -> None:
    content = script("a", {"__proto__": text, text: [1, None]})
    assert value_of(content) == {"__proto__": text, text: [1, None]}
    assert content.count(b"\n") == 1, "one line: no text ends the string that it stands in"


def test_a_part_holds_no_number_that_json_lacks() -> None:
    with pytest.raises(ValueError):
        script("a", math.nan)


def test_names_of_files_are_safe_and_differ() -> None:
    names = ["digits", "npz-a:b/c d", "npz-a b c d", "../../etc", "", "Digits", NASTY]
    slugs = [slug(name) for name in names]
    assert slugs[0] == "digits" and len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in slugs)


def test_an_earlier_report_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    page = b"<title>dp-distill-bench report</title>"
    save(tmp_path, {"index.html": page, "data/old.js": script("old", 1), f"pictures/{'a' * 16}.png": png()})
    (tmp_path / "data" / "mine.js").write_text("my own")
    (tmp_path / "pictures" / "holiday.png").write_bytes(png())
    save(tmp_path, {"index.html": b"new", "data/new.js": script("new", 1)})
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert left == {"index.html", "data/new.js", "data/mine.js", "pictures/holiday.png"}
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="is a file"):
        save(tmp_path / "file", {"index.html": b""})
    with pytest.raises(BenchError, match="cannot write there"):
        save(tmp_path / "file" / "site", {"index.html": b""})


def test_pictures_are_kept_once() -> None:
    records = sorted((record(seed=seed) for seed in (0, 1)), key=lambda r: r.hash)
    found, images = parts(Sources(records, pictures={r.hash: {"synthetic": png()} for r in records}))
    assert list(images.values()) == [png()]
    assert [(one["kind"], one["key"]) for one in found["images-digits"]] == [("synthetic", next(iter(images)))] * 2


def test_a_run_is_in_one_part_with_the_seeds_of_its_row() -> None:
    records = sorted((record(seed=seed) for seed in range(5)), key=lambda r: r.hash)
    found, _ = parts(Sources(records))
    shards = {name: part for name, part in found.items() if name.startswith("runs-")}
    assert found["index"]["shards"] == sorted(shards)
    assert sorted(name for part in shards.values() for name in part) == [r.hash for r in records]
    for name, part in shards.items():
        assert all(run.startswith(name.removeprefix("runs-")) for run in part)
        for run in part.values():
            assert [seed for seed, _ in run["seeds"]] == ["0", "1", "2", "3", "4"]


def test_the_front_page_does_not_grow_with_the_runs() -> None:
    one, many = ([record("dpsd", seed, options={"method": {"k": seed}}) for seed in range(n)] for n in (1, 60))
    sizes = [len(script("index", parts(Sources(sorted(of, key=lambda r: r.hash)))[0]["index"])) for of in (one, many)]
    assert sizes[1] < sizes[0] + 60 * 20, "the names of the parts, and no more of any run"


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
    marks = [f"c{number}" for number in range(charts.COLOURS)]
    assert all(contrast(name, "back") >= 3 for name in marks), {name: contrast(name, "back") for name in marks}


def test_the_installed_boards_are_shown_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "installed"
    (installed / "records").mkdir(parents=True)
    found = record()
    (installed / "records" / f"{found.hash}.json").write_text(json.dumps(asdict(found)))
    monkeypatch.setattr(leaderboard.reported.board_files, "FILE", installed / "reported.csv")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["report"]) == 0
    assert "1 runs" in capsys.readouterr().out and Path("site/index.html").exists()


def test_what_was_not_measured_is_told_by_its_label_once_for_all_whom_it_concerns() -> None:
    few = "359 non-members are too few"
    missing = {"tpr_at_01pct": few, "teacher_tpr_at_01pct": few, "judge_accuracy": "no judge", "of_a_plugin": "no"}
    assert runs._missing(missing) == [
        ["judge accuracy of student", "no judge"],
        ["of_a_plugin", "no"],
        ["TPR at FPR 0.1 % of teacher, student", few],
    ]


def test_no_two_methods_look_alike_in_a_chart() -> None:
    methods = list(registry.entries("method"))
    look = charts.styles(methods)
    assert len(set(look.values())) == len(methods) and {shape for _, shape in look.values()} <= set(picture.MARKERS)
    assert sweep_charts.PRINTED_COLOUR not in {colour for colour, _ in look.values()}, "grey is for print"
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in pairwise(look.values())), "neither alone tells"
