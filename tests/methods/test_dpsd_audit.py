"""The audit of DPSD's own responses: the ledger holds, Theorem 1 does not, and Eq. 5 as printed is refuted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame, audit
from methods.dpsd.dpsd import Dpsd
from methods.dpsd.working import WorkingDpsd

PLAYS = 60_000
QUERY_1 = Budget(1.0, account="accounted", unit=Unit.QUERY)


BOTH = pytest.mark.parametrize("variant", [Dpsd, WorkingDpsd], ids=["printed", "working"])
Variant = type[Dpsd] | type[WorkingDpsd]


def game(budget: Budget, variant: Variant = Dpsd, **fields: Any) -> DistinguishingGame:
    return variant(**fields).game(budget, "mnist", 10)


@BOTH
@pytest.mark.parametrize("loss", ["dkd", "kd"])
@pytest.mark.parametrize("bound", ["normalise", "clip"])
@pytest.mark.parametrize(("classes", "k"), [(10, 0), (10, 10), (2, 0), (100, 2)])
def test_game_worlds_are_two_beta_apart(variant: Variant, loss: str, bound: str, classes: int, k: int) -> None:
    given = {"reading": "printed"} if variant is WorkingDpsd else {}  # the paper's target, a step of 0.1 from flat
    method = variant(loss=loss, bound=bound, k=k, sigma=0.0, beta=0.01, **given)  # type: ignore[arg-type]
    played = method.game(Budget(None, solve="none"), "x", classes)
    g = torch.Generator()
    rows = [played.play(hypothesis, 3, g)[:, :classes] for hypothesis in (False, True)]
    distance = (rows[1] - rows[0]).norm(dim=1) / 0.1
    assert torch.allclose(distance, torch.tensor(0.02, dtype=torch.float64), rtol=6e-3)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize("fields", [{}, {"loss": "kd"}, {"bound": "clip"}, {"k": 10}], ids=str)
def test_audit_does_not_refute_data_mode(variant: Variant, fields: dict[str, Any]) -> None:
    played = game(QUERY_1, variant, **fields)
    found = audit(played, PLAYS)
    assert found.accounted == pytest.approx(1.0, rel=1e-3)
    assert 0.1 < found.lower_bound <= found.accounted


@pytest.mark.thorough
@BOTH
def test_audit_detects_reduced_noise(variant: Variant) -> None:
    """The same game with half of the noise, and the ledger of the whole, is refuted."""
    sound, careless = game(QUERY_1, variant), game(Budget(3.0, account="accounted", unit=Unit.QUERY), variant)
    assert audit(sound, PLAYS).lower_bound < 1
    found = audit(replace(careless, accounted=sound.accounted), PLAYS)
    assert found.verdict == "accountant refuted"


@pytest.mark.thorough
def test_audit_refutes_theorem_1() -> None:
    """epsilon 10 for 200 batches: one batch costs 0.51 by the theorem, one row by itself 2.1 by the ledger."""
    found = audit(game(Budget(10.0)), PLAYS)
    assert found.claimed == pytest.approx(0.513, abs=1e-3) and found.accounted == pytest.approx(2.117, abs=1e-3)
    assert found.claimed < found.lower_bound <= found.accounted and found.verdict == "refuted"


@pytest.mark.thorough
@BOTH
def test_audit_without_noise_refutes_nothing(variant: Variant) -> None:
    for mode in ("data", "label"):
        found = audit(game(Budget(math.inf), variant, mode=mode), 5_000)
        assert found.lower_bound == pytest.approx(found.ceiling) and math.isinf(found.claimed)
        assert found.verdict == "not refuted"


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("k", [0, 2, 10])
def test_audit_does_not_refute_label_mode(variant: Variant, epsilon: float, k: int) -> None:
    found = audit(game(Budget(epsilon), variant, mode="label", k=k), PLAYS, seed=1)
    assert found.claimed == epsilon == pytest.approx(found.accounted, rel=1e-3)
    assert 0.8 * epsilon < found.lower_bound <= epsilon and found.verdict == "not refuted"


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_audit_refutes_equation_5_as_printed(epsilon: float) -> None:
    played = game(Budget(epsilon), mode="label", response="printed")
    assert "not a candidate" in played.describe
    found = audit(played, PLAYS)
    assert found.verdict == "refuted" and found.lower_bound > epsilon + 1 and math.isinf(found.accounted)


def test_audit_does_not_refute_equation_5_over_all() -> None:
    played = game(Budget(1.0), mode="label", response="printed", k=10)
    assert audit(played, PLAYS).verdict == "not refuted"


def test_audit_uses_the_accountants_delta() -> None:
    played = game(Budget(1e-4), mode="label")
    assert played.delta == 1e-5 and played.accounted < played.claimed
    assert audit(played, 5_000).verdict == "not refuted"
