"""`bench papers compare` on constructed boards, and reasons why a number of ours is below the published one."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import board, line, printed, record
from wide_boards import cells, execute, results_of
from wide_boards import write_boards as write

from bench.boards.results import Result, of_tier
from bench.boards.tables import read_options
from bench.cli import main
from bench.errors import BenchError
from bench.papers import command, comparison, printed_numbers
from bench.papers.comparison import Line
from bench.papers.printed_numbers import table
from bench.papers.reasons import CODES, Reason, reason, without_noise


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
    assert "mnist dpsd 1 0.9762 printed 0.6000 -0.3762 unknown quick infinite per example" in said
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


def test_reason_needs_more_than_two_points() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    assert reason(line(entry, entry.value - 0.0199, method="dpdfd")) is None
    assert reason(line(entry, entry.value + 0.2, method="dpdfd")) is None
    assert reason(Line(entry, None, "not run")) is None
    found = reason(line(entry, entry.value - 0.021, method="dpdfd"))
    command = "bench run --method dpdfd --variant working --dataset mnist --epsilon inf"
    assert found == Reason("unknown", command)


def test_information_is_the_first_reason() -> None:
    found = reason(line(printed("dpsd", "Table I", "dpsd", 10.0), 0.5))
    assert found == Reason("information", "docs/information.md")


def test_other_data_is_no_reason_by_itself() -> None:
    entry = printed("dgd", "Table II", "dgd", 3.0, "cifar10")
    found = reason(line(entry, 0.1, dataset="cifar10-jpeg", method="dgd"))
    assert found is not None and found.code == "unknown"


def test_weak_teacher_is_a_reason_for_its_students() -> None:
    """The printed number is 88.2 %, ours 10 %: a teacher of 30 % explains 58.2 of 78.2 points."""
    entry = printed("dpdfd", "Table 2", "dpdfd", 2.0, "cifar10")
    teachers = (0.3, 0.6, 0.9, "")
    rows = [line(entry, 0.1, method="dpdfd", dataset="cifar10-jpeg", teacher_accuracy=each) for each in teachers]
    codes = [reason(row) for row in rows]
    assert [found and found.code for found in codes] == ["teacher", *["unknown"] * 3]
    expected = (entry.value - 0.3) / (entry.value - 0.1)
    assert codes[0] is not None and codes[0].closes == pytest.approx(expected)
    # DP-SGD trains its own network on the records: the undefended teacher is nothing to it
    sgd = printed("dpsd", "Table III", "dp-sgd", 2.0, "cifar10")
    found = reason(line(sgd, 0.1, method="dp-sgd", dataset="cifar10-jpeg", teacher_accuracy=0.3))
    assert found is not None and found.code == "unknown"


def test_reason_has_command_of_the_release() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    options = json.dumps({"method": {"teachers": 50.0}, "budget": {"epsilon": 10.0, "unit": "label", "solve": "none"}})
    why = reason(line(entry, 0.1, method="dpdfd", options=options, teacher="resnet34", tier="paper"))
    command = "bench run --method dpdfd --variant working --dataset mnist --teacher resnet34 --tier paper"
    assert why is not None and why.experiment == f"{command} --epsilon inf --unit label --method.teachers 50"


def with_control(without: float, **other: Any) -> list[Result]:
    """Return the results of pate-gan with noise (40 %) and without (`without`)."""
    made = {"dataset": "mnist", "claim_unit": "example", "variant": "working"}
    noisy = record("pate-gan", 0, 0.4, accounted=10.0, **made)
    options = {"budget": {"epsilon": "inf", "solve": "none"}}
    control = record("pate-gan", 0, without, budget="inf", claim="none", options=options, **made | other)
    return board(noisy, control)


def reason_of(rows: list[Result], method: str = "pate-gan") -> Reason:
    (mine, *_) = comparison.compare([printed("dpsd", "Table I", method, 10.0)], rows, lambda *_: True)
    why = reason(mine, without_noise(rows))
    assert why is not None
    return why


@pytest.mark.parametrize(
    ("without", "code"), [(0.69, "noise"), (0.55, "noise"), (0.50, "learns-less"), (0.30, "learns-less")]
)
def test_noise_is_the_reason_if_it_closes_half(without: float, code: str) -> None:
    why, entry = reason_of(with_control(without)), printed("dpsd", "Table I", "pate-gan", 10.0)
    command = "bench run --method pate-gan --variant working --dataset mnist --epsilon inf"
    assert (why.code, why.experiment) == (code, f"{command} # {100 * without:.1f} %")
    expected = min(1.0, max(0.0, (without - 0.4) / (entry.value - 0.4)))
    assert why.closes == pytest.approx(expected) and (why.closes >= 0.5) == (code == "noise")


def test_control_is_a_run_of_the_same_settings() -> None:
    assert reason_of(with_control(0.66, tier="standard")).code == "unknown"
    assert reason_of(with_control(0.66, version=0)).code == "unknown"


@pytest.mark.parametrize(("without", "code"), [(0.66, "noise"), (0.50, "unknown")])
def test_smaller_control_counts_only_if_it_is_close(without: float, code: str) -> None:
    large = record("pate-gan", 0, 0.4, accounted=10.0, dataset="mnist", variant="working", tier="paper")
    small = with_control(without)[1]
    assert reason_of([*board(large), small]).code == code


def test_run_that_has_no_noise_learns_less() -> None:
    free = {"dataset": "mnist", "claim": "none", "variant": "printed", "budget": "inf"}
    rows = board(record("fedavg", 0, 0.8, options={"budget": {"epsilon": "inf", "solve": "none"}}, **free))
    entries = [each for each in table("dpsd", "Table V") if (each.method, each.dataset) == ("fedavg", "mnist")]
    (mine,) = comparison.compare(entries, rows, lambda *_: True)
    budget = json.dumps({"budget": {"epsilon": None, "solve": "none"}})
    none = replace(rows[0], release=replace(rows[0].release, options=budget))
    for each in (mine, Line(entries[0], none)):
        why = reason(each, without_noise(rows))
        assert why is not None and (why.code, why.closes) == ("learns-less", 0.0)


def test_every_code_has_a_meaning() -> None:
    assert set(CODES) == {"information", "noise", "teacher", "learns-less", "unknown"}


def test_given_and_solved_noise_share_the_control() -> None:
    def options(**method: float) -> str:
        return json.dumps({"method": method, "budget": {"epsilon": None, "solve": "none"}})

    entry = next(e for e in table("dpdfd", "Table 5") if (e.dataset, e.ablation) == ("mnist", "sigma=50"))
    same = {"method": "dpdfd", "variant": "working", "dataset": "mnist", "tier": "quick", "split": "iid"}
    same |= {"teacher": "resnet18", "student": "datalens", "flags": ""}
    control = same | {"options": json.dumps({"budget": {"epsilon": "inf", "solve": "none"}}), "accuracy_mean": "0.97"}
    for given, code in ((options(sigma=50.0), "noise"), (options(sigma=50.0, iterations=9), "unknown")):
        row = same | {"options": given, "accuracy_mean": "0.09"}
        why = reason(Line(entry, results_of(row)[0]), without_noise(results_of(control, row)))
        assert why is not None and why.code == code


def test_command_of_control_names_unusual_options() -> None:
    entry = next(e for e in table("dpsd", "Table IV") if (e.method, e.dataset) == ("lp-2st", "mnist"))
    same = {"method": "lp-2st", "variant": "working", "dataset": "mnist", "tier": "quick", "split": "iid"}
    same |= {"teacher": "resnet34", "student": "datalens", "flags": "", "accuracy_mean": "0.5"}
    budget = {"unit": "label", "epsilon": "inf", "solve": "none"}
    control = same | {"options": json.dumps({"method": {"batch": 9}, "budget": budget}), "accuracy_mean": "0.999"}
    row = same | {"options": json.dumps({"method": {"batch": 9}, "budget": {"unit": "label", "epsilon": 1.0}})}
    why = reason(Line(entry, results_of(row)[0]), without_noise(results_of(control, row)))
    command = (
        "bench run --method lp-2st --variant working --dataset mnist --teacher resnet34 --epsilon inf --unit label"
    )
    assert why is not None and why.experiment == f"{command} --method.batch 9 # 99.9 %"
    # of a smaller tier and with another teacher it is a control of the same kind, whose command says so
    larger = row | {"tier": "paper", "teacher": "resnet18"}
    why = reason(Line(entry, results_of(larger)[0]), without_noise(results_of(control | {"tier": "standard"}, larger)))
    assert why is not None and " --teacher resnet34 --tier standard --epsilon inf --unit label " in why.experiment
