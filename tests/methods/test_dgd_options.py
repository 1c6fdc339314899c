"""Options of DGD: all run, the ensemble is the paper's or suits the data, and impossible ones are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dgd_made import convert, learning, printed, teacher

from bench.config import configure
from bench.errors import BenchError
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, context
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking

BOTH = [Dgd, DgdWorking]


ACCOUNTED = Budget(3.0, account="accounted")


@pytest.mark.parametrize(
    ("method", "budget", "says"),
    [
        (printed(), ACCOUNTED, "--variant working"),
        (printed(images="private"), ACCOUNTED, "private images train the student.*--variant working"),
        (learning(prior="baseline"), ACCOUNTED, "use another --method.prior"),
        (learning(prior="none"), Budget(3.0), "none"),
        (printed(), Budget(3.0, unit=Unit.CLIENT), "per example or per query"),
        (learning(), Budget(3.0, unit=Unit.CLIENT), "per example or per query"),
        (printed(), Budget(40.0, solve="steps"), "raise --method.synthetic"),
    ],
)
def test_unreachable_budget_is_refused_by_check(method: Dgd | DgdWorking, budget: Budget, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        method.check(budget, "digits", CLASSES)


@pytest.mark.parametrize("method", [printed(), learning(prior="baseline")])
@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_plan_without_finite_budget_is_not_refused(method: Dgd | DgdWorking, epsilon: float | None) -> None:
    plan = method.plan(Budget(epsilon, account="accounted", solve="none"), "digits")
    assert plan.aggregation.scale == (method.scale if epsilon is None else 0)


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (Dgd, {"step_size": "0"}),
        (Dgd, {"queries": "40"}),
        (Dgd, {"teachers": "0"}),
        (Dgd, {"code_epsilon": "-1"}),
        (DgdWorking, {"evolve": "1"}),
        (DgdWorking, {"choose": "0.5"}),
        (DgdWorking, {"teachers": "-1"}),
        (DgdWorking, {"rounds": "-1"}),
        (DgdWorking, {"early": "1.5"}),
        (DgdWorking, {"energy": "-1"}),
    ],
)
def test_option_out_of_range_is_refused(cls: type[Any], given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match="expected"):
        configure(cls, "smoke", given, "method")


@pytest.mark.parametrize(
    "method",
    [
        printed(aggregation="gaussian", follow="equations", code_epsilon="0.01"),
        printed(generator_steps="0"),
        printed(synthetic="257", step_size="0.1"),
        learning(reading="argmax", jitter="no"),
        learning(prior="generator", rounds="1"),
        learning(early="0"),
        learning(evolve="0", choose="1"),
    ],
    ids=repr,
)
def test_options_run(method: Dgd | DgdWorking) -> None:
    release = convert(method, budget=Budget(50.0))
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.ledger.entries(Unit.EXAMPLE)


@pytest.mark.parametrize("cls", BOTH)
def test_convert_reports_complete_progress(cls: type[Any]) -> None:
    told: list[int] = []
    totals: list[int] = []

    class Counting:
        def __enter__(self) -> Callable[[int], None]:
            return told.append

        def __exit__(self, *_: Any) -> None:
            pass

    def track(stage: str, total: int) -> Counting:
        totals.append(total)
        return Counting()

    torch.manual_seed(0)
    method = configure(cls, "smoke", {}, "method")
    method.convert(teacher(), "datalens", Budget(10.0), replace(context(), track=track))
    assert sum(totals) == sum(told) > 0


def test_shards_are_the_papers() -> None:
    shards = Dgd().shards("resnet18", "mnist")
    assert (shards.count, shards.archs, shards.steps, shards.batch) == (250, ("dgd-cnn",), 3000, 128)
    assert (shards.lr, shards.shift) == (0.05, 0)
    assert DgdWorking().shards("resnet18", "mnist").count == 250
    for method in (Dgd(), DgdWorking()):
        assert replace(method, teacher_net="same").shards("resnet18", "mnist").archs == ("resnet18",)


@pytest.mark.parametrize(("dataset", "count", "net"), [("digits", 48, "shard-cnn"), ("mnist", 500, "scatter-linear")])
def test_shards_of_tier_quick_depend_on_the_data_set(dataset: str, count: int, net: str) -> None:
    shards = configure(DgdWorking, "quick", {}, "method").shards("resnet18", dataset)
    assert (shards.count, shards.archs) == (count, (net,))
