"""Variants that share a loop: options change the student, losses, committees, queries; steps of the printed ones."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from loops import planned, same_students, small_generator, watched_losses
from methods_made import Spy, convert, smoke

from bench import registry
from bench.api import Release
from bench.config import Variant
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.testing import CLASSES, SHAPE, toy_teacher
from methods.dpdfd import dpdfd
from methods.dpsd import dpsd
from methods.fed_dpsd import fed_dpsd

LOOP = (
    "rounds=4 prior=noise prior=generator evolve=0 choose=1 reading=printed jitter=off replay=false gamma_s=0.01 "
    "student_steps=7 committee=2 "
)
OPTIONS = {
    "dpsd": LOOP + "queries=60 k=2 loss=dkd,gradient_at=student bound=clip gradient_at=student copies=3 mode=label "
    "mode=label,reading=printed",
    "dpdfd": LOOP + "queries=60 bound=clip gradient_at=student shared=4",
    "dp-dfd": LOOP + "queries=60 threshold=0.9",
    "fed-dpsd": LOOP + "queries=60 mode=label mode=label,reading=printed mode=label,k=2",
}
"""Method to sets of options, each of which changes the student; the last of FedDPSD's against label mode."""
DEFAULTS = {
    "dpsd": "jitter=on,prior=auto,k=4",
    "dpdfd": "jitter=on",
    "dp-dfd": "jitter=on,threshold=0.125",
    "fed-dpsd": "jitter=on,noise_by=client",
}
"""Method to options that do not change the student of a run without noise."""
FREE, OWN = Budget(math.inf, solve="none"), Budget(None, solve="none")


def release_of(name: str, options: str = "", budget: Budget = FREE) -> Release:
    """Convert at tier smoke. The default is one student: a committee takes six times as long."""
    given = {"committee": "1"} | dict(option.split("=") for option in options.split(",") if option)
    return convert(smoke(name, "working", **given), budget=budget)


usual = cache(release_of)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=() if name == "dp-dfd" else pytest.mark.thorough)
        for name in OPTIONS
        for options in OPTIONS[name].split()
    ],
)
def test_options_change_the_student(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "mode=label" if name == "fed-dpsd" and options.startswith("mode=label,") else ""
    expected = usual(name, base)
    small_generator(monkeypatch)
    assert not same_students(expected, release_of(name, options))


@pytest.mark.parametrize(("name", "options"), DEFAULTS.items())
def test_convert_is_deterministic(name: str, options: str) -> None:
    assert same_students(usual(name, ""), release_of(name, options))


@pytest.mark.parametrize(
    ("name", "options", "loss"),
    [
        ("dpsd", "", likelihood_loss),
        ("dpsd", "mode=label", likelihood_loss),
        ("dpsd", "mode=label,reading=printed", likelihood_loss),
        ("dpsd", "reading=printed", F.cross_entropy),
        ("dpdfd", "", likelihood_loss),
        ("dpdfd", "reading=printed", F.cross_entropy),
        ("fed-dpsd", "", likelihood_loss),
        ("fed-dpsd", "reading=printed", F.cross_entropy),
    ],
)
def test_loss_depends_on_the_reading(name: str, options: str, loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = planned(monkeypatch)
    release_of(name, options, OWN)
    assert trained[0][1] is loss


@pytest.mark.parametrize(("mode", "epsilon", "members"), [("label", 1.0, 3), ("label", 1.2, 1), ("data", 1.0, 1)])
@pytest.mark.parametrize("name", ["dpsd", "fed-dpsd", "dp-dfd"])
def test_committee_is_used_for_mostly_wrong_responses(
    name: str, mode: str, epsilon: float, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four classes e^epsilon / (e^epsilon + 3) is below 1/2 up to ln 3 = 1.1; this does not apply to gradients."""
    options = f"mode={mode},queries=5000"
    if name == "dp-dfd":  # label mode only
        options, members = "queries=5000", 3 if epsilon == 1.0 else 1
    trained = planned(monkeypatch)
    release_of(name, f"{options},committee=0,answer_epsilon={epsilon}", OWN)
    assert (trained[0][0].members, trained[0][0].queries) == (members, 5000)


MODULES: dict[str, ModuleType] = {"dpsd": dpsd, "dpdfd": dpdfd, "fed-dpsd": fed_dpsd}


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
    convert(smoke(name, **given), None, Budget(8.0, account="accounted"), student)
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
    convert(smoke(name, mode=mode, iterations="1"))
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
    method = smoke(name, variant, mode=mode)
    release = convert(method, budget=FREE)
    for unit in method._mechanism(4).units:
        assert all(isinstance(entry.event, NonPrivateDpEvent) for entry in release.ledger.entries(unit))
        assert math.isinf(account(release.ledger, unit, 1e-5).epsilon)
    assert release.claim is not None and math.isinf(release.claim.epsilon)
    assert release.solved.get("sigma", 0) == 0 and "answer_epsilon" not in release.solved
    assert release.solved["iterations"] == (3 if variant == "printed" else 48)


@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["auto", "generator"])
@pytest.mark.parametrize(
    ("name", "mode", "solved", "buckets"),
    [
        ("dpsd", "data", {"iterations": 50, "beta": 5e-3}, None),
        ("dpsd", "label", {"iterations": 50}, CLASSES),
        ("dpdfd", "", {"iterations": 50, "norm_bound": 5e-3}, None),
        ("dp-dfd", "", {"answers": 50}, 2),
    ],
)
def test_ledger_counts_the_teachers_queries(
    name: str, mode: str, solved: dict[str, float], buckets: int | None, prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many candidates are looked at, and however many steps student and generator take."""
    small_generator(monkeypatch)
    toy, given = toy_teacher(), {"queries": "50", "choose": "3", "student_steps": "9", "prior": prior}
    spy = Spy(toy.model)
    release = convert(smoke(name, "working", **given, **({"mode": mode} if mode else {})), replace(toy, model=spy))
    assert sum(spy.queried) == 50 == len(torch.cat(spy.seen).unique(dim=0)), "once about every image"
    assert spy.with_gradient == 0, "neither student nor generator may learn from the teacher itself"
    (entry,), (once,) = (release.ledger.entries(unit) for unit in (Unit.EXAMPLE, Unit.QUERY))
    assert (entry.count, once.count, once.event) == (50, 1, entry.event)
    noise = GaussianDpEvent(release.solved["sigma"] / 2) if buckets is None else buckets
    assert noise == (entry.event if buckets is None else entry.event.num_buckets)
    assert solved.items() <= release.solved.items() and release.generator is None
    assert release.synthetic is not None and release.synthetic.shape in ((16, *SHAPE), (17, *SHAPE)), "of three rounds"
    assert release.claim is not None and 9.99 < release.claim.epsilon <= 10
