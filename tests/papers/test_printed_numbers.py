"""The papers' numbers: how they are read, their rows, and their flags."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from wide_boards import results_of

from bench import registry
from bench.boards.results import Result
from bench.errors import BenchError
from bench.papers import comparison, matching, printed_numbers
from bench.papers.printed_numbers import COLUMNS, NAMES, PrintedNumber, epsilons_of_table, load, table


def row(method: str, epsilon: object = "", options: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    groups = {"teachers": "method", "epsilon": "budget", "account": "budget", "solve": "budget", "iterations": "attack"}
    given: dict[str, dict[str, Any]] = {}
    for name, value in (options or {}).items():
        given.setdefault(groups.get(name, "method"), {})[name] = value
    usual = {"dataset": "mnist", "split": "iid", "teacher": "resnet34", "accuracy_mean": "0.9", "flags": ""}
    usual |= {"variant": "printed", "tier": "quick"}
    return {
        **usual,
        "method": method,
        "epsilon_claimed": epsilon,
        "options": json.dumps(given, sort_keys=True) if given else "",
        **more,
    }


def result(method: str, epsilon: object = "", options: dict[str, Any] | None = None, **more: Any) -> Result:
    (found,) = results_of(row(method, epsilon, options, **more))
    return found


def test_all_numbers_are_there() -> None:
    assert Counter(entry.paper for entry in load()) == {"dp-dfd": 94, "dpdfd": 182, "dgd": 84, "dpsd": 209}
    assert sum(not entry.table.startswith("text") for entry in load()) == 496
    for entry in load():
        if entry.metric == "accuracy":
            assert 0 < entry.value < 1, entry


def test_every_column_is_documented() -> None:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").split("## Columns")[1].split("## ")[0]
    assert all(f"`{column}`" in text for column in COLUMNS)


def test_issues_follow_from_the_notes() -> None:
    for entry in load():
        assert entry.note.startswith("CELL-INFERRED") == ("cell-inferred" in entry.issues)
        assert entry.note.startswith("EPS-UNCERTAIN") == ("eps-uncertain" in entry.issues)


def test_issue_quoted_differently_follows_from_numbers() -> None:
    """Derived here again: papers that print the same cell differently, and nothing else but two cells named below."""
    cells: dict[tuple[Any, ...], list[PrintedNumber]] = {}
    for entry in load():
        if entry.metric == "accuracy" and (entry.epsilon is not None or entry.unit == "none"):
            key = (entry.dataset, entry.method, entry.epsilon, entry.unit, entry.ablation, entry.teacher)
            cells.setdefault(key, []).append(entry)
    wanted = {
        entry
        for found in cells.values()
        for entry in found
        for other in found
        if other.paper != entry.paper and matching.disagree([entry, other])
    }
    rounding = {e for e in load() if (e.method, e.dataset, e.epsilon) == ("dgd", "cifar10", 3.0)}
    unplaced = {e for e in load() if (e.method, e.dataset) == ("dp-merf", "celeba-g")}
    marked = {entry for entry in load() if "quoted-differently" in entry.issues}
    assert marked - wanted <= rounding | unplaced
    assert wanted <= marked


def test_number_of_two_epsilons_is_compared_with_both() -> None:
    (entry,) = (e for e in table("dpsd", "Table IV") if (e.dataset, e.method) == ("celeba-h", "alibi"))
    assert entry.epsilon is None and epsilons_of_table(entry) == (1.0, 2.0)
    ours = [
        row("alibi", claimed)
        | {"dataset": "celeba-h-subset", "accuracy_mean": accuracy, "variant": "working", "tier": "quick"}
        for claimed, accuracy in ((1.0, 0.7), (2.0, 0.8), (3.0, 0.9), (None, 0.95))
    ]
    lines = comparison.compare([entry], results_of(*ours), lambda *_: True)
    assert [line.result.accuracy for line in lines if line.result is not None] == [0.7, 0.8] and len(lines) == 2
    assert all("reported:eps-uncertain" in line.flags for line in lines)
    assert not matching.find_for(results_of(ours[0])[0]), "a number that may be another's is not of one result"


@pytest.mark.parametrize(
    ("ours", "accuracy", "source"),
    [
        (row("dpsd", "9.999748"), 0.9785, "dpsd Table I"),
        (row("dpsd", 0.999965, {"epsilon": 1.0}), 0.9603, "dpsd Table I"),
        (row("dpsd", 1.0, {"mode": "label", "epsilon": 1.0}), 0.9762, "dpsd Table IV"),
        (row("dpsd", 10.0, {"mode": "label"}), 0.9819, "dpsd Table VI"),
        (row("dpsd", 9.9997, {"ie_weight": 0.0}), 0.6637, "dpsd Table VI"),
        (row("dpsd", 10.0, {"mode": "label", "norm_weight": 0.0}), 0.8801, "dpsd Table VI"),
        (row("dpsd", 9.9997, {"iterations": 3}), 0.9785, "dpsd Table I"),
        (row("dpdfd", 1.0, {"data": "private", "epsilon": 1.0}), 0.9762, "dpdfd Table 4"),
        (row("dpdfd", 1.0, {"epsilon": 1.0}), 0.9512, "dpdfd Table 1"),
        (row("dpdfd", 77.0, {"sigma": 50.0, "epsilon": None, "solve": "none"}), 0.8314, "dpdfd Table 5"),
        (row("dp-dfd", 10.0, {"alpha": 0.0}), 0.9432, "dp-dfd Table III"),
        (row("dgd", 0.99997, {"epsilon": 1.0}), 0.736, "dgd Table I"),
        (row("no-defence"), 0.9921, "dp-dfd Table I"),
        (row("fedavg", None), 0.9055, "dpsd Table V"),
        (row("fed-dpsd", 9.99), 0.9576, "dpsd Table V"),
        (row("dp-sgd", 2.0, {"epsilon": 2.0}), 0.95, "dpdfd Table 2"),
        (row("dp-sgd", 2.0, dataset="cifar10-jpeg"), 0.6623, "dpdfd Table 2"),
        (row("dpdfd", 2.0, dataset="imagenet", teacher="tv:vit_b_16"), 0.688, "dpdfd Table 3"),
        (row("alibi", 3.0, dataset="cifar100"), 0.55, "dp-dfd Table II"),
    ],
    ids=lambda value: f"{value['method']} {value['options']}" if isinstance(value, dict) else None,
)
def test_result_finds_its_published_number(ours: dict[str, Any], accuracy: float, source: str) -> None:
    (mine,) = results_of(ours)
    first = matching.find_for(mine)[0]
    assert (first.value, first.source) == (accuracy, source)
    assert comparison.Line(first, mine).difference == pytest.approx(0.9 - accuracy)


@pytest.mark.parametrize(
    "ours",
    [
        row("dpsd", 9.9, {}),
        row("dpsd", "", {"teachers": 50, "epsilon": 1.0, "account": "accounted"}),
        row("dpsd", 10.0, dataset="digits"),
        row("dpsd", 10.0, split="disjoint-low"),
        row("dpsd", 10.0, split="canaries"),
        row("dpsd", 10.0, split="few"),
        row("dpsd", 0.1, {"mode": "label", "epsilon": 0.1}),
        row("fed-dpsd", 10.0, {"mode": "label"}),
        row("dpdfd", 77.0, {"sigma": 51.0, "epsilon": None, "solve": "none"}),
        row("dpdfd", 10.0, {"data": "private"}),
        row("dpdfd", 2.0, dataset="imagenet", teacher="resnet18"),
        row("no-defence", 10.0),
        row("dp-merf", None, dataset="celeba-g"),
        row("alibi", 1.0, dataset="cifar10"),
        row("random-guess"),
        row("dgd", 10.0, {"aggregation": "gaussian"}),
        row("dgd", 10.0, {"images": "private"}),
        row("dp-sgd", 2.0001, {"epsilon": 2.0001}),
    ],
    ids=lambda ours: f"{ours['method']} {ours['epsilon_claimed']} {ours['options']}",
)
def test_result_without_published_number(ours: dict[str, Any]) -> None:
    found = matching.find_for(results_of(ours)[0])
    assert found == () and matching.flags_of(found) == frozenset()


@pytest.mark.parametrize(
    ("method", "options", "flags", "others"),
    [
        ("dpsd", {}, {"reported:exceeds-information"}, set()),
        ("dpsd", {"mode": "label"}, {"reported:same-numbers-other-method"}, set()),
        ("g-pate", {}, {"reported-differs"}, set()),
        ("pate-gan", {}, set(), {"reported-differs"}),
        ("dgd", {}, {"reported:quoted-differently"}, {"reported-differs"}),  # its own paper does not contradict itself
    ],
)
def test_flags_of_numbers_name_issues(method: str, options: dict[str, Any], flags: set[str], others: set[str]) -> None:
    found = matching.flags_of(matching.find_for(result(method, 1.0, options)))
    assert flags <= found and not others & found


def test_result_without_an_accuracy_has_no_difference() -> None:
    mine = result("dpdfd", 10.0, accuracy_mean=None)
    assert comparison.Line(matching.find_for(mine)[0], mine).difference is None


def test_numbers_cut_and_rounded_agree() -> None:
    by = {(e.paper, e.method, e.dataset, e.epsilon): e for e in reversed(load()) if e.metric == "accuracy"}
    assert not matching.disagree([by["dgd", "dp-gan", "mnist", 1.0], by["dpdfd", "dp-gan", "mnist", 1.0]])
    assert matching.disagree([by["dgd", "dp-gan", "mnist", 10.0], by["dpdfd", "dp-gan", "mnist", 10.0]])


def test_method_names_are_installed_methods() -> None:
    assert set(NAMES.values()) | set(matching.OWN_PAPER) <= set(registry.entries("method"))


def test_load_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "reported.csv"
    with pytest.raises(BenchError, match=r"reported\.csv"):
        load(other)
    other.write_text("a,b\n1,2\n")
    with pytest.raises(BenchError, match="a, b"):
        load(other)
    damaged = tmp_path / "damaged.csv"
    damaged.write_bytes(b"paper,value\n\xe9,1\n")
    with pytest.raises(BenchError, match=r"damaged\.csv"):
        load(damaged)


def test_compare_takes_fewest_options_not_best_accuracy() -> None:
    rows = [
        row("dpsd", 10.0, {"choose": 9}, accuracy_mean="0.99", seeds="0 1 2", runs="a"),
        row("dpsd", 10.0, {}, accuracy_mean="0.50", seeds="0", runs="b"),
        row("dpsd", 10.0, {"iterations": 2}, accuracy_mean="0.40", seeds="0 1", runs="c"),
        row("dpsd", 10.0, {}, accuracy_mean="", seeds="0 1 2 3", runs="failed"),
    ]
    entries = [e for e in table("dpsd", "Table I") if e.dataset == "mnist"]
    lines = comparison.compare(entries, results_of(*rows), lambda method, dataset: method != "datalens")
    states = {(line.entry.method, line.entry.epsilon): line.state for line in lines}
    ours = next(line for line in lines if line.result is not None)
    assert (ours.entry.method, ours.entry.epsilon, ours.result and ours.result.runs[0].run) == ("dpsd", 10.0, "c")
    assert ours.difference == pytest.approx(0.40 - 0.9785)
    assert states["datalens", 1.0] == "planned" and states["dpsd", 1.0] == "not run" and states["dpsd", 10.0] == ""
    assert sum(line.result is not None for line in lines) == 1


@pytest.mark.parametrize(
    ("paper", "table", "state"),
    [
        ("dpsd", "text IV-F.3", "epsilon not stated"),  # DPSD-T compared with DPSD
        ("dpsd", "text IV-F.2", "protection not stated"),  # networks "trained directly"
        ("dgd", "text IV-B label query", "no data set named"),
        ("dpdfd", "Table 5", "not run"),  # no epsilon, but its sigma
        ("dpsd", "text IV-B", "not run"),  # a teacher, which needs none
    ],
)
def test_state_names_what_the_paper_omits(paper: str, table: str, state: str) -> None:
    lines = comparison.compare(printed_numbers.table(paper, table), [], lambda method, dataset: True)
    assert state in {line.state for line in lines}
    absent = comparison.compare(printed_numbers.table(paper, table), [], lambda method, dataset: False)
    assert {line.state for line in absent} == {state if state.startswith("no data") else "planned"}


@pytest.mark.parametrize(
    ("method", "epsilon", "worse", "better"),
    [
        ("dpsd", 10.0, {"version": 0}, {"flags": "seeded-noise"}),
        ("dpsd", 10.0, {"flags": "float32-noise"}, {"flags": "seeded-noise"}),
        ("fedavg", None, {"student": "dense-cnn"}, {"student": "datalens"}),
    ],
    ids=["older version", "account that does not hold", "other student"],
)
def test_preferred_result_is_compared_with_fewer_seeds(
    method: str, epsilon: float | None, worse: dict[str, Any], better: dict[str, Any]
) -> None:
    rows = [
        row(method, epsilon, accuracy_mean="0.70", seeds="0 1 2", runs="worse", **worse),
        row(method, epsilon, accuracy_mean="0.60", seeds="0", runs="better", **better),
    ]
    tables = {"dpsd": "Table I", "fedavg": "Table V"}
    entries = [
        e for e in table("dpsd", tables[method]) if (e.dataset, e.method, e.epsilon) == ("mnist", method, epsilon)
    ]
    for ordered in (rows, rows[::-1]):
        lines = comparison.compare(entries, results_of(*ordered), lambda *_: True)
        assert [line.result.runs[0].run for line in lines if line.result is not None] == ["better"]


def test_number_without_claim_matches_infinite_claim() -> None:
    found = {claimed: matching.find("mnist", "no-defence", claimed) for claimed in (None, float("inf"), 10.0)}
    assert found[None] and found[None] == found[float("inf")] and not found[10.0]


def test_claim_matches_epsilon_from_below() -> None:
    at = {claimed: matching.find("mnist", "p3gm", claimed) for claimed in (10.0, 9.966, 9.95, 10.001, 10 + 1e-12)}
    assert at[10.0] and at[9.966] == at[10.0] == at[10 + 1e-12] and not at[9.95] and not at[10.001]
    between = {claimed: matching.find("cifar10", "ts-adp", claimed) for claimed in (7.5, 7.4999, 7.517817, 7.53)}
    assert between[7.4999] == between[7.5] and between[7.517817] == between[7.53]
    assert not {entry.source for entry in between[7.5]} & {entry.source for entry in between[7.53]}
    printed = sorted({entry.epsilon for entry in load() if entry.epsilon is not None})
    assert min((b - a) / b for a, b in pairwise(printed)) > matching.CLOSE
