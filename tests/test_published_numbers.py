"""Every number of the README's results and of the measured tables in docs/ equals boards and records."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
from conftest import ROOT

from bench import boards as board_files
from bench.errors import BenchError
from docs.tables import __main__ as pages
from docs.tables import attacked, boards, cells, papers, results


def test_the_tables_are_what_the_boards_say() -> None:
    assert [page.name for page in pages.PAGES if pages.rewritten(page) != page.read_text(encoding="utf-8")] == []
    found = [name for page in pages.PAGES for _, name, _ in pages.PLACE.findall(page.read_text(encoding="utf-8"))]
    assert {name.partition("_")[0] for name in found} == set(pages.TABLES), "every table is on a page"
    assert {template for template, _ in pages.TABLES.values()} == {
        path.stem for path in (ROOT / "docs" / "templates").glob("*.j2")
    }
    shown = {row["table"] for row in boards.read_rows(ROOT / "docs" / "tables" / "rows.csv")}
    assert shown == {name for name in found if name.startswith("found_")} | {"results", "shown", "headlines"}


def test_a_table_of_an_unknown_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table nosuch_digits -->\n\n<!-- end -->\n")
    monkeypatch.setattr(pages, "PAGES", (page,))
    assert pages.main([]) == 2
    assert "table nosuch_digits: no such table; expected a name that begins with" in capsys.readouterr().err


def test_options_of_rows_csv_are_those_of_records() -> None:
    assert boards.parsed("teachers=40 epsilon=8 account=accounted") == {
        "method": {"teachers": 40},
        "budget": {"epsilon": 8.0, "account": "accounted"},
    }
    assert boards.parsed("epsilon=null solve=none") == {"budget": {"epsilon": None, "solve": "none"}}
    assert boards.parsed("epsilon=inf mode=label") == {"method": {"mode": "label"}, "budget": {"epsilon": "inf"}}
    assert boards.parsed("") == {}


def test_a_changed_number_is_noticed_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text = tmp_path / "results.md", (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page.write_text(text.replace("99.2 ± 0.6 %", "99.9 ± 0.6 %"), encoding="utf-8")
    monkeypatch.setattr(pages, "PAGES", (page,))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.main(["--check"]) == 1 and "results.md" in capsys.readouterr().err
    assert pages.main([]) == 0 and page.read_text(encoding="utf-8") == text
    assert pages.main(["--check"]) == 0


def test_a_finding_that_is_on_no_board_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "board", lambda name: [])
    monkeypatch.setattr(attacked, "board", lambda name: [])
    for make in (lambda: papers.found("answers"), attacked.shown, results.votes):
        with pytest.raises(BenchError, match="is not on the board of"):
            make()


def test_an_empty_place_is_filled_and_nothing_after_it_is_lost(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table issues -->\n\n<!-- end -->\n\nkept\n\n<!-- table issues -->\n\nold\n\n<!-- end -->\n")
    filled = f"<!-- table issues -->\n\n{pages.table('issues')}\n\n<!-- end -->\n"
    assert pages.rewritten(page) == f"{filled}\nkept\n\n{filled}"


def test_the_table_of_results_has_every_method_of_a_board() -> None:
    for name in ("digits", "mnist"):
        lines = [line.split("|")[1].strip() for line in pages.table(f"results_{name}").splitlines()[2:]]
        shown = {re.split(r"[,\s]", line)[0] for line in lines}
        assert shown == {row["method"] for row in boards.board(name)}


def test_a_number_far_behind_print_has_a_reason_and_one_near_it_has_none() -> None:
    row = {"dataset": "mnist", "method": "dp-merf", "variant": "working", "tier": "quick", "kind": "baselines"}
    row |= {"options": '{"budget": {}, "teacher": {}, "method": {}}', "accuracy_std": "", "epsilon_claimed": "9.9999"}
    told = {"reported_accuracy": "0.6870", "reported_source": "dp-dfd Table I", "claim_unit": "example", "flags": ""}
    assert results.verdict(row | told | {"accuracy_mean": "0.6370"}) == "-5.0"
    assert results.verdict(row | told | {"accuracy_mean": "0.6369"}) == "-5.0, size"
    assert results.verdict(row | told | {"accuracy_mean": "0.8120"}) == "+12.5"
    assert results.verdict(row | told | {"reported_accuracy": ""}) == ""


def test_numbers_of_a_row_come_from_its_cells() -> None:
    row = {"accuracy_mean": "0.7346", "accuracy_std": "0.0212", "epsilon_claimed": "10.0", "claim_unit": "query"}
    row |= {"epsilon_accounted": "7639.4", "unit": "example", "flags": "seeded-noise"}
    assert (cells.accuracy(row), cells.claimed(row), cells.accounted(row)) == (
        "73.5 ± 2.1 %",
        "10 per answer",
        "7,639",
    )
    assert cells.accounted(row | {"flags": "float32-noise seeded-noise"}) == "7,639, float32 noise"
    row |= {"accuracy_std": "", "claim_unit": "", "epsilon_accounted": "inf", "flags": "float32-noise"}
    assert (cells.accuracy(row), cells.claimed(row), cells.accounted(row)) == ("73.5 %", "none", "infinite")
    options = {"method": {"k": 2, "secure": True}, "budget": {"solve": "none", "account": "accounted", "epsilon": 1.0}}
    assert cells.typed(options) == "`--method.k 2 --method.secure true --epsilon 1 --account accounted`"


@pytest.mark.parametrize(("where", "name", "teachers"), [("on digits", "digits", 40), ("at 8", "mnist", 50)])
def test_controls_that_the_results_name_are_in_the_records(where: str, name: str, teachers: int) -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (said,) = re.findall(rf"(\d+\.\d) %(?: on MNIST)? {where}", text)
    controls = {
        board_files.seed(record): record.metrics["control_accuracy"]
        for record in boards.records().values()
        if board_files.dataset(record) == name
        and boards.filled(record.options) == boards.given(teachers=teachers, epsilon=8.0, account="accounted")
        and record.spec["release"]["method"] == "class-moments"
    }
    assert f"{100 * mean(controls.values()):.1f}" == said


def test_what_the_results_say_of_gmi_is_on_the_boards() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(r"finds (\d+) % \(digits\) and (\d+) % \(MNIST\) .* `dp-sgd` (\d+) % and (\d+) %", text)
    pairs = [(name, method) for method in ("dp-teacher", "dp-sgd") for name in ("digits", "mnist")]
    assert [results.attacked(name, method, {})[0] for name, method in pairs] == list(said)
    (said,) = re.findall(r"unseen images by (\d+) % \(teacher\) and (\d+) % \(that student\)", text)
    sound = boards.given(teachers=40, epsilon=2.0, account="accounted")
    (bare,), (ours,) = (
        [row for row in boards.of("digits", *key) if row["attack"] == "gmi"]
        for key in (("no-defence", {}), ("class-moments", sound))
    )
    shares = [100 * float(row["knn_gap"]) / float(row["knn_distance"]) for row in (bare, ours)]
    assert [f"{share:.0f}" for share in shares] == list(said)


SAME = {"tier": "quick", "teacher": "resnet18", "student": "datalens", "version": "5", "split": "iid", "delta": "1e-05"}


def test_seeds_that_were_attacked_join_those_that_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"method": "dpsd", "variant": "working", "options": "{}", "flags": "other-unit", "power": "", **SAME}
    bare = common | {"seeds": "1 2", "runs": "b c", "attack": "", "accuracy_mean": "0.7", "accuracy_std": "0.1"}
    attacked = common | {"seeds": "0 1", "runs": "a d", "attack": "gmi", "flags": "other-unit no-judge"}
    drawn_apart = common | {"seeds": "3", "runs": "e", "attack": "", "flags": "float32-noise"}
    made = {"a": (0, 0.6), "b": (1, 0.7), "c": (2, 0.8), "d": (1, 0.1), "e": (3, 0.2)}
    records = {
        name: SimpleNamespace(hash=name, spec={"release": {"seed": seed}}, metrics={"accuracy": accuracy})
        for name, (seed, accuracy) in made.items()
    }
    monkeypatch.setattr(boards, "records", lambda: records)
    monkeypatch.setattr(boards, "board", lambda name: [bare, drawn_apart])
    assert boards.release("digits", "dpsd", {}) is bare
    monkeypatch.setattr(boards, "board", lambda name: [bare, attacked, drawn_apart])
    for attack, runs, accuracy in (("", "a b c", (0.7, 0.1)), ("gmi", "a d c", (0.5, 0.360555))):
        found = boards.release("digits", "dpsd", {}, attack=attack)
        assert found is not None and (found["seeds"], found["runs"], found["attack"]) == ("0 1 2", runs, attack)
        assert (float(found["accuracy_mean"]), float(found["accuracy_std"])) == pytest.approx(accuracy)


def test_rows_of_an_older_version_stand_back(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {
        "dataset": "digits",
        "method": "dpsd",
        "variant": "working",
        "options": "{}",
        "power": "",
        "tier": "quick",
        **SAME,
    }
    old = common | {
        "version": "4",
        "seeds": "0 1 2",
        "flags": "other-unit older-version",
        "attack": "gmi",
        "attack_accuracy": "0.9",
    }
    new = common | {"seeds": "0", "flags": "other-unit", "attack": "", "attack_accuracy": ""}
    monkeypatch.setattr(boards, "board", lambda name: [old, new])
    assert boards.release("digits", "dpsd", {}) is new and results.attacked("digits", "dpsd", {}) == ["", "", ""]
    monkeypatch.setattr(boards, "board", lambda name: [old])
    assert boards.release("digits", "dpsd", {}) is old and results.attacked("digits", "dpsd", {}) == ["90", "", ""]


def test_of_several_tiers_quick_is_told_unless_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"method": "dpsd", "variant": "working", "options": "{}", "flags": "", "seeds": "0", "attack": ""}
    common |= SAME
    large, small = common | {"tier": "paper"}, common | {"tier": "quick"}
    monkeypatch.setattr(boards, "board", lambda name: [large, small])
    assert boards.release("mnist", "dpsd", {}) is small
    assert boards.release("mnist", "dpsd", {}, tier="paper") is large
    assert boards.release("mnist", "dpsd", {}, tier="standard") is None


def test_of_several_students_the_usual_one_is_told_unless_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"method": "fedavg", "variant": "printed", "options": "{}", "flags": "", "attack": "", **SAME}
    usual, other = common | {"student": "datalens", "seeds": "0"}, common | {"student": "dense-cnn", "seeds": "0 1 2"}
    monkeypatch.setattr(boards, "board", lambda name: [other, usual])
    assert boards.release("mnist", "fedavg", {}) is usual
    assert boards.release("mnist", "fedavg", {}, student="dense-cnn") is other
