"""`bench.account` agrees with closed forms and with published values; `bench.compose` with the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Type
from scipy.optimize import brentq
from scipy.stats import norm

import bench
from bench.errors import BadOption, BenchError, BudgetError, NotFound


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The exact epsilon of one Gaussian of sensitivity 1 (Balle and Wang, ICML 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) - delta

    return brentq(excess, 0, 100)


@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 1), (4.0, 1), (20.0, 25), (100.0, 400)])
def test_account_of_gaussians_is_the_closed_form(sigma: float, steps: int) -> None:
    found = bench.account(sigma=sigma, steps=steps, delta=1e-5)
    assert found.epsilon == pytest.approx(gaussian_epsilon(sigma / math.sqrt(steps), 1e-5), rel=1e-4)
    assert (found.sigma, found.steps, found.unit, found.relation) == (sigma, steps, "example", "add-or-remove")


def test_account_of_dp_sgd_is_near_the_published_value() -> None:
    """The tutorial of TensorFlow Privacy: MNIST, 60 passes of batches of 256, noise 1.1: epsilon 2.92 by moments."""
    found = bench.account(sigma=1.1, rate=256 / 60000, steps=14062, delta=1e-5)
    assert 2.3 < found.epsilon < 2.92 and found.accountant == "pld"


@pytest.mark.parametrize("given", [{"rate": 1.0}, {"rate": 0.01, "steps": 500}, {"unit": "label"}], ids=str)
def test_noise_for_an_epsilon_is_minimal(given: dict[str, Any]) -> None:
    found = bench.account(epsilon=1.5, **given)
    assert found.epsilon <= 1.5 < bench.account(sigma=found.sigma / 1.002, **given).epsilon


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((BadOption, given) for given in (
            {}, {"sigma": 1, "epsilon": 1}, {"sigma": 0}, {"sigma": math.nan}, {"sigma": "1"}, {"epsilon": math.inf},
            {"epsilon": -1}, {"sigma": 1, "rate": 0}, {"sigma": 1, "rate": 1.5}, {"sigma": 1, "steps": 0},
            {"sigma": 1, "steps": 1.5},
        )),
        *((BenchError, {"sigma": 1} | given) for given in ({"delta": 0}, {"delta": 2}, {"unit": "person"})),
    ],
    ids=str,
)  # fmt: skip
def test_account_refuses_bad_input(kind: type[BenchError], given: dict[str, Any]) -> None:
    with pytest.raises(kind):
        bench.account(**given)


def test_compose_refuses_bad_input(tmp_path: Path) -> None:
    for folders, delta, kind in (([tmp_path], 1, BudgetError), ([tmp_path], None, BenchError), ([], None, NotFound)):
        with pytest.raises(kind):
            bench.compose(folders, delta=delta)


@pytest.mark.thorough
def test_compose_agrees_with_the_command(tmp_path: Path, typed: Type) -> None:
    for epsilon in (1, 2):
        bench.run("rr", epsilon=epsilon, noise="os", tier="smoke", teacher="datalens", out=tmp_path)
    (composed,) = [each for each in bench.compose([tmp_path]) if each.unit == "label"]
    assert composed.proved is not None and len(composed.of) == 2 and composed.proved.epsilon == pytest.approx(3)
    assert "2 releases, epsilon 3 at delta" in typed("account --releases", tmp_path).out
