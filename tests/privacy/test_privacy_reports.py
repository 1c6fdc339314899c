"""JSON of an account, and budgets compared with claims and accounts."""

from __future__ import annotations

import json
import math

import dp_accounting as dp
import pytest
from accountant_made import DELTA, G, cost, ledger_of

from bench.privacy import Budget, Claim, Unit
from bench.privacy.accountant import EmptyLedger, Overspent, account, check_budget


def test_accounted_to_json_is_strict_json():
    plain = json.loads(json.dumps(account(ledger_of(G(2.0)), Unit.EXAMPLE, DELTA).to_json(), allow_nan=False))
    expected = {"epsilon": cost(G(2.0)), "unit": "example", "relation": "add-or-remove", "delta": DELTA}
    assert plain == expected | {"accountant": "gaussian-closed-form", "version": plain["version"]}
    assert "dp-accounting 0." in plain["version"]
    infinite = account(ledger_of(dp.NonPrivateDpEvent()), Unit.EXAMPLE, DELTA).to_json()
    assert json.dumps(infinite, allow_nan=False)
    assert infinite["epsilon"] == "inf" and "NonPrivateDpEvent" in infinite["note"]


def claim(value: float, delta: float = DELTA) -> Claim:
    return Claim(value, delta, Unit.QUERY, "DPSD, Theorem 1")


def test_check_budget_accepts_a_claim_within_it():
    for value in (10.0, 10.0 * (1 + 1e-12)):
        check_budget(ledger_of(dp.NonPrivateDpEvent()), claim(value), Budget(epsilon=10.0))


@pytest.mark.parametrize("bad", [claim(10.001), claim(math.inf), claim(1.0, delta=1e-3)])
def test_check_budget_refuses_a_claim_over_it(bad):
    with pytest.raises(Overspent, match="Theorem 1") as caught:
        check_budget(ledger_of(G(100.0)), bad, Budget(epsilon=10.0))
    assert "\n" not in str(caught.value)


def test_check_budget_accounted_reads_the_ledger_of_its_unit():
    accounted = Budget(epsilon=10.0, account="accounted")
    check_budget(ledger_of((G(16.0), 1000)), claim(math.inf), accounted)
    with pytest.raises(Overspent, match=r"28\.8"):
        check_budget(ledger_of((G(100 / 32), 200)), claim(0.05), accounted)
    of_queries = Budget(epsilon=10.0, account="accounted", unit=Unit.QUERY)
    check_budget(ledger_of(G(16.0), unit=Unit.QUERY), None, of_queries)
    with pytest.raises(EmptyLedger):
        check_budget(ledger_of(G(16.0)), None, of_queries)


def test_check_budget_names_the_infinite_event():
    ledger = ledger_of(G(16.0))
    ledger.spend(dp.NonPrivateDpEvent(), why="the generator saw the teacher's gradients")
    with pytest.raises(Overspent, match=r"NonPrivateDpEvent.*teacher's gradients") as caught:
        check_budget(ledger, None, Budget(epsilon=10.0, account="accounted"))
    assert "\n" not in str(caught.value)
    with pytest.raises(Overspent):
        check_budget(ledger_of(G(1e-200)), None, Budget(epsilon=10.0, account="accounted"))


def test_check_budget_without_a_limit_accepts_all():
    ledger = ledger_of(dp.NonPrivateDpEvent())
    check_budget(ledger, claim(math.inf), Budget(epsilon=None, solve="none"))
    check_budget(ledger, None, Budget(epsilon=math.inf, account="accounted"))
    check_budget(ledger, None, Budget(epsilon=1.0))
