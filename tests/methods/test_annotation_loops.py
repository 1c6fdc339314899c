"""DPSD, DPDFD and FedDPSD: the optimisers' steps of the printed loops, dropout, and budgets without noise."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from dp_accounting import NonPrivateDpEvent
from fed_dpsd_made import federation
from loops import watched_losses

from bench import registry
from bench.api import Release
from bench.config import Variant, configure
from bench.privacy import Budget
from bench.privacy.accountant import account
from bench.testing import context, toy_teacher
from methods.dpdfd import dpdfd
from methods.dpsd import dpsd
from methods.fed_dpsd import fed_dpsd

MODULES: dict[str, ModuleType] = {"dpsd": dpsd, "dpdfd": dpdfd, "fed-dpsd": fed_dpsd}


def convert(
    name: str, variant: Variant = "printed", budget: Budget | None = None, student: str = "datalens", **given: str
) -> tuple[Any, Release]:
    """Return the method at tier smoke, and its release."""
    method: Any = configure(registry.load("method", name, variant), "smoke", given, "method", variant)
    teacher = federation(method)[0] if "teacher_ensemble" in method.needs else toy_teacher()
    torch.manual_seed(0)
    return method, method.convert(teacher, student, budget or Budget(10.0), context())


@pytest.mark.parametrize(
    ("name", "student", "given"),
    [
        ("dpsd", "shard-cnn", {"mode": "data"}),
        ("dpsd", "shard-cnn", {"mode": "label"}),
        ("dpdfd", "datalens", {"gamma": "0.3"}),
        ("dpdfd", "datalens", {"teachers": "3"}),
        ("fed-dpsd", "shard-cnn", {"mode": "data"}),
        ("fed-dpsd", "shard-cnn", {"mode": "label"}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_student_and_generator_descend_their_losses(
    name: str, student: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They alternate, on the images just annotated and their labels. Only DPSD trains z; the others draw new ones."""
    module = MODULES[name]
    steps = watched_losses(monkeypatch, module, registry.load("method", name, "printed"))
    convert(name, budget=Budget(8.0, account="accounted"), student=student, **given)
    assert [step.who for step in steps] == ["student", "generator"] * 3
    assert [step.loss for step in steps] == pytest.approx([step.by_hand for step in steps], rel=1e-4)
    for learner, generator in zip(steps[::2], steps[1::2], strict=True):
        assert torch.equal(learner.images, generator.images) and torch.equal(learner.targets, generator.targets)
        assert ((16, 100) in generator.shapes) == (name == "dpsd")
        assert (learner.rate, generator.rate) == (0.1, 0.01)
        assert not learner.dropout
    assert len(torch.cat([step.images for step in steps[::2]]).unique(dim=0)) == 3 * 16


@pytest.mark.parametrize(("mode", "dropout"), [("data", False), ("label", True)])
@pytest.mark.parametrize("name", ["dpsd", "fed-dpsd"])
def test_dropout_only_in_label_mode(name: str, mode: str, dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = watched_losses(monkeypatch, MODULES[name], registry.load("method", name, "printed"))
    convert(name, mode=mode, iterations="1")
    assert steps[0].who == "student" and steps[0].dropout == dropout


@pytest.mark.parametrize(
    ("name", "variant", "mode"),
    [
        ("dpsd", "printed", "data"),
        *[
            pytest.param(name, variant, mode, marks=pytest.mark.thorough)
            for name, variant in (("dpsd", "working"), ("fed-dpsd", "printed"), ("fed-dpsd", "working"))
            for mode in ("data", "label")
        ],
    ],
)
def test_infinite_budget_has_no_noise(name: str, variant: Variant, mode: str) -> None:
    method, release = convert(name, variant, Budget(math.inf, solve="none"), mode=mode)
    for unit in method._mechanism(4).units:
        assert all(isinstance(entry.event, NonPrivateDpEvent) for entry in release.ledger.entries(unit))
        assert math.isinf(account(release.ledger, unit, 1e-5).epsilon)
    assert release.claim is not None and math.isinf(release.claim.epsilon)
    assert release.solved.get("sigma", 0) == 0 and "answer_epsilon" not in release.solved
    assert release.solved["iterations"] == (3 if variant == "printed" else 48)
