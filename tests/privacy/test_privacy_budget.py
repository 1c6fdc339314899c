from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Unit
from bench.privacy.budget import epsilon_from_json, epsilon_to_json


def test_budget_defaults():
    budget = Budget()
    assert (budget.epsilon, budget.delta, budget.account, budget.solve) == (10.0, 1e-5, "claimed", "sigma")
    assert budget.unit is Unit.EXAMPLE


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


@pytest.mark.parametrize("given", [None, "1", "nan", "Inf", True, math.nan, math.inf, [1.0], {}])
def test_epsilon_from_json_refuses_other_values(given):
    with pytest.raises(ValueError):
        epsilon_from_json(given)
    with pytest.raises(ValueError, match="NaN"):
        epsilon_to_json(math.nan)


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
