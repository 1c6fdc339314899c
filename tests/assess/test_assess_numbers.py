"""Limits of the numbers: they hold without leak, correct for the number of attacks, and refuse the unmeasurable."""

from __future__ import annotations

import numpy as np
import pytest

from bench.assess.epsilon import lower_bound, p_value
from bench.assess.limits import limit_lines, limits_of
from bench.assess.numbers import combine, group_bootstrap, levels_for, measure, needed_for


def normal(n: int, shift: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, n)


def test_numbers_of_a_known_shift() -> None:
    found = measure(normal(4000, 1, 0), normal(4000, 0, 1), 1e-5, 1)
    assert found.auc.low < 0.7602 < found.auc.high, "Phi(1 / sqrt(2))"
    at_10, at_1, at_01 = found.rates
    for rate, true in ((at_10, 0.3892), (at_1, 0.0924), (at_01, 0.0183)):
        assert rate.tpr is not None and rate.tpr.low < true < rate.tpr.high
    assert 1 < found.epsilon_lower < 3


def test_rates_that_cannot_be_measured_have_no_number() -> None:
    assert [needed_for(fpr) for fpr in (0.1, 0.01, 0.001)] == [29, 299, 2995]
    found = measure(normal(300, 3, 0), normal(298, 0, 1), 0, 1)
    assert [rate.tpr is None for rate in found.rates] == [False, True, True]


def test_more_attacks_lower_the_lower_limits_only() -> None:
    one, five = (measure(normal(300, 1, 0), normal(300, 0, 1), 0, attacks) for attacks in (1, 5))
    assert five.auc.low < one.auc.low and five.auc.high == one.auc.high
    assert five.epsilon_lower < one.epsilon_lower
    assert levels_for(5).lower == pytest.approx(levels_for(1).lower / 5)


@pytest.mark.parametrize("n", [100, 1000])
def test_epsilon_bound_is_0_without_leak(n: int) -> None:
    """At alpha 5 % more than 15 of 100 positive bounds have a probability below 1e-4."""
    positive = sum(
        lower_bound(np.sort(normal(n, 0, 2 * s)), np.sort(normal(n, 0, 2 * s + 1)), 0, 0.05) > 0 for s in range(100)
    )
    assert positive <= 15


@pytest.mark.parametrize(("n", "shift", "expected"), [(300, 1, 0.84), (1000, 1, 1.24), (5000, 2, 3.74)])
def test_epsilon_bound_has_its_power(n: int, shift: float, expected: float) -> None:
    bounds = [
        lower_bound(np.sort(normal(n, shift, 2 * s)), np.sort(normal(n, 0, 2 * s + 1)), 0, 0.05) for s in range(40)
    ]
    assert float(np.median(bounds)) == pytest.approx(expected, rel=0.2)


def test_epsilon_bound_finds_non_members_that_stand_out() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(0, 1, 2000), np.where(rng.random(2000) < 0.2, -10.0, rng.normal(0, 1, 2000))
    assert lower_bound(np.sort(members), np.sort(others), 0, 0.05) > 2


def test_ties_never_raise_the_epsilon_bound() -> None:
    members, others = np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], 50)
    assert lower_bound(members, others, 0, 0.05) == 0


def test_p_value_and_bound_agree() -> None:
    members, others = np.sort(normal(1000, 1, 0)), np.sort(normal(1000, 0, 1))
    bound = lower_bound(members, others, 1e-5, 0.05)
    assert p_value(bound, members, others, 1e-5) == pytest.approx(0.05, rel=1e-3)
    assert p_value(0.0, members, others, 1e-5) < 1e-6 and p_value(9.0, members, others, 1e-5) == 1


@pytest.mark.parametrize(
    ("n", "highest", "smallest", "auc", "rates", "upper"),
    [
        (30, 2.0, 1.04, 0.711, (32.2, None, None), 0.647),
        (300, 4.4, 0.30, 0.566, (15.6, 3.4, None), 0.546),
        (5000, 7.2, 0.07, 0.516, (11.2, 1.4, 0.27), 0.511),
    ],
)
def test_limits_of_a_number_of_records(
    n: int, highest: float, smallest: float, auc: float, rates: tuple[float | None, ...], upper: float
) -> None:
    found = limits_of(n, n)
    assert found.highest_epsilon == pytest.approx(highest, abs=0.05)
    assert found.smallest_epsilon == pytest.approx(smallest, abs=0.01)
    assert found.smallest_auc == pytest.approx(auc, abs=0.001)
    assert found.largest_auc_without_leak == pytest.approx(upper, abs=0.001)
    for (_, value), expected in zip(found.rates, rates, strict=True):
        assert (value is None) == (expected is None)
        assert value is None or value * 100 == pytest.approx(expected, abs=0.06)
    assert len(limit_lines(found, "record")) == 4


@pytest.mark.parametrize(("how", "expected"), [("mean", [1.5, 5.0]), ("sum", [3.0, 5.0]), ("max", [2.0, 5.0])])
def test_group_scores(how: str, expected: list[float]) -> None:
    found, names = combine(np.array([1.0, 5.0, 2.0]), np.array(["a", "b", "a"]), how)
    assert found.tolist() == expected and names.tolist() == ["a", "b"]


def test_group_bootstrap_is_wider_than_single_records() -> None:
    """Twenty equal records a group carry the information of one."""
    groups = (np.repeat(np.arange(50).astype(str), 20), np.repeat(np.arange(50, 100).astype(str), 20))
    members, others = np.repeat(normal(50, 0.3, 0), 20), np.repeat(normal(50, 0, 1), 20)
    found = group_bootstrap(members, others, groups, 0)
    single = measure(members, others, 0, 1)
    assert found.value == pytest.approx(single.auc.value)
    assert found.high - found.low > 3 * (single.auc.high - single.auc.low) * 0.8


@pytest.mark.parametrize("decimals", [12, 1])
def test_rates_and_auc_are_those_of_roc_curve(decimals: int) -> None:
    """Privacy Meter and LeakPro read the last true positive rate of scikit-learn's `roc_curve` whose false positive
    rate is at most the limit; ties, which the second case has, are in the set together."""
    from sklearn.metrics import roc_auc_score, roc_curve

    members, others = normal(3500, 1, 0).round(decimals), normal(3100, 0, 1).round(decimals)
    labels, scores = np.repeat([1, 0], [3500, 3100]), np.concatenate([members, others])
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    found = measure(members, others, 0, 1)
    assert found.auc.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    for rate in found.rates:
        assert rate.tpr is not None and rate.tpr.value == pytest.approx(tpr[fpr <= rate.fpr + 1e-12][-1], abs=1e-12)
