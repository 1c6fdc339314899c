"""Names that could forge output: line breaks, escape sequences, invisible letters, markup, formulas."""

import csv
import io
import json
import re
from pathlib import Path

import board_records
import pandas as pd
import pytest
from board_records import record
from conftest import Refused, Type
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from bench import progress
from bench.boards.tables import ReleaseRow, read_table
from bench.errors import BenchError
from bench.escape import csv_cell, csv_value, has_hidden, markdown, visible
from bench.report.files import script
from docs.tables.__main__ import TEMPLATES

FORGING = [*"\n\r\t\x07\x9b\u202e\u2066\u200b\u200d\ufeff\u2028\xad", "\x1b[2J"]
"""Letters that act on a terminal or are invisible, each by another mechanism."""
FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "'=1", "-", "+", "''"]
FORMULAS += ["\t=1", "\r=1", "\uff1d1+1", "=cmd|' /C calc'!A0"]


@pytest.mark.parametrize("letter", FORGING)
def test_visible_escapes_hidden_letters(letter: str) -> None:
    assert has_hidden(f"a{letter}b")
    shown = visible(f"a{letter}b")
    assert not has_hidden(shown) and "\\" in shown and shown.startswith("a") and shown.endswith("b")
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("text", ["", "DPSD, Theorem 1", "Müller 5 ± 1 %", "98.4\u00a0%", "名前", "a|b<c>", "😀"])
def test_visible_keeps_visible_text(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("letter", FORGING)
def test_terminal_escapes_lines(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"a{letter}[bold]b"
    for write in (progress.print_line, progress.print_heading, progress.notify, progress.print_error):
        write(name)
        assert "".join(capsys.readouterr()).rstrip("\n") == visible(name), write


@pytest.mark.parametrize("letter", FORGING)
def test_terminal_escapes_cells_of_tables(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"a{letter}b"
    made = Table(name, title=name)
    made.add_row(name)
    made.add_row(progress.plain_text(name))
    progress.out.print(made)
    said = capsys.readouterr().out
    assert not any(has_hidden(line) for line in said.split("\n")) and said.count(visible(name)) == 4


def test_progress_escapes_the_name_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.track("a\nb\x1b[2J", 1) as advance:
        advance(1)
    assert capsys.readouterr().err.startswith("a\\nb\\x1b[2J: 1 of 1 in ")


@pytest.mark.parametrize("name", ["x\nbench: verified", "x\x1b[2J", "x\u202ey"])
def test_error_escapes_arguments(name: str, refused: Refused, typed: Type, tmp_path: Path) -> None:
    assert not has_hidden(refused("verify", tmp_path / name).rstrip("\n"))
    said = typed("verify", tmp_path / name, "--debug").err
    assert "Traceback" in said and not any(has_hidden(line) for line in said.splitlines())


@pytest.mark.parametrize("text", [*FORMULAS, *(f"a{letter}b" for letter in FORGING), "a,b", 'a"b', "\\x41", "'a\\n"])
def test_csv_cell_is_not_a_formula_and_reads_back(text: str) -> None:
    cell = csv_cell(text)
    assert not re.match(r"[=+\-@\t\r\uff1d]", cell) and not has_hidden(cell)
    assert csv_value(cell) == text


@pytest.mark.thorough
@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20))
def test_csv_value_inverts_csv_cell(text: str) -> None:
    assert csv_value(csv_cell(text)) == text


@pytest.mark.parametrize("number", ["-0.5", "+3", "1e-05", "-1e300", "-inf", "inf", "0", ".5", "-7."])
def test_csv_cell_does_not_change_numbers(number: str) -> None:
    assert csv_cell(number) == number and csv_value(number) == number
    assert csv_cell(float(number)) == float(number) and csv_cell(None) is None


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@a", "a\x1b[2J", "a\u202eb", "a\nb"])
def test_board_has_no_formula_and_reads_back(tmp_path: Path, name: str) -> None:
    made = record(0, 0.5)
    made.spec["release"]["method"] = name
    path = tmp_path / "digits.csv"
    path.write_text(board_records.board([made]).texts()["releases"], encoding="utf-8")
    with path.open(newline="", encoding="utf-8") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert not any(has_hidden(cell) or cell.startswith(("=", "@")) for cell in cells)
    (row,) = read_table(ReleaseRow, path)
    assert row.method == name


def test_csv_cell_changes_no_published_cell() -> None:
    for path in sorted((Path(__file__).resolve().parent.parent / "leaderboards").rglob("*.csv")):
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        cells = {str(cell) for column in frame for cell in frame[column].unique()}
        assert {cell for cell in cells if csv_cell(cell) != cell} == set(), path


def test_comparison_as_csv_has_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.papers import command

    command._write([{"dataset": "=1+1", "method": "a\x1b[2J", "difference": -0.5}])
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["dataset"], row["method"], row["difference"]) == ("'=1+1", "'a\\x1b[2J", "-0.5")


MARKUP = "a | b\n# c <script>x</script> [d](http://e) `f` *g* _h_ ![i](j) &lt; ~k~ \u202e\u200b\x1b"


def test_markdown_escapes_markup() -> None:
    text = markdown(MARKUP)
    assert "\n" not in text and not has_hidden(text) and "<" not in text and ">" not in text
    assert not re.search(r"(?<!\\)[|`*_\[\]~#]", text)


def test_table_of_docs_keeps_its_columns() -> None:
    template = TEMPLATES.from_string("{% for a, b in rows %}\n| {{ a }} | {{ b }} |\n{% endfor %}")
    lines = template.render(rows=[(MARKUP, "1"), ("2", "x\ny")]).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3]


def test_page_data_have_no_hidden_letter() -> None:
    made = script("names", {"key\u202e": [MARKUP, {"a": f"{MARKUP}\u2028"}], "number": 1.5}).decode()
    assert not has_hidden(made.rstrip("\n"))
    quoted = re.fullmatch(r"REPORT\[\"names\"\] = JSON\.parse\('(.*)'\);\n", made)
    assert quoted is not None
    assert json.loads(quoted[1].replace("\\'", "'").replace("\\\\", "\\"))["number"] == 1.5


def test_bench_error_has_the_original_name() -> None:
    """Escapes are for readers only: code gets the original text."""
    assert str(BenchError("a\nb")) == "a\nb"
