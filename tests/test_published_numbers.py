"""Numbers and figures of the README and of docs/ equal boards and records."""

import importlib
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT
from wide_boards import results_of

from bench.boards.results import Result
from bench.errors import BenchError
from docs.tables import __main__ as pages
from docs.tables import attacked, boards, cells, papers, results


@pytest.mark.thorough
def test_docs_tables_match_boards() -> None:
    assert [page.name for page in pages.PAGES if pages.rewritten(page) != page.read_text(encoding="utf-8")] == []
    found = [name for page in pages.PAGES for _, name, _ in pages.PLACE.findall(page.read_text(encoding="utf-8"))]
    assert {name.partition("_")[0] for name in found} == set(pages.TABLES), "every table is on a page"
    assert {template for template, _ in pages.TABLES.values()} == {
        path.stem for path in (ROOT / "docs" / "templates").glob("*.j2")
    }
    shown = {row["table"] for row in boards.read_rows(ROOT / "docs" / "tables" / "rows.csv")}
    assert shown == {name for name in found if name.startswith("found_")} | {"results", "shown", "headlines"}


def test_unknown_docs_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("<!-- table nosuch_digits -->\n\n<!-- end -->\n")
    monkeypatch.setattr(pages, "PAGES", (tmp_path / "page.md",))
    assert pages.main([]) == 2 and "nosuch_digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("teachers=40 epsilon=8 account=accounted",
         {"method": {"teachers": 40}, "budget": {"epsilon": 8.0, "account": "accounted"}}),
        ("epsilon=null solve=none", {"budget": {"epsilon": None, "solve": "none"}}),
        ("epsilon=inf mode=label", {"method": {"mode": "label"}, "budget": {"epsilon": "inf"}}),
        ("", {}),
    ],
)  # fmt: skip
def test_rows_csv_options_are_parsed(text: str, options: dict[str, Any]) -> None:
    assert boards.parsed(text) == options


def test_changed_number_is_reported_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = tmp_path / "results.md", (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page.write_text(text.replace("99.2 ± 0.6 %", "99.9 ± 0.6 %"), encoding="utf-8")
    monkeypatch.setattr(pages, "PAGES", (page,))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.main(["--check"]) == 1 and "results.md" in capsys.readouterr().err
    assert pages.main([]) == 0 and page.read_text(encoding="utf-8") == text
    assert pages.main(["--check"]) == 0


def test_finding_without_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "board", lambda name: [])
    monkeypatch.setattr(attacked, "board", lambda name: [])
    for make in (lambda: papers.found("answers"), attacked.shown, results.votes):
        with pytest.raises(BenchError, match=r"rows\.csv"):
            make()


def test_empty_table_is_filled(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table issues -->\n\n<!-- end -->\n\nkept\n\n<!-- table issues -->\n\nold\n\n<!-- end -->\n")
    filled = f"<!-- table issues -->\n\n{pages.table('issues')}\n\n<!-- end -->\n"
    assert pages.rewritten(page) == f"{filled}\nkept\n\n{filled}"


def test_results_table_has_every_method() -> None:
    for name in ("digits", "mnist"):
        lines = [line.split("|")[1].strip() for line in pages.table(f"results_{name}").splitlines()[2:]]
        shown = {re.split(r"[,\s]", line)[0] for line in lines}
        assert shown == {result.release.method for result in boards.board(name)}


def one(**row: Any) -> Result:
    """The result of a board's row."""
    (found,) = results_of(row)
    return found


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [(0.637, "-5.0"), (0.6369, "-5.0, unknown"), (0.812, "+12.5")],
    ids=["five", "more", "ahead"],
)
def test_verdict_names_a_reason_for_more_than_five_points(accuracy: float, verdict: str) -> None:
    """Table I of DP-DFD prints 0.687."""
    row = {"method": "dp-merf", "variant": "working", "tier": "quick", "split": "iid", "claim_unit": "example"}
    assert results.verdict(one(**row, epsilon_claimed=9.9999, accuracy_mean=accuracy)) == verdict
    assert results.verdict(one(**row, epsilon_claimed=5.0, accuracy_mean=accuracy)) == ""


def test_cells_format_numbers_of_a_result() -> None:
    row = {"accuracy_mean": 0.7346, "accuracy_std": 0.0212, "epsilon_claimed": 10.0, "claim_unit": "query"}
    row |= {"epsilon_accounted": 7639.4, "unit": "example", "flags": "seeded-noise"}
    bare = {"accuracy_std": "", "claim_unit": "", "epsilon_accounted": math.inf, "flags": "float32-noise"}
    for changes, texts in (
        ({}, ("73.5 ± 2.1 %", "10 per response", "7,639")),
        ({"flags": "float32-noise seeded-noise"}, ("73.5 ± 2.1 %", "10 per response", "7,639, float32 noise")),
        (bare, ("73.5 %", "none", "infinite")),
    ):
        found = one(**row | changes)
        assert (cells.accuracy(found), cells.claimed(found), cells.accounted(found)) == texts
    options = {"method": {"k": 2, "secure": True}, "budget": {"solve": "none", "account": "accounted", "epsilon": 1.0}}
    assert cells.typed(options) == "`--method.k 2 --method.secure true --epsilon 1 --account accounted`"


USUAL = {"method": "dpsd", "variant": "working", "tier": "quick", "teacher": "resnet18", "student": "datalens"}
USUAL |= {"split": "iid", "delta": 1e-5, "accuracy_mean": 0.7}


def test_release_joins_seeds_of_attacked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"seeds": "1 2", "runs": "b c", "accuracy_mean": 0.75, "accuracy_std": 0.0707107}
    other = {"seeds": "0 1", "runs": "a d", "accuracy_mean": 0.35, "accuracy_std": 0.353553}
    bare, attacked = one(**USUAL | own), one(**USUAL | other, attack="gmi")
    drawn_apart = one(**USUAL, seeds="3", runs="e", flags="float32-noise")
    monkeypatch.setattr(boards, "board", lambda name: [bare, drawn_apart])
    assert boards.release("digits", "dpsd", {}) is bare
    monkeypatch.setattr(boards, "board", lambda name: [bare, attacked, drawn_apart])
    # Seed 0 has an accuracy of 0.6 and seed 1 one of 0.1 or 0.8; bare has 0.8 and 0.7
    for attack, runs, accuracy in (("", "a b c", (0.7, 0.1)), ("gmi", "a d c", (0.466667, 0.321455))):
        found = boards.release("digits", "dpsd", {}, attack=attack)
        assert found is not None and boards.attack_of(found) == attack
        assert ([run.seed for run in found.runs], [run.run for run in found.runs]) == ([0, 1, 2], runs.split())
        assert (found.accuracy, found.deviation) == pytest.approx(accuracy, abs=1e-5)


def test_release_prefers_present_version(monkeypatch: pytest.MonkeyPatch) -> None:
    old = one(**USUAL, version=0, seeds="0 1 2", attack="gmi", attack_accuracy=0.9)
    new = one(**USUAL, seeds="0")
    monkeypatch.setattr(boards, "board", lambda name: [old, new])
    assert boards.release("digits", "dpsd", {}) is new and results.attacked("digits", "dpsd", {}) == ["", "", ""]
    monkeypatch.setattr(boards, "board", lambda name: [old])
    assert boards.release("digits", "dpsd", {}) is old and results.attacked("digits", "dpsd", {}) == ["90", "", ""]


@pytest.mark.parametrize(
    ("method", "usual", "other"),
    [
        ("dpsd", {"tier": "quick"}, {"tier": "paper"}),
        ("fedavg", {"student": "datalens", "variant": "printed"}, {"student": "dense-cnn", "variant": "printed"}),
    ],
    ids=["tier", "student"],
)
def test_release_prefers_the_usual_network_and_tier(
    method: str, usual: dict[str, str], other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = one(**USUAL | {"method": method, "seeds": "0"} | usual)
    second = one(**USUAL | {"method": method, "seeds": "0" if method == "dpsd" else "0 1 2"} | other)
    monkeypatch.setattr(boards, "board", lambda name: [second, first])
    key, value = next(iter(other.items()))
    found = [boards.release("mnist", method, {}, **given) for given in ({}, {key: value}, {key: "standard"})]
    assert found == [first, second, None]


@pytest.fixture
def frontier(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("frontier", None)
    return importlib.import_module("frontier")


def ours(method: str, epsilon: float, accuracy: float, **more: str) -> dict[str, object]:
    """A row of a board with an account for one record."""
    usual = {"variant": "working", "split": "iid", "unit": "example", "seeds": "0"}
    return {**usual, "method": method, "epsilon_accounted": epsilon, "accuracy_mean": accuracy, **more}


def test_frontier_draws_each_setting_once(frontier: ModuleType) -> None:
    found = frontier.measured(results_of(
        ours("dp-sgd", 1.0, 0.9),
        ours("dp-sgd", 1.0, 0.8, seeds="0 1 2"),
        ours("dp-sgd", 1.0, 0.7, seeds="0 1 2", variant="printed"),
        ours("rr", math.inf, 0.6),
    ))  # fmt: skip
    assert found == [("dp-sgd", 1.0, 80.0)], "most seeds; no printed variant, no infinite epsilon"


@pytest.mark.parametrize("flag", ["older-version", "float32-noise", "account-corrected", "refuted"])
def test_frontier_leaves_out_refused_releases(frontier: ModuleType, flag: str) -> None:
    flags = {"flags": f"seeded-noise {flag}"}
    found = results_of(ours("dp-sgd", 1.0, 0.9, **flags), ours("pate", 2.0, 0.8, flags="public-data seeded-noise"))
    assert frontier.measured(found) == [("pate", 2.0, 80.0)]


def test_frontier_leaves_out_pretrained_releases(frontier: ModuleType) -> None:
    pretrained = {"flags": "public-data weights:resnet18@0123456789ab"}
    found = results_of(ours("private-features", 1.0, 0.9, **pretrained), ours("pate", 2.0, 0.8, flags="public-data"))
    assert frontier.measured(found) == [("pate", 2.0, 80.0)]


def test_frontier_keeps_unbeaten_settings(frontier: ModuleType) -> None:
    settings = [("a", 1.0, 90.0), ("b", 1.0, 95.0), ("c", 3.0, 94.0), ("d", 0.5, 80.0), ("e", 8.0, 96.0)]
    assert [name for name, *_ in frontier.frontier(settings)] == ["d", "b", "e"]


def test_frontier_draws_best_printed_number(frontier: ModuleType) -> None:
    reported = pd.read_csv(ROOT / "leaderboards" / "papers" / "reported.csv")
    found = {(method, epsilon): accuracy for method, epsilon, accuracy in frontier.printed(reported, "mnist")}
    assert found["dpsd", 10.0] == pytest.approx(98.19) and found["dgd", 10.0] == pytest.approx(97.4)
