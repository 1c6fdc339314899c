"""Lists and boards from Python say what the command prints and what the files hold."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT

import bench
from bench import data, plugins
from bench.errors import BadOption, NotFound, UnknownName

BOARDS = ROOT / "leaderboards"


def test_lists_have_every_plugin_with_options() -> None:
    assert [each.name for each in bench.methods()] == list(plugins.entries("method"))
    assert [each.name for each in bench.attacks()] == list(plugins.entries("attack"))
    assert [each.name for each in bench.datasets()] == list(data.names())
    dpsd = next(each for each in bench.methods("method") if each.name == "dpsd")
    assert dpsd.variants == ("printed", "working") and "sigma" in {option.name for option in dpsd.options}
    assert all(each.summary and each.reference for each in (*bench.methods(), *bench.attacks()))
    assert {each.goal for each in bench.attacks("inversion")} == {"inversion"}
    assert "rr" not in {each.name for each in bench.methods("method")}
    mnist = next(each for each in bench.datasets() if each.name == "mnist")
    assert mnist.shape == (1, 28, 28) and mnist.counts == (60000, 10000) and len(mnist.class_names) == 10


def test_lists_import_no_torch() -> None:
    code = "import bench, sys; bench.methods(), bench.attacks(), bench.datasets(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_leaderboard_has_the_cells_of_its_file() -> None:
    table, rows = bench.leaderboard("digits", boards=BOARDS), read(BOARDS / "releases" / "digits.csv")
    assert len(table) == len(rows) and set(table["dataset"]) == {"digits"}
    assert list(table["method"]) == [row["method"] for row in rows]
    for found, row in zip(table["accuracy"], rows, strict=True):
        assert found == float(row["accuracy"]) if row["accuracy"] else math.isnan(found)
    assert (table["epsilon_accounted"] == math.inf).any()
    names = set(bench.leaderboard(boards=BOARDS)["dataset"])
    assert names == {path.stem for path in BOARDS.glob("releases/*.csv")}


def test_reported_numbers_are_those_of_the_file() -> None:
    table, rows = bench.reported(), read(BOARDS / "papers" / "reported.csv")
    assert list(table["value"]) == pytest.approx([float(row["value"]) for row in rows])
    assert set(table["paper"]) == {row["paper"] for row in rows} and table["epsilon"].notna().any()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (partial(bench.leaderboard, "mnits", boards=BOARDS), UnknownName),
        (partial(bench.leaderboard, boards=BOARDS / "nowhere"), NotFound),
        (partial(bench.choose, 1, dataset="mnits", boards=BOARDS), UnknownName),
        (partial(bench.choose, 1, unit="person", boards=BOARDS), UnknownName),
        (partial(bench.choose, math.inf, boards=BOARDS), BadOption),
    ],
    ids=range(5),
)
def test_boards_refuse_bad_input(call: Callable[[], object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        call()


def test_choose_reads_attacks_only_with_the_argument() -> None:
    chosen = bench.choose(10, dataset="digits", boards=BOARDS, with_attacks=False)
    (taken, *_) = chosen.choice.taken.values()
    complete = chosen.add_attacks(taken)
    assert [each.name for each in complete] == [each.name for each in taken]
    assert not any(each.attacks for each in taken) and any(each.attacks for each in complete)


def test_choose_keeps_the_limits() -> None:
    table = bench.choose(3, dataset="mnist", min_accuracy=0.9, boards=BOARDS).to_frame()
    assert len(table) and (table["epsilon"] <= 3 * (1 + 1e-6)).all() and (table["accuracy"] >= 0.9).all()
    assert list(table["accuracy"]) == sorted(table["accuracy"], reverse=True) or table["tier"].nunique() > 1
    nothing = bench.choose(0.001, dataset="mnist", min_accuracy=0.99, boards=BOARDS)
    assert nothing.to_frame().empty and "private-features" in repr(nothing), "the nearest release is shown"
