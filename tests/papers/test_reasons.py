"""Reasons why one of our numbers is below the published one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from made import board, line, printed, record
from wide_boards import results_of

from bench.papers import comparison
from bench.papers.comparison import Line
from bench.papers.printed_numbers import table
from bench.papers.reasons import CODES, reason, without_noise
from bench.storage.records import Record


def test_reason_needs_more_than_two_points() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    assert reason(line(entry, entry.value - 0.0199, method="dpdfd")) is None
    assert reason(line(entry, entry.value + 0.2, method="dpdfd")) is None
    assert reason(Line(entry, None, "not run")) is None
    found = reason(line(entry, entry.value - 0.021, method="dpdfd"))
    assert found is not None and found.code == "size"
    assert found.experiment == "bench run --method dpdfd --variant working --dataset mnist --tier paper"


def test_surest_reason_comes_first() -> None:
    dpsd, dgd = printed("dpsd", "Table I", "dpsd", 10.0), printed("dgd", "Table I", "dgd", 10.0)
    codes = [
        reason(line(dpsd, 0.5)),
        reason(line(printed("dpsd", "Table III", "dpsd", 2.0, "cifar10"), 0.1, dataset="cifar10-jpeg")),
        reason(line(printed("dgd", "Table II", "dgd", 3.0, "cifar10"), 0.1, dataset="cifar10-jpeg", method="dgd")),
        reason(line(dgd, 0.5, method="dgd")),
        reason(line(dgd, 0.5, method="dgd", variant="printed")),
        reason(line(dgd, 0.5, method="dgd", variant="printed", tier="paper")),
    ]
    assert [found and found.code for found in codes] == [
        *("information", "information", "data-subset", "unprotected-generator", "size", "unknown")
    ]
    assert {found.code for found in codes if found} | {"noise", "teacher", "learns-less"} == set(CODES)


def test_weak_teacher_is_a_reason_for_its_students() -> None:
    jpeg = {"dataset": "cifar10-jpeg", "teacher_accuracy": 0.3}
    entry = printed("dpdfd", "Table 2", "dpdfd", 2.0, "cifar10")
    rows = [line(entry, 0.1, method="dpdfd", **jpeg | {"teacher_accuracy": teacher}) for teacher in (0.3, 0.6, 0.9, "")]
    codes = [reason(row) for row in rows]
    assert [found and found.code for found in codes] == ["teacher", *["data-subset"] * 3]
    # DP-SGD trains its own network on the records: the undefended teacher is nothing to it
    sgd = printed("dpsd", "Table III", "dp-sgd", 2.0, "cifar10")
    found = reason(line(sgd, 0.1, method="dp-sgd", **jpeg))
    assert found is not None and found.code == "data-subset"


def test_reason_has_command_of_the_release() -> None:
    entry = printed("dpsd", "Table I", "dpdfd", 10.0)
    options = json.dumps({"method": {"teachers": 50.0}, "budget": {"epsilon": 10.0, "unit": "label", "solve": "none"}})
    why = [
        reason(line(entry, 0.1, method="dpdfd", options=options, teacher="resnet34", tier=t))
        for t in ("quick", "paper")
    ]
    command = "bench run --method dpdfd --variant working --dataset mnist --teacher resnet34 --tier paper"
    assert [found and (found.code, found.experiment) for found in why] == [
        ("size", f"{command} --epsilon 10 --unit label --method.teachers 50"),
        ("unknown", f"{command} --epsilon inf --unit label --method.teachers 50"),
    ]


def test_run_without_noise_explains_the_difference() -> None:
    def boards(method: str, without: float, **other: Any) -> list[Record]:
        made = {"dataset": "mnist", "claim_unit": "example", "variant": "working"}
        noisy = record(method, 0, 0.4, accounted=10.0, **made)
        options = {"budget": {"epsilon": "inf", "solve": "none"}}
        control = record(method, 0, without, budget="inf", claim="none", options=options, **made | other)
        return [noisy, control]

    def found(method: str, without: float, **other: Any) -> str:
        rows = board(*boards(method, without, **other))
        (mine, *_) = comparison.compare([printed("dpsd", "Table I", method, 10.0)], rows, lambda *_: True)
        why = reason(mine, without_noise(rows))
        assert why is not None
        return f"{why.code}: {why.experiment}"

    command = "bench run --method {} --variant working --dataset mnist --epsilon inf # {} %"
    assert found("pate-gan", 0.66) == f"noise: {command.format('pate-gan', '66.0')}"
    assert found("pate-gan", 0.60) == f"learns-less: {command.format('pate-gan', '60.0')}"
    assert found("pate-gan", 0.66, tier="standard").startswith("size: ")
    # A smaller run without noise that reaches print speaks for noise; one that does not, for nothing
    large = record("pate-gan", 0, 0.4, accounted=10.0, dataset="mnist", variant="working", tier="paper")
    for without, code in ((0.66, "noise"), (0.60, "unknown")):
        rows = board(large, boards("pate-gan", without)[1])
        (mine, *_) = comparison.compare([printed("dpsd", "Table I", "pate-gan", 10.0)], rows, lambda *_: True)
        why = reason(mine, without_noise(rows))
        assert why is not None and why.code == code
    free = {"dataset": "mnist", "claim": "none", "variant": "printed", "budget": "inf"}
    rows = board(record("fedavg", 0, 0.8, options={"budget": {"epsilon": "inf", "solve": "none"}}, **free))
    entries = [each for each in table("dpsd", "Table V") if (each.method, each.dataset) == ("fedavg", "mnist")]
    (mine,) = comparison.compare(entries, rows, lambda *_: True)
    why = reason(mine, without_noise(rows))
    assert mine.result is not None and why is not None and why.code == "size"  # nothing is its own control
    budget = json.dumps({"budget": {"epsilon": None, "solve": "none"}})
    none = replace(rows[0], release=replace(rows[0].release, options=budget))
    why = reason(Line(entries[0], none), without_noise(rows))
    assert why is not None and why.code == "size"  # no budget decides a noise of it: no more its own control
    assert found("datalens", 0.90, version=0).startswith("size: ")


def test_given_and_solved_noise_share_the_control() -> None:
    def options(**method: float) -> str:
        return json.dumps({"method": method, "budget": {"epsilon": None, "solve": "none"}})

    entry = next(e for e in table("dpdfd", "Table 5") if (e.dataset, e.ablation) == ("mnist", "sigma=50"))
    same = {"method": "dpdfd", "variant": "working", "dataset": "mnist", "tier": "quick", "split": "iid"}
    same |= {"teacher": "resnet18", "student": "datalens", "flags": ""}
    control = same | {"options": json.dumps({"budget": {"epsilon": "inf", "solve": "none"}}), "accuracy_mean": "0.97"}
    for given, code in ((options(sigma=50.0), "noise"), (options(sigma=50.0, iterations=9), "size")):
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
