"""The most exposed members: tables and a page for the owner of the data, and none of them in the report."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from assess_made import images, trained, write_logits
from PIL import Image

import bench
from bench.assess.assembly import Material, Options
from bench.assess.exposed import most_exposed, most_exposed_by_class, page, rank
from bench.assess.numbers import Scored
from bench.assess.policy import read_policy
from bench.cli import main
from bench.teachers import save

OPTIONS = Options(read_policy("research"))
LOCAL = ("exposed.csv", "exposed.html", "exposed_by_class.csv")


def material(**fields: object) -> Material:
    """Sixty members whose score is their number, in two classes."""
    scored = Scored("loss", "", "", np.arange(60.0), np.zeros(50), "")
    return Material("model", [scored], labels=np.arange(60) % 2, **fields)  # type: ignore[arg-type]


def test_members_of_each_class_are_ranked() -> None:
    found = most_exposed_by_class(rank(material(), OPTIONS))
    assert [len(members) for members in found.values()] == [20, 20]
    assert [[each.name for each in members[:3]] for members in found.values()] == [
        ["58", "56", "54"],
        ["59", "57", "55"],
    ]
    assert most_exposed_by_class(rank(Material("scores", material().scored), OPTIONS)) == {}


def test_members_of_a_sample_have_their_own_numbers() -> None:
    rows = (np.array([7, 30, 90]), np.arange(3))
    scored = Scored("label-only", "", "", np.array([0.0, 9.0, 1.0]), np.array([0.0, 0.5, 1.0]), "", rows)
    found = most_exposed(rank(Material("model", [scored]), OPTIONS))
    assert [each.name for each in found] == ["30", "90", "7"] and [each.row for each in found] == [30, 90, 7]
    assert [each.above for each in found] == pytest.approx([0, 1 / 3, 1])


def test_attacks_that_find_a_record_are_counted() -> None:
    """The second attack ranks in reverse; the third scored rows 59 and 0 only, and finds row 59."""
    first = material().scored[0]
    below = replace(first, name="gap", members=-np.arange(60.0))
    rows = (np.array([59, 0]), np.arange(50))
    sample = replace(first, name="label-only", members=np.array([1.0, -1.0]), rows=rows)
    found = most_exposed(rank(Material("model", [first, below, sample]), OPTIONS))
    assert [(each.found_by, each.attacks) for each in found if each.row in (59, 58)] == [(2, 3), (1, 2)]


def test_equal_scores_are_ordered_by_the_other_attacks() -> None:
    """`gap` has the larger AUC and one score for all members."""
    loss = replace(material().scored[0], others=np.arange(60.0))
    gap = replace(loss, name="gap", members=np.ones(60), others=np.zeros(60))
    found = most_exposed(rank(Material("model", [gap, loss]), OPTIONS))
    assert found[0].attack == "gap" and [each.row for each in found[:3]] == [59, 58, 57]


def test_page_shows_each_record_with_its_own_picture() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(60, 1, 1, 1).repeat(4, 2).repeat(4, 3)
    shown = page(rank(material(images=pixels), OPTIONS), with_pictures=True)
    found = re.findall(r'alt="record (\d+)" src="data:image/png;base64,([^"]+)"', shown)
    assert len(found) == 20 + 2 * 20
    for name, text in found:
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        assert picture.shape == (4, 4) and (picture == int(name)).all()
    assert "<img" not in page(rank(material(images=pixels), OPTIONS), with_pictures=False)
    assert not re.search(r"<script|(src|href)=[\"']?https?:", shown)


def test_names_of_files_are_text() -> None:
    name = '<script>alert("x")</script>.png'
    shown = page(rank(material(names=np.array([name] * 60)), OPTIONS), with_pictures=True)
    assert "<script" not in shown and name in unescape(shown)


def test_groups_are_shown_with_their_records() -> None:
    groups = (
        np.array([f"patient {row // 6}" for row in range(60)]),
        np.array([f"other {row // 5}" for row in range(50)]),
    )
    found = most_exposed(rank(material(groups=groups), OPTIONS))
    assert [each.name for each in found[:2]] == ["patient 9", "patient 8"] and found[0].row is None
    shown = page(rank(material(groups=groups), OPTIONS), with_pictures=False)
    part = shown[shown.index("patient 9") : shown.index("patient 8")]
    assert re.findall(r"<b>(\d+)</b>", part) == ["59", "58", "57", "56", "55", "54"]


def test_many_classes_do_not_make_an_endless_page() -> None:
    many = replace(material().scored[0], members=np.arange(5000.0))
    shown = page(rank(Material("model", [many], labels=np.arange(5000)), OPTIONS), with_pictures=True)
    assert shown.count("<details>") == 200 and "4800 more classes" in shown


@pytest.mark.parametrize("switch", [[], ["--no-pictures"]])
def test_report_of_a_folder_shows_no_record(tmp_path: Path, switch: list[str]) -> None:
    members = images(150, 0).folder(tmp_path / "seen")
    others = images(150, 1).folder(tmp_path / "unseen")
    save(tmp_path / "a.safetensors", trained())
    words = ["assess", "--model", str(tmp_path / "a.safetensors"), "--network", "dense-cnn", "--attacks", "loss"]
    words += ["--members", str(members), "--nonmembers", str(others), "--size", "8", "--channels", "1"]
    assert main([*words, "--report", str(tmp_path / "r"), *switch]) in (0, 1, 3)
    local = {name: (tmp_path / "r" / name).read_text() for name in LOCAL}
    assert re.search(r"class\d/seen\d{4}\.png", local["exposed.csv"].splitlines()[1])
    assert ("<img" in local["exposed.html"]) == (not switch)
    for name in ("report.html", "assessment.json"):
        text = (tmp_path / "r" / name).read_text()
        assert ("exposed.html" in text) == (name == "report.html")
        assert "<img" not in text and not re.search(r"seen\d{4}", text), name


def test_scores_have_numbers_and_no_pictures(tmp_path: Path) -> None:
    members, others = (write_logits(tmp_path / f"{seed}.csv", 100, 3 - 3 * seed, seed) for seed in (0, 1))
    bench.assess(scores=(members, others), report=tmp_path / "r")
    shown = (tmp_path / "r" / "exposed.html").read_text()
    assert "<img" not in shown and "<li>" in shown


def test_matched_pairs_keep_the_numbers_of_the_whole_set(tmp_path: Path) -> None:
    """The sets differ by a feature; the members that have no pair come first, and must not shift the numbers."""
    rng = np.random.default_rng(0)
    year = np.concatenate([np.full(200, 9.0), rng.normal(0, 1, 300)])
    members = write_logits(tmp_path / "m.csv", 500, 2, 0, feature_year=year)
    others = write_logits(tmp_path / "o.csv", 300, 0, 1, feature_year=rng.normal(0, 1, 300))
    found = bench.assess(scores=(members, others), match=True, report=tmp_path / "r")
    assert found.members < 400
    lines = (tmp_path / "r" / "exposed.csv").read_text().splitlines()[1:]
    assert {int(line.split(",")[1]) for line in lines} <= set(range(200, 500))
