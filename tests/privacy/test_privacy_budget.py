from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from bench.errors import BenchError
from bench.privacy import Budget, Claim, Unit
from bench.privacy.budget import epsilon_from_json, epsilon_to_json


def test_default_budget_is_the_documented_one():
    budget = Budget()
    assert (budget.epsilon, budget.delta, budget.account, budget.solve) == (10.0, 1e-5, "claimed", "sigma")
    assert budget.unit is Unit.EXAMPLE


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, math.nan, -math.inf])
def test_bad_epsilon_is_refused(epsilon):
    with pytest.raises(BenchError, match="epsilon"):
        Budget(epsilon=epsilon)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_bad_delta_is_refused(delta):
    with pytest.raises(BenchError, match="delta"):
        Budget(delta=delta)


def test_infinite_budget_stands_and_no_budget_has_nothing_to_solve():
    assert Budget(epsilon=math.inf).epsilon == math.inf
    assert Budget(epsilon=None, solve="none").epsilon is None
    with pytest.raises(BenchError, match="without an epsilon"):
        Budget(epsilon=None)


@pytest.mark.parametrize("wrong", [{"account": "acounted"}, {"solve": "noise"}, {"unit": "exmple"}])
def test_unknown_words_are_refused_with_a_suggestion(wrong):
    with pytest.raises(BenchError, match="Did you mean"):
        Budget(**wrong)


def test_a_unit_given_by_name_becomes_a_unit():
    assert Budget(unit="label").unit is Unit.LABEL
    assert Claim(1.0, 0.0, "query", "x").unit is Unit.QUERY


def test_claim_json_is_strict_json_even_when_infinite():
    finite = Claim(1.5, 1e-5, Unit.QUERY, "DPSD, Theorem 1").to_json()
    assert finite == {"epsilon": 1.5, "delta": 1e-5, "unit": "query", "source": "DPSD, Theorem 1"}
    infinite = json.loads(json.dumps(Claim(math.inf, 0.0, Unit.NONE, "none").to_json(), allow_nan=False))
    assert infinite["epsilon"] == "inf" and math.isinf(epsilon_from_json(infinite["epsilon"]))


@pytest.mark.parametrize("given", [None, "1", "nan", "Inf", True, math.nan, math.inf, [1.0], {}])
def test_nothing_but_a_number_or_inf_is_an_epsilon_in_a_file(given):
    with pytest.raises(ValueError, match="is not an epsilon"):
        epsilon_from_json(given)


@pytest.mark.parametrize("epsilon", [0.0, 1.5, 1e300, math.inf])
def test_an_epsilon_survives_json(epsilon):
    assert epsilon_from_json(json.loads(json.dumps(epsilon_to_json(epsilon), allow_nan=False))) == epsilon


def test_nan_is_never_written_as_an_epsilon():
    with pytest.raises(ValueError, match="NaN"):
        epsilon_to_json(math.nan)


@pytest.mark.parametrize("epsilon, delta", [(-0.1, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, math.nan), (1.0, -0.1)])
def test_impossible_claims_are_refused(epsilon, delta):
    with pytest.raises(BenchError):
        Claim(epsilon, delta, Unit.QUERY, "x")


def test_the_package_alone_imports_nothing_heavy():
    heavy = "{'torch', 'scipy', 'numpy', 'dp_accounting'}"
    code = f"import sys, bench.privacy; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
