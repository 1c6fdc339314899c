"""Options of DGD: all run, the ensemble is the paper's or suits the data, and impossible ones are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dgd_made import convert, learning, printed

from bench.config import configure
from bench.privacy import Budget, Unit
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking

BOTH = [Dgd, DgdWorking]


@pytest.mark.parametrize("method", [printed(), learning(prior="baseline")])
@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_plan_without_finite_budget_is_not_refused(method: Dgd | DgdWorking, epsilon: float | None) -> None:
    plan = method.plan(Budget(epsilon, account="accounted", solve="none"), "digits")
    assert plan.aggregation.scale == (method.scale if epsilon is None else 0)


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
