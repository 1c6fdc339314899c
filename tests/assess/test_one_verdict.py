"""`bench run` and `bench assess` give the same verdict for the same evidence."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.assess.claim import Stated, check_claim
from bench.assess.numbers import Scored
from bench.assess.policy import Policy
from bench.assess.schema import AttackResult, Interval, Inversion, ModelFreeBaseline, Rate
from bench.assess.verdict import DECISIONS, Evidence, decide, gate_inversion
from bench.core import verdict as core
from bench.core.records import RunRecord

ZERO_TOLERANCE = Policy(name="as a run", auc_max=0.5, tpr_at_fpr_1pct_max=1, inversion_gain_max=0, require=("power",))
WEAKNESS = "The attack does not beat chance on the undefended teacher."


def run_finding(metrics: dict[str, float | None], power: bool) -> core.Finding:
    spec: Any = SimpleNamespace(attack=SimpleNamespace())
    status, reason = ("ok", "") if power else ("inconclusive", WEAKNESS)
    return core.decide(RunRecord.model_construct(status=status, reason=reason, metrics=metrics, spec=spec)).finding


def attack(low: float, high: float, power: bool | None) -> AttackResult:
    auc = Interval(value=(low + high) / 2, low=low, high=high)
    rate = Interval(value=0.01, low=0.0, high=0.03)
    rates = tuple(Rate(fpr=fpr, tpr=rate, needed=29) for fpr in (0.1, 0.01, 0.001))
    common: dict[str, Any] = {"name": "loss", "source": "", "reads": "", "members": 500, "others": 500}
    return AttackResult(**common, auc=auc, rates=rates, epsilon_lower=0, has_power=power)


def evidence(attacked: AttackResult, differs: bool = False, inversion: Inversion | None = None) -> Evidence:
    blind = ModelFreeBaseline(auc=0.5, p=0.5, differs=differs, clues=(), features=3, method="")
    return Evidence(500, 500, "record", (attacked,), blind, None, None, inversion)


@pytest.mark.parametrize(
    ("limits", "power", "differs"), list(product([(0.51, 0.6), (0.4, 0.5), (0.5, 0.5)], [True, False], [True, False]))
)
def test_membership(limits: tuple[float, float], power: bool, differs: bool) -> None:
    low, high = limits
    metrics = {"auc": (low + high) / 2, "auc.lo": low, "random_auc.lo": 0.6 if differs else 0.4}
    decision = decide(evidence(attack(low, high, power), differs), ZERO_TOLERANCE).decision
    assert decision == DECISIONS[run_finding(metrics, power)]  # type: ignore[index]


@pytest.mark.parametrize(
    ("gain", "p", "control", "control_p", "beats_chance"),
    list(
        product(
            [(0.1, 0.3), (-0.3, 0.0)], [None, 0.01, 0.05, 0.2], [(0.1, 0.3), (-0.3, 0.0)], [None, 0.05], [True, False]
        )
    ),
)
def test_inversion(
    gain: tuple[float, float],
    p: float | None,
    control: tuple[float, float],
    control_p: float | None,
    beats_chance: bool,
) -> None:
    metrics = {"attack_accuracy": 0.5, "above_floor.lo": gain[0], "teacher_above_floor.lo": control[0]}
    tests = {"floor_p": p, "teacher_floor_p": control_p}
    finding = run_finding(metrics | tests, beats_chance)
    found = Inversion(
        **{"attack": "", "source": "", "baseline": "", "are_classes_private": False, "classes": 10, "images": 50},
        **dict.fromkeys(("shown", "baseline_shown", "control_shown", "control_baseline_shown"), 0.5),
        gain=Interval(value=sum(gain) / 2, low=gain[0], high=gain[1]),
        p=p,
        control_gain=Interval(value=sum(control) / 2, low=control[0], high=control[1]),
        control_p=control_p,
        evaluator=Interval(value=0.9, low=0.8, high=1.0),
        beats_chance=beats_chance,
    )
    gated = gate_inversion(found, ZERO_TOLERANCE)
    required = ZERO_TOLERANCE.model_copy(update={"require": ("class-inversion",)})
    decision = decide(evidence(attack(0.4, 0.5, True), inversion=gated), required).decision
    if finding == "no-leak-found" and gain[1] > 0:
        assert decision == "cannot tell", "a policy also limits the upper confidence limit"
    else:
        assert decision == DECISIONS[finding]  # type: ignore[index]


def test_the_level_of_a_refuted_claim_is_that_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = Scored("loss", "", "", np.arange(50.0), np.arange(50.0))
    for p in (0.01, core.SIGNIFICANCE, 0.051):
        monkeypatch.setattr("bench.assess.claim.p_value", lambda *_, p=p: p)
        finding = check_claim(Stated(1.0, 0.0, "example"), "record", [scored]).finding
        assert (finding == "refuted") == core.is_significant(p)
