"""Policies are read strictly; verdicts follow from numbers, tests and the policy, as those of `bench run`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.assess.claim import Stated, check_claim
from bench.assess.numbers import Scored
from bench.assess.policy import Policy, read_policy, shipped
from bench.assess.schema import AttackResult, Claim, Interval, Inversion, ModelFreeBaseline, Rate
from bench.assess.verdict import DECISIONS, Evidence, decide, gate_inversion
from bench.core import verdict as core
from bench.core.records import RunRecord
from bench.errors import BenchError

RESEARCH = read_policy("research")


def attack(auc: tuple[float, float, float], tpr: tuple[float, float, float] | None, power: bool | None) -> AttackResult:
    value, low, high = auc
    rate = None if tpr is None else Interval(value=tpr[0], low=tpr[1], high=tpr[2])
    none = Rate(fpr=0.001, tpr=None, needed=2995)
    rates = (Rate(fpr=0.1, tpr=None, needed=29), Rate(fpr=0.01, tpr=rate, needed=299), none)
    interval = Interval(value=value, low=low, high=high)
    common = {"name": "loss", "source": "", "reads": "loss", "members": 500, "others": 500, "epsilon_lower": 0.5}
    return AttackResult(**common, auc=interval, rates=rates, has_power=power)


WEAK = attack((0.51, 0.48, 0.54), (0.01, 0.0, 0.03), True)
SILENT = ModelFreeBaseline(auc=0.5, p=0.5, differs=False, clues=(), features=3, method="")
EVIDENCE = Evidence(500, 500, "record", (WEAK,), SILENT, None, None)
REFUTED = Claim(epsilon=1, delta=0, unit="example", finding="refuted", p=0.01, sentence="Claim refuted: x.")


@pytest.mark.parametrize(
    ("changes", "decision", "word"),
    [
        ({}, "release", "No evidence of leakage"),
        ({"attacks": (attack((0.7, 0.61, 0.8), (0.01, 0, 0.03), True),)}, "do not release", "AUC 0.700"),
        ({"attacks": (attack((0.52, 0.5, 0.54), (0.09, 0.06, 0.12), None),)}, "do not release", "9.0%"),
        ({"attacks": (attack((0.58, 0.55, 0.61), (0.01, 0, 0.03), True),)}, "cannot tell", "may be above 0.6"),
        ({"attacks": (attack((0.51, 0.48, 0.54), (0.02, 0, 0.06), True),)}, "cannot tell", "above 5.0%"),
        ({"attacks": (attack((0.51, 0.48, 0.54), None, True),)}, "cannot tell", "299 non-members"),
        ({"attacks": (attack((0.51, 0.48, 0.54), (0.01, 0, 0.03), None),)}, "cannot tell", "unprotected copy"),
        ({"attacks": (attack((0.51, 0.48, 0.54), (0.01, 0, 0.03), False),)}, "cannot tell", "cannot tell here"),
        ({"attacks": (attack((0.9, 0.8, 1.0), (0.5, 0.4, 0.6), None),)}, "do not release", "AUC"),
        ({"members": 299}, "cannot tell", "fewer than the 300"),
        ({"blind": None}, "cannot tell", "baseline without the model"),
        ({"blind": SILENT.model_copy(update={"differs": True, "clues": ("age",)})}, "cannot tell", "mostly by age"),
        ({"claim": REFUTED}, "do not release", "Claim refuted: x."),
    ],
)
def test_verdict(changes: dict[str, object], decision: str, word: str) -> None:
    found = decide(replace(EVIDENCE, **changes), RESEARCH)  # type: ignore[arg-type]
    assert found.decision == decision and any(word in reason for reason in found.reasons), found


def test_sets_that_differ_come_before_any_leak() -> None:
    leaking = attack((0.9, 0.8, 1.0), (0.5, 0.4, 0.6), True)
    differs = SILENT.model_copy(update={"differs": True})
    assert decide(replace(EVIDENCE, attacks=(leaking,), blind=differs), RESEARCH).decision == "cannot tell"


def test_requirements_of_a_policy() -> None:
    lira = RESEARCH.model_copy(update={"require": ("lira",)})
    assert "lira did not run" in decide(EVIDENCE, lira).reasons[0]
    bounded = RESEARCH.model_copy(update={"epsilon_lower_max": 0.4})
    assert decide(EVIDENCE, bounded).decision == "do not release"
    health = read_policy("health")
    assert any("--groups" in reason for reason in decide(EVIDENCE, health).reasons)
    assert decide(replace(EVIDENCE, unit="group", members=1000, others=1000), health).decision == "release"
    lenient = RESEARCH.model_copy(update={"epsilon_claim_must_hold": False})
    assert decide(replace(EVIDENCE, claim=REFUTED), lenient).decision == "release"


Pair = tuple[float, float]


def inversion(
    gain: Pair, control: Pair, beats_chance: bool, p: float | None = None, control_p: float | None = None
) -> Inversion:
    return Inversion(
        **{
            "attack": "pca-mi",
            "source": "",
            "baseline": "b",
            "are_classes_private": False,
            "classes": 10,
            "images": 50,
        },
        **dict.fromkeys(("shown", "baseline_shown", "control_shown", "control_baseline_shown"), 0.5),
        gain=Interval(value=sum(gain) / 2, low=gain[0], high=gain[1]),
        p=p,
        control_gain=Interval(value=sum(control) / 2, low=control[0], high=control[1]),
        control_p=control_p,
        evaluator=Interval(value=0.9, low=0.8, high=1.0),
        beats_chance=beats_chance,
        reason="" if beats_chance else "weak",
    )


STRONG, FEEBLE = (0.3, 0.5), (0.15, 0.5)
"""Gains on the control that are significantly above 0.2, the limit of `research`, and that are not."""


@pytest.mark.parametrize(
    ("gain", "control", "beats_chance", "decision", "if_required"),
    [
        ((0.25, 0.5), STRONG, True, "do not release", "do not release"),
        ((0.1, 0.3), STRONG, True, "cannot tell", "cannot tell"),
        ((-0.5, 0.2), STRONG, True, "release", "release"),
        ((0.25, 0.5), FEEBLE, True, "cannot tell", "cannot tell"),
        ((-0.5, 0.2), FEEBLE, True, "release", "cannot tell"),
        ((-0.5, 0.2), STRONG, False, "release", "cannot tell"),
    ],
)
def test_limit_on_class_inversion(
    gain: Pair, control: Pair, beats_chance: bool, decision: str, if_required: str
) -> None:
    found = replace(EVIDENCE, inversion=gate_inversion(inversion(gain, control, beats_chance), RESEARCH))
    assert decide(found, RESEARCH).decision == decision
    required = RESEARCH.model_copy(update={"require": (*RESEARCH.require, "class-inversion")})
    assert decide(found, required).decision == if_required
    assert decide(EVIDENCE, required).decision == "cannot tell"
    assert decide(found, RESEARCH.model_copy(update={"inversion_gain_max": None})).decision == "release"


def test_shipped_policies() -> None:
    assert shipped() == ["health", "research"]
    research, health = read_policy("research"), read_policy("health")
    assert (research.auc_max, research.tpr_at_fpr_1pct_max, research.min_members) == (0.6, 0.05, 300)
    assert (research.inversion_gain_max, health.inversion_gain_max) == (0.2, 0.1)
    assert (health.auc_max, health.tpr_at_fpr_1pct_max, health.min_members, health.unit) == (0.55, 0.03, 1000, "group")


GOOD = 'name = "a"\nauc_max = 0.6\ntpr_at_fpr_1pct_max = 0.05\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no table [policy]"]),
        ("[policy\n", ["not TOML"]),
        (f"[policy]\n{GOOD}auc_maxx = 1\n", ["unknown key 'auc_maxx'", "'auc_max'"]),
        (f"[policy]\n{GOOD}[other]\n", ["table 'other'"]),
        ('[policy]\nname = "a"\nauc_max = 1.5\ntpr_at_fpr_1pct_max = 0.05\n', ["auc_max"]),
        ('[policy]\nname = "a"\nauc_max = 0.6\n', ["tpr_at_fpr_1pct_max"]),
        (f'[policy]\n{GOOD}require = ["liraa"]\n', ["unknown test 'liraa'", "'lira'"]),
        (f"[policy]\n{GOOD}min_members = 10\n", ["min_members"]),
        (f"[policy]\n{GOOD}inversion_gain_max = 1.5\n", ["inversion_gain_max"]),
    ],
)
def test_bad_policies_are_refused_in_one_line(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(BenchError) as found:
        read_policy(path)
    assert "\n" not in str(found.value) and all(part in str(found.value) for part in parts), found.value


def test_a_users_policy_and_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f"[policy]\n{GOOD}require = []\n")
    assert read_policy(path) == Policy(name="a", auc_max=0.6, tpr_at_fpr_1pct_max=0.05, require=())
    with pytest.raises(BenchError, match=r"no policy 'none\.toml'; give health or research"):
        read_policy("none.toml")


# The same verdict as that of a run

ZERO_TOLERANCE = Policy(name="as a run", auc_max=0.5, tpr_at_fpr_1pct_max=1, inversion_gain_max=0, require=("power",))
WEAKNESS = "The attack does not beat chance on the undefended teacher."


def run_finding(metrics: dict[str, float | None], power: bool) -> core.Finding:
    spec: Any = SimpleNamespace(attack=SimpleNamespace())
    status, reason = ("ok", "") if power else ("inconclusive", WEAKNESS)
    return core.decide(RunRecord.model_construct(status=status, reason=reason, metrics=metrics, spec=spec)).finding


@pytest.mark.parametrize(
    ("limits", "power", "differs"), list(product([(0.51, 0.6), (0.4, 0.5), (0.5, 0.5)], [True, False], [True, False]))
)
def test_membership_verdict_is_that_of_a_run(limits: Pair, power: bool, differs: bool) -> None:
    low, high = limits
    metrics = {"auc": (low + high) / 2, "auc.lo": low, "random_auc.lo": 0.6 if differs else 0.4}
    attacked = attack((sum(limits) / 2, low, high), (0.01, 0.0, 0.03), power)
    blind = SILENT.model_copy(update={"differs": differs})
    decision = decide(replace(EVIDENCE, attacks=(attacked,), blind=blind), ZERO_TOLERANCE).decision
    assert decision == DECISIONS[run_finding(metrics, power)]  # type: ignore[index]


@pytest.mark.parametrize(
    ("gain", "p", "control", "control_p", "beats_chance"),
    list(
        product(
            [(0.1, 0.3), (-0.3, 0.0)], [None, 0.01, 0.05, 0.2], [(0.1, 0.3), (-0.3, 0.0)], [None, 0.05], [True, False]
        )
    ),
)
def test_inversion_verdict_is_that_of_a_run(
    gain: Pair, p: float | None, control: Pair, control_p: float | None, beats_chance: bool
) -> None:
    metrics = {"attack_accuracy": 0.5, "above_floor.lo": gain[0], "teacher_above_floor.lo": control[0]}
    tests = {"floor_p": p, "teacher_floor_p": control_p}
    finding = run_finding(metrics | tests, beats_chance)
    gated = gate_inversion(inversion(gain, control, beats_chance, p, control_p), ZERO_TOLERANCE)
    required = ZERO_TOLERANCE.model_copy(update={"require": ("class-inversion",)})
    attacked = attack((0.45, 0.4, 0.5), (0.01, 0.0, 0.03), True)
    decision = decide(replace(EVIDENCE, attacks=(attacked,), inversion=gated), required).decision
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
