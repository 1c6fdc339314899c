"""The working variants that share the loop: every option changes the student, losses, and committees."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fed_dpsd_made import federation
from loops import planned, same_students, small_generator

from bench import registry
from bench.api import Release
from bench.config import configure
from bench.distillation.transcription.likelihoods import likelihood_loss
from bench.privacy import Budget
from bench.testing import context, toy_teacher

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


def convert(name: str, options: str = "", budget: Budget = FREE) -> Release:
    """Convert at tier smoke. The default is one student: a committee takes six times as long."""
    given = {"committee": "1"} | dict(option.split("=") for option in options.split(",") if option)
    method: Any = configure(registry.load("method", name, "working"), "smoke", given, "method", "working")
    teacher = federation(method)[0] if "teacher_ensemble" in method.needs else toy_teacher()
    torch.manual_seed(0)
    return method.convert(teacher, "datalens", budget, context())


usual = cache(convert)


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
    assert not same_students(expected, convert(name, options))


@pytest.mark.parametrize(("name", "options"), DEFAULTS.items())
def test_convert_is_deterministic(name: str, options: str) -> None:
    assert same_students(usual(name, ""), convert(name, options))


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
    convert(name, options, OWN)
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
    convert(name, f"{options},committee=0,answer_epsilon={epsilon}", OWN)
    assert (trained[0][0].members, trained[0][0].queries) == (members, 5000)
