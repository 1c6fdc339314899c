"""Every number of the README's results and of the measured tables in docs/ is what boards and records say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest
from conftest import ROOT

from bench import leaderboard


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """docs/tables.py."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tables"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_what_the_boards_say(tables: ModuleType) -> None:
    assert [page.name for page in tables.PAGES if tables.rewritten(page) != page.read_text(encoding="utf-8")] == []
    found = [name for page in tables.PAGES for _, name, _ in tables.PLACE.findall(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(tables.TABLES)


def test_a_changed_number_is_noticed_and_mended(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = tmp_path / "results.md", (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page.write_text(text.replace("99.2 ± 0.6 %", "99.9 ± 0.6 %"), encoding="utf-8")
    monkeypatch.setattr(tables, "PAGES", (page,))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1 and "results.md" in capsys.readouterr().err
    assert tables.main([]) == 0 and page.read_text(encoding="utf-8") == text
    assert tables.main(["--check"]) == 0


def test_a_finding_that_is_on_no_board_is_refused(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "board", lambda name: [])
    for make in (*(lambda name=name: tables.found(name) for name in tables.FINDINGS), tables.shown, tables.votes):
        with pytest.raises(KeyError):
            make()


def test_an_empty_place_is_filled_and_nothing_after_it_is_lost(tables: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table issues -->\n\n<!-- end -->\n\nkept\n\n<!-- table issues -->\n\nold\n\n<!-- end -->\n")
    filled = f"<!-- table issues -->\n\n{tables.issues()}\n\n<!-- end -->\n"
    assert tables.rewritten(page) == f"{filled}\nkept\n\n{filled}"


def test_the_table_of_results_has_every_method_of_a_board(tables: ModuleType) -> None:
    for name in ("digits", "mnist"):
        lines = [line.split("|")[1].strip() for line in tables.results(name).splitlines()[2:]]
        shown = {re.split(r"[,\s]", line)[0] for line in lines}
        assert shown == {row["method"] for row in tables.board(name)}


def test_numbers_of_a_row_come_from_its_cells(tables: ModuleType) -> None:
    row = {"accuracy_mean": "0.7346", "accuracy_std": "0.0212", "epsilon_claimed": "10.0", "claim_unit": "query"}
    row |= {"epsilon_accounted": "7639.4", "unit": "example"}
    assert (tables.accuracy(row), tables.claimed(row), tables.accounted(row)) == (
        "73.5 ± 2.1 %",
        "10 per answer",
        "7,639",
    )
    row |= {"accuracy_std": "", "claim_unit": "", "epsilon_accounted": "inf"}
    assert (tables.accuracy(row), tables.claimed(row), tables.accounted(row)) == ("73.5 %", "none", "infinite")
    options = {"method": {"k": 2, "secure": True}, "budget": {"solve": "none", "account": "accounted", "epsilon": 1.0}}
    assert tables.typed(options) == "`--method.k 2 --method.secure true --epsilon 1 --account accounted`"


@pytest.mark.parametrize(("where", "name", "teachers"), [("on digits", "digits", 40), ("at 8", "mnist", 50)])
def test_controls_that_the_results_name_are_in_the_records(
    tables: ModuleType, where: str, name: str, teachers: int
) -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (said,) = re.findall(rf"(\d+\.\d) %(?: on MNIST)? {where}", text)
    controls = {
        leaderboard.seed(record): record.metrics["control_accuracy"]
        for record in tables.records().values()
        if leaderboard.dataset(record) == name
        and tables.filled(record.options) == tables.given(teachers=teachers, epsilon=8.0, account="accounted")
        and record.spec["release"]["method"] == "class-moments"
    }
    assert f"{100 * mean(controls.values()):.1f}" == said


def test_what_the_results_say_of_gmi_is_on_the_boards(tables: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(r"finds (\d+) % \(digits\) and (\d+) % \(MNIST\) .* `dp-sgd` (\d+) % and (\d+) %", text)
    pairs = [(name, method) for method in ("dp-teacher", "dp-sgd") for name in ("digits", "mnist")]
    assert [tables.attacked(name, method, {})[0] for name, method in pairs] == list(said)
    (said,) = re.findall(r"unseen images by (\d+) % \(teacher\) and (\d+) % \(that student\)", text)
    sound = tables.given(teachers=40, epsilon=2.0, account="accounted")
    (bare,), (ours,) = (
        [row for row in tables.of("digits", *key) if row["attack"] == "gmi"]
        for key in (("no-defence", {}), ("class-moments", sound))
    )
    shares = [100 * float(row["knn_gap"]) / float(row["knn_distance"]) for row in (bare, ours)]
    assert [f"{share:.0f}" for share in shares] == list(said)


def test_rows_of_an_older_version_stand_back(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"dataset": "digits", "method": "dpsd", "variant": "working", "options": "{}", "power": ""}
    old = common | {"seeds": "0 1 2", "flags": "other-unit older-version", "attack": "gmi", "attack_accuracy": "0.9"}
    new = common | {"seeds": "0", "flags": "other-unit", "attack": "", "attack_accuracy": ""}
    monkeypatch.setattr(tables, "board", lambda name: [old, new])
    assert tables.release("digits", "dpsd", {}) is new and tables.attacked("digits", "dpsd", {}) == ["", "", ""]
    monkeypatch.setattr(tables, "board", lambda name: [old])
    assert tables.release("digits", "dpsd", {}) is old and tables.attacked("digits", "dpsd", {}) == ["90", "", ""]
