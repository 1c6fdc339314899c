"""The statements of an account, and budgets compared with claims and accounts."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import pytest
from accountant_made import DELTA, G, cost, ledger_of

from bench.privacy import Budget, Claim, Unit
from bench.privacy.accountant import Accounted, EmptyLedger, Overspent, account, check_budget

# Reports and budgets


def test_accounted_json_is_strict_json():
    plain = json.loads(json.dumps(account(ledger_of(G(2.0)), Unit.EXAMPLE, DELTA).to_json(), allow_nan=False))
    assert plain["epsilon"] == cost(G(2.0))
    assert isinstance(plain["epsilon"], float)
    assert (plain["unit"], plain["relation"], plain["delta"]) == ("example", "add-or-remove", DELTA)
    assert plain["accountant"] == "gaussian-closed-form"
    assert "dp-accounting 0." in plain["version"]
    infinite = account(ledger_of(dp.NonPrivateDpEvent()), Unit.EXAMPLE, DELTA).to_json()
    assert json.dumps(infinite, allow_nan=False)
    assert infinite["epsilon"] == "inf"
    assert "NonPrivateDpEvent" in infinite["note"]
    assert "note" not in plain
    assert isinstance(account(ledger_of(G(2.0)), Unit.EXAMPLE, DELTA), Accounted)


def claim(value: float, delta: float = DELTA) -> Claim:
    return Claim(value, delta, Unit.QUERY, "DPSD, Theorem 1")


def test_a_claim_within_its_budget_passes_whatever_the_ledger_proves():
    check_budget(ledger_of(dp.NonPrivateDpEvent()), claim(10.0), Budget(epsilon=10.0))
    check_budget(ledger_of(dp.NonPrivateDpEvent()), claim(10.0 * (1 + 1e-12)), Budget(epsilon=10.0))


@pytest.mark.parametrize("bad", [claim(10.001), claim(math.inf), claim(1.0, delta=1e-3)])
def test_a_claim_over_its_budget_raises(bad):
    with pytest.raises(Overspent, match="Theorem 1") as caught:
        check_budget(ledger_of(G(100.0)), bad, Budget(epsilon=10.0))
    assert "\n" not in str(caught.value)


def test_an_accounted_budget_reads_the_ledger_and_not_the_claim():
    accounted = Budget(epsilon=10.0, account="accounted")
    check_budget(ledger_of((G(16.0), 1000)), claim(math.inf), accounted)
    with pytest.raises(Overspent, match=r"28\.8"):
        check_budget(ledger_of((G(100 / 32), 200)), claim(0.05), accounted)


def test_an_infinite_account_names_the_event():
    ledger = ledger_of(G(16.0))
    ledger.spend(dp.NonPrivateDpEvent(), why="the generator saw the teacher's gradients")
    with pytest.raises(Overspent, match=r"NonPrivateDpEvent.*teacher's gradients") as caught:
        check_budget(ledger, None, Budget(epsilon=10.0, account="accounted"))
    assert "\n" not in str(caught.value)
    with pytest.raises(Overspent, match="noise is too small"):
        check_budget(ledger_of(G(1e-200)), None, Budget(epsilon=10.0, account="accounted"))


def test_an_accounted_budget_reads_its_own_unit():
    budget = Budget(epsilon=10.0, account="accounted", unit=Unit.QUERY)
    check_budget(ledger_of(G(16.0), unit=Unit.QUERY), None, budget)
    with pytest.raises(EmptyLedger):
        check_budget(ledger_of(G(16.0)), None, budget)


def test_no_budget_and_an_infinite_one_refuse_nothing():
    ledger = ledger_of(dp.NonPrivateDpEvent())
    check_budget(ledger, claim(math.inf), Budget(epsilon=None, solve="none"))
    check_budget(ledger, None, Budget(epsilon=math.inf, account="accounted"))
    check_budget(ledger, None, Budget(epsilon=1.0))
