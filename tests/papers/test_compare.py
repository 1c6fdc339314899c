"""`bench papers compare` on constructed boards."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from wide_boards import cells, execute, results_of
from wide_boards import write_boards as write

from bench.boards.results import of_tier
from bench.boards.tables import read_options
from bench.cli import main
from bench.errors import BenchError
from bench.papers import command, comparison, printed_numbers


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    rows = [
        cells("dpsd", epsilon_claimed=9.999748, epsilon_accounted=7638.8, accuracy_mean=0.77, accuracy_std=0.02,
              flags="other-unit"),
        cells("dpsd", epsilon_claimed=9.9997, epsilon_accounted=7638.8, accuracy_mean=0.1, variant="working"),
        cells("dpsd", epsilon_claimed=1.0, options='{"method": {"mode": "label"}}', accuracy_mean=0.6),
        cells("dpsd", epsilon_claimed=0.99999, options='{"budget": {"epsilon": 1.0}}', accuracy_mean=0.5, tier="smoke"),
    ]  # fmt: skip
    return write(tmp_path / "leaderboards", rows)


def table_of(text: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """The lines by data set, method and epsilon; of variants that were both run, the printed one."""
    lines = list(csv.DictReader(io.StringIO(text)))
    return {(r["dataset"], r["method"], r["epsilon"]): r for r in reversed(lines)}


def test_compare_writes_csv(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(command, "--paper", "dpsd", "--table", "table i", "--boards", measured, "--csv") == 0
    found = table_of(capsys.readouterr().out)
    assert len(found) == 95
    ours = found["mnist", "dpsd", "10.0"]
    assert (ours["reported"], ours["ours"], ours["tier"], ours["state"]) == ("0.9785", "0.77", "quick", "measured")
    assert float(ours["difference"]) == pytest.approx(-0.2085)
    assert (ours["epsilon_accounted"], ours["accounted_unit"]) == ("7638.8", "example")
    assert ours["flags"] == "other-unit reported:exceeds-information"
    assert float(ours["printed_information"]) == pytest.approx(2.56, abs=1e-4), "200 x 256 / (2 x 100^2)"
    assert ours["printed_allows"] == found["mnist", "dpsd", "1.0"]["printed_allows"] == "0.640052"
    assert found["mnist", "dpdfd", "10.0"]["printed_allows"] == "", "the paper prints neither b nor T"
    assert found["mnist", "dpsd", "1.0"]["state"] == "not run", "label mode and tier smoke are other things"
    assert found["mnist", "datalens", "1.0"]["state"] == "not run"
    assert found["mnist", "dgd", "1.0"]["flags"].split()[-1] == "reported:swapped-values"
    assert {row["ours"] for row in found.values()} == {"", "0.77"}, "of one variant"


def test_compare_lists_every_variant_of_a_number(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--paper", "dpsd", "--table", "table i", "--boards", measured, "--dataset", "mnist"]
    assert execute(command, *line, "--csv") == 0
    found = [r for r in csv.DictReader(io.StringIO(capsys.readouterr().out)) if r["ours"]]
    assert [(r["method"], r["reported"], r["variant"], r["ours"]) for r in found] == [
        ("dpsd", "0.9785", "printed", "0.77"),
        ("dpsd", "0.9785", "working", "0.1"),
    ]
    assert execute(command, *line) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0.9785 <= 0.6401 printed 0.7700" in said and "0.9785 <= 0.6401 working 0.1000" in said
    assert "1 of 26 numbers" in said


def test_compare_selects_tier_and_data_set(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--paper", "dpsd", "--table", "Table I", "--out", measured.parent, "--tier", "smoke", "--csv"]
    assert execute(command, *arguments, "--dataset", "mnist") == 0
    found = table_of(capsys.readouterr().out)
    assert {key[0] for key in found} == {"mnist"}
    assert found["mnist", "dpsd", "1.0"]["ours"] == "0.5"
    assert found["mnist", "dpsd", "10.0"]["state"] == "not run"


def test_compare_takes_the_largest_tier() -> None:
    """The number at epsilon 1 was run at both tiers, the one at 10 at one; tier smoke says nothing."""
    made = {"dataset": "mnist", "method": "dp-merf", "variant": "printed", "claim_unit": "example"}
    rows = [
        made | {"epsilon_claimed": epsilon, "tier": tier, "accuracy_mean": accuracy, "options": options}
        for epsilon, tier, accuracy, options in (
            (1.0, "standard", 0.7, '{"method": {"rate": 8.0}}'),
            (1.0, "quick", 0.8, ""),
            (10.0, "quick", 0.6, ""),
            (10.0, "smoke", 0.9, ""),
        )
    ]
    results = results_of(*rows)
    entries = [e for e in printed_numbers.table("dpsd", "Table I") if (e.method, e.dataset) == ("dp-merf", "mnist")]
    ours = {
        line.entry.epsilon: (line.result.release.tier, line.result.accuracy)
        for line in comparison.compare(entries, of_tier(results), lambda *_: True)
        if line.result is not None
    }
    assert ours == {1.0: ("standard", 0.7), 10.0: ("quick", 0.6)}
    assert [result.accuracy for result in of_tier(results, "smoke")] == [0.9]


def test_label_table_takes_label_results(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(command, "--paper", "dpsd", "--table", "Table IV", "--boards", measured) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mnist dpsd 1 0.9762 printed 0.6000 -0.3762 size quick infinite per example" in said
    assert "1 of 19 numbers" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--paper", "unknown", "--table", "Table I"], "known: dp-dfd, dpdfd, dgd, dpsd"),
        (["--paper", "dgd", "--table", "Table 9"], "known: Table I, Table II"),
        (["--paper", "dgd", "--table", "Table I", "--dataset", "svhn"], "which has mnist, fmnist"),
        (["--paper", "dgd", "--table", "Table I", "--boards", "nowhere"], "no board in nowhere"),
    ],
)
def test_compare_refuses_in_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(BenchError) as caught:
        execute(command, *arguments)
    assert words in str(caught.value)


def test_compare_result_without_account_shows_dash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [cells("dpsd", epsilon_accounted="", unit="")])
    assert execute(command, "--paper", "dpsd", "--table", "Table I", "--boards", tmp_path) == 0
    assert "-0.0285 information quick - -" in " ".join(capsys.readouterr().out.split())


def test_damaged_options_cell_is_refused() -> None:
    with pytest.raises(BenchError, match="method"):
        read_options('{"method"')


def test_old_command_name_still_compares(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--paper", "dpsd", "--table", "Table I", "--boards", str(measured), "--csv"]
    assert main(["papers", "compare", *words]) == 0
    new = capsys.readouterr()
    assert main(["compare", *words]) == 0
    old = capsys.readouterr()
    assert old.out == new.out and new.err == ""
    assert old.err.count("\n") == 1 and "bench papers compare" in old.err


def test_papers_without_an_action_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["papers"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ACTION" in said and "bench papers --help" in said


def test_help_mentions_the_papers_in_its_last_line_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    *lines, last = capsys.readouterr().out.strip().splitlines()
    assert "papers" in last and not [line for line in lines if "paper" in line.lower()]
    tasks = [line for line in lines if line.endswith(":") and not line.startswith("options")]
    assert tasks == ["run and attack:", "release:", "boards:", "methods, data and machines:"]
    assert not [line for line in lines if line.strip().startswith("compare")]
