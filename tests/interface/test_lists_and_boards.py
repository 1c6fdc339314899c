"""Lists, boards and accounts from Python say what the command prints, what files hold, and what closed forms give."""

import csv
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Type
from scipy.optimize import brentq
from scipy.stats import norm

import bench
from bench import data, plugins
from bench.errors import BadOption, BenchError, BudgetError, NotFound, UnknownName

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
        (partial(bench.leaderboard, boards=BOARDS / "papers"), NotFound),
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


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The exact epsilon of one Gaussian of sensitivity 1 (Balle and Wang, ICML 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) - delta

    return brentq(excess, 0, 100)


@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 1), (4.0, 1), (20.0, 25), (100.0, 400)])
def test_account_of_gaussians_is_the_closed_form(sigma: float, steps: int) -> None:
    found = bench.account(sigma=sigma, steps=steps, delta=1e-5)
    assert found.epsilon == pytest.approx(gaussian_epsilon(sigma / math.sqrt(steps), 1e-5), rel=1e-4)
    assert (found.sigma, found.steps, found.unit, found.relation) == (sigma, steps, "example", "add-or-remove")


def test_account_of_dp_sgd_is_near_the_published_value() -> None:
    """The tutorial of TensorFlow Privacy: MNIST, 60 passes of batches of 256, noise 1.1: epsilon 2.92 by moments."""
    found = bench.account(sigma=1.1, rate=256 / 60000, steps=14062, delta=1e-5)
    assert 2.3 < found.epsilon < 2.92 and found.accountant == "pld"


@pytest.mark.parametrize("given", [{"rate": 1.0}, {"rate": 0.01, "steps": 500}, {"unit": "label"}], ids=str)
def test_noise_for_an_epsilon_is_minimal(given: dict[str, Any]) -> None:
    found = bench.account(epsilon=1.5, **given)
    assert found.epsilon <= 1.5 < bench.account(sigma=found.sigma / 1.002, **given).epsilon


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((BadOption, given) for given in (
            {}, {"sigma": 1, "epsilon": 1}, {"sigma": 0}, {"sigma": math.nan}, {"sigma": "1"}, {"epsilon": math.inf},
            {"epsilon": -1}, {"sigma": 1, "rate": 0}, {"sigma": 1, "rate": 1.5}, {"sigma": 1, "steps": 0},
            {"sigma": 1, "steps": 1.5},
        )),
        *((BenchError, {"sigma": 1} | given) for given in ({"delta": 0}, {"delta": 2}, {"unit": "person"})),
    ],
    ids=str,
)  # fmt: skip
def test_account_refuses_bad_input(kind: type[BenchError], given: dict[str, Any]) -> None:
    with pytest.raises(kind):
        bench.account(**given)


def test_compose_refuses_bad_input(tmp_path: Path) -> None:
    for folders, delta, kind in (([tmp_path], 1, BudgetError), ([tmp_path], None, BenchError), ([], None, NotFound)):
        with pytest.raises(kind):
            bench.compose(folders, delta=delta)


@pytest.mark.thorough
def test_compose_agrees_with_the_command(tmp_path: Path, typed: Type) -> None:
    for epsilon in (1, 2):
        bench.run("rr", epsilon=epsilon, noise="os", tier="smoke", teacher="datalens", out=tmp_path)
    (composed,) = [each for each in bench.compose([tmp_path]) if each.unit == "label"]
    assert composed.proved is not None and len(composed.of) == 2 and composed.proved.epsilon == pytest.approx(3)
    assert "2 releases, epsilon 3 at delta" in typed("account --releases", tmp_path).out
