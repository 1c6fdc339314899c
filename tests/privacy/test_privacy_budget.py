from __future__ import annotations

import json
import math
import subprocess
import sys

import dp_accounting as dp
import pytest
from accountant_made import DELTA, G, cost, ledger_of

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Unit
from bench.privacy.accountant import EmptyLedger, Overspent, account, check_budget
from bench.privacy.budget import epsilon_from_json, epsilon_to_json


@pytest.mark.parametrize(
    "given",
    [{"epsilon": bad} for bad in (0, 0.0, -1.0, math.nan, -math.inf, None)]
    + [{"delta": bad} for bad in (0.0, 1.0, -1e-5, 2.0, math.nan)]
    + [{"account": "acounted"}, {"solve": "noise"}, {"unit": "exmple"}],
    ids=str,
)
def test_budget_refuses_an_invalid_value(given):
    with pytest.raises(BenchError, match=next(iter(given))):
        Budget(**given)


def test_budget_may_be_infinite_or_absent():
    assert Budget(epsilon=math.inf).epsilon == math.inf
    assert Budget(epsilon=None, solve="none").epsilon is None


def test_budget_and_claim_accept_a_units_name():
    assert Budget(unit="label").unit is Unit.LABEL
    assert Claim(1.0, 0.0, "query", "x").unit is Unit.QUERY


def test_claim_to_json_is_strict_json():
    finite = Claim(1.5, 1e-5, Unit.QUERY, "DPSD, Theorem 1").to_json()
    assert finite == {"epsilon": 1.5, "delta": 1e-5, "unit": "query", "source": "DPSD, Theorem 1"}
    infinite = json.loads(json.dumps(Claim(math.inf, 0.0, Unit.NONE, "none").to_json(), allow_nan=False))
    assert infinite["epsilon"] == "inf" and math.isinf(epsilon_from_json(infinite["epsilon"]))


@pytest.mark.parametrize("given", [None, "1", "nan", "Inf", True, math.nan, math.inf, 10**400, [1.0], {}])
def test_epsilon_from_json_refuses_other_values(given):
    with pytest.raises(ValueError):
        epsilon_from_json(given)


@pytest.mark.parametrize("epsilon", [math.nan, -math.inf])
def test_epsilon_to_json_refuses_other_values(epsilon):
    with pytest.raises(ValueError):
        epsilon_to_json(epsilon)


@pytest.mark.parametrize("epsilon", [0.0, 1.5, 1e300, math.inf])
def test_epsilon_round_trips_through_json(epsilon):
    assert epsilon_from_json(json.loads(json.dumps(epsilon_to_json(epsilon), allow_nan=False))) == epsilon


@pytest.mark.parametrize("epsilon, delta", [(-0.1, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, math.nan), (1.0, -0.1)])
def test_claim_refuses_an_invalid_value(epsilon, delta):
    with pytest.raises(BenchError):
        Claim(epsilon, delta, Unit.QUERY, "x")


def test_importing_bench_privacy_is_light():
    heavy = "{'torch', 'scipy', 'numpy', 'dp_accounting'}"
    code = f"import sys, bench.privacy; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


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
