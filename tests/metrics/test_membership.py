from __future__ import annotations

import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from bench.metrics.membership import (
    Membership,
    auc_gain,
    auc_interval,
    balanced_accuracy,
    epsilon_lower,
    membership,
    membership_power,
    tpr_at,
)
from bench.metrics.membership.auc import hoeffding_interval
from bench.metrics.proportions import clopper_pearson


def labelled(members: np.ndarray, others: np.ndarray) -> tuple[Tensor, Tensor]:
    scores = torch.from_numpy(np.concatenate([members, others]).astype(np.float64))
    return scores, torch.arange(len(scores)) < len(members)


def gaussian(m: int, n: int, shift: float = 1.0, seed: int = 0, digits: int = 16) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return labelled(rng.normal(shift, 1, m).round(digits), rng.normal(0, 1, n).round(digits))


def coins(p_member: float, p_other: float, n: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return labelled(rng.random(n) < p_member, rng.random(n) < p_other)


@pytest.mark.parametrize("digits", [16, 1, 0], ids=["distinct", "tied", "very tied"])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (30, 50), (200, 20)])
def test_auc_agrees_with_scikit_learn(digits: int, m: int, n: int) -> None:
    scores, is_member = gaussian(m, n, digits=digits)
    assert auc_interval(scores, is_member)[0] == pytest.approx(roc_auc_score(is_member, scores), abs=1e-12)


@pytest.mark.parametrize("digits", [16, 0])
def test_auc_interval_is_delongs_on_the_logit_scale(digits: int) -> None:
    scores, is_member = gaussian(23, 31, digits=digits)
    x, y = scores[is_member].tolist(), scores[~is_member].tolist()
    wins = np.array([[1.0 if a > b else 0.5 if a == b else 0.0 for b in y] for a in x])
    auc, variance = wins.mean(), wins.mean(1).var(ddof=1) / 23 + wins.mean(0).var(ddof=1) / 31
    reach = norm.ppf(0.95) * math.sqrt(variance) / (auc * (1 - auc))
    logit = math.log(auc / (1 - auc))
    expected = auc, 1 / (1 + math.exp(reach - logit)), 1 / (1 + math.exp(-reach - logit))
    assert auc_interval(scores, is_member, 0.9) == pytest.approx(expected, rel=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("auc", [0.5, 0.7, 0.95])
@pytest.mark.parametrize(("m", "n"), [(20, 20), (40, 120)])
def test_auc_interval_covers_the_auc(auc: float, m: int, n: int) -> None:
    """Two normal distributions with this AUC: at least 92 of 100 intervals at 95 %, where the plain scale has 77."""
    shift = math.sqrt(2) * norm.ppf(auc)
    bounds = np.array([auc_interval(*gaussian(m, n, shift, seed))[1:] for seed in range(400)])
    covered = ((bounds[:, 0] <= auc) & (auc <= bounds[:, 1])).mean()
    assert covered >= 0.95 - 3 * (0.95 * 0.05 / 400) ** 0.5
    assert (bounds[:, 0] > auc).mean() <= 0.025 + 3 * (0.025 * 0.975 / 400) ** 0.5 + 0.02
    assert ((bounds >= 0) & (bounds <= 1)).all()


@pytest.mark.parametrize(("m", "n"), [(2, 2), (20, 50), (500, 100)])
def test_auc_interval_of_separated_scores_by_formula(m: int, n: int) -> None:
    scores, is_member = labelled(np.arange(m) + 10.0, -np.arange(n))
    k = min(m, n)
    auc, low, high = auc_interval(scores, is_member)
    assert (auc, low, high) == pytest.approx((1, *clopper_pearson(k, k)), abs=1e-12)
    assert auc_interval(-scores, is_member) == pytest.approx((0, *clopper_pearson(0, k)), abs=1e-12)
    assert low < 1


def test_auc_interval_of_equal_scores_is_wide() -> None:
    auc, low, high = auc_interval(torch.zeros(80), torch.arange(80) < 40)
    assert auc == 0.5
    assert low < 0.4 < 0.6 < high
    assert low == pytest.approx(1 - high)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_hoeffding_interval_inverts_the_divergence(share: float) -> None:
    low, high = hoeffding_interval(share, 30, 0.9)
    for end in {low, high} - {0.0, 1.0}:
        p = np.array([share, 1 - share])
        q = np.array([end, 1 - end])
        kl = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
        assert kl == pytest.approx(math.log(20) / 30, rel=1e-9)
    assert low <= share <= high


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_hoeffding_interval_covers_coins(share: float) -> None:
    """k pairs drawn independently are the worst case of the bound."""
    k = 25
    bounds = [hoeffding_interval(i / k, k, 0.95) for i in range(k + 1)]
    covered = np.array([low <= share <= high for low, high in bounds])
    assert binom.pmf(np.arange(k + 1), k, share)[covered].sum() >= 0.95


def test_tpr_at_by_hand() -> None:
    """Others 9, 8, 8, 7 and six below: 10 % allow one of them above the threshold, 20 % one (8 is tied), 30 % three."""
    others = np.array([9, 8, 8, 7, 1, 1, 1, 1, 1, 1.0])
    scores, is_member = labelled(np.array([10, 9, 8.5, 8, 7.5]), others)
    found = {limit: tpr_at(scores, is_member, limit) for limit in (0.05, 0.1, 0.2, 0.3)}
    assert [(x.tpr, x.fpr, x.resolved) for x in found.values()] == [
        (0.2, 0.0, False),
        (0.6, 0.1, True),
        (0.6, 0.1, True),
        (1.0, 0.3, True),
    ]
    assert (found[0.1].low, found[0.1].high) == (0.0, 1.0), "ten others do not determine the best tenth"
    assert found[0.1].limit == 0.1


@pytest.mark.parametrize("digits", [16, 1, 0])
@pytest.mark.parametrize("n", [7, 100, 1000])
def test_tpr_at_is_the_largest_within_the_limit(digits: int, n: int) -> None:
    scores, is_member = gaussian(60, n, digits=digits)
    fpr, tpr, _ = roc_curve(is_member, scores, drop_intermediate=False)
    for limit in (0.001, 0.01, 0.1, 0.29, 0.3, 0.9):
        found = tpr_at(scores, is_member, limit)
        assert found.tpr == pytest.approx(tpr[fpr <= limit + 1e-12].max())
        assert found.fpr <= limit + 1e-12
        assert found.resolved == (n * limit >= 1 - 1e-9)


@pytest.mark.parametrize(
    ("limit", "m", "n"), [(0.1, 40, 100), (0.01, 2000, 2000), (0.01, 500, 120), (0.001, 2000, 2000)]
)
def test_tpr_at_interval_covers_the_population_rate(limit: float, m: int, n: int) -> None:
    true, covered, at_this_threshold = norm.sf(norm.isf(limit) - 1), [], []
    for seed in range(400):
        scores, is_member = gaussian(m, n, seed=seed)
        found = tpr_at(scores, is_member, limit)
        assert found.low <= found.tpr <= found.high
        covered.append(found.low <= true <= found.high)
        low, high = clopper_pearson(round(found.tpr * m), m)
        at_this_threshold.append(low <= true <= high)
    assert np.mean(covered) >= 0.95
    assert np.mean(at_this_threshold) < 0.9, "an interval from the members only would be too narrow"


def test_tpr_at_interval_by_hand() -> None:
    """Of 100 others at 10 %, fewer than 4 or more than 17 exceed the true threshold once in 80 times each.

    Others are 1 to 100, so that the threshold is between 83 (17 are above) and 97 (4 are at it or above), and the
    members' share is counted above either.
    """
    members = np.concatenate([np.full(6, 97.5), np.full(5, 97.0), np.full(4, 83.5), np.full(5, 83.0)])
    found = tpr_at(*labelled(members, np.arange(1.0, 101)), 0.1)
    assert found.low == clopper_pearson(6, 20, 0.975)[0]
    assert found.high == clopper_pearson(15, 20, 0.975)[1]


@pytest.mark.parametrize("percent", [1, 7, 29, 57, 58])
def test_tpr_at_limits_survive_rounding(percent: int) -> None:
    """0.29 * 100 is 28.999999999999996 in floating point."""
    scores, is_member = labelled(np.arange(100) + 0.5, np.arange(100))
    found = tpr_at(scores, is_member, percent / 100)
    assert (found.fpr, found.tpr) == pytest.approx((percent / 100, (percent + 1) / 100))


def test_tpr_at_accepts_a_limit_just_below_one() -> None:
    scores, is_member = labelled(np.array([0.0, 3.0]), np.array([1.0, 2.0]))
    assert tpr_at(scores, is_member, 1 - 1e-12).fpr == 0.5


def test_balanced_accuracy_of_separated_and_equal_scores() -> None:
    scores, is_member = labelled(np.arange(2000) + 10.0, -np.arange(2000))
    found = balanced_accuracy(scores, is_member)
    assert found.accuracy > 0.99
    assert found.fpr == 0
    assert found.advantage == pytest.approx(found.tpr - found.fpr)
    assert balanced_accuracy(torch.zeros(80), is_member[1960:2040]).accuracy == 0.5
    assert balanced_accuracy(-scores, is_member).accuracy == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("p", "q"), [(0.7, 0.3), (0.9, 0.5), (0.95, 0.02)])
def test_balanced_accuracy_interval_covers_the_accuracy(p: float, q: float) -> None:
    found = [balanced_accuracy(*coins(p, q, 60, seed), seed=seed) for seed in range(300)]
    true = (p + 1 - q) / 2
    assert np.mean([x.low <= true <= x.high for x in found]) >= 0.95 - 3 * (0.95 * 0.05 / 300) ** 0.5
    assert np.mean([x.accuracy for x in found]) == pytest.approx(true, abs=0.02)
    for x in found[:5]:
        assert x.accuracy == pytest.approx((x.tpr + 1 - x.fpr) / 2)
        assert x.advantage == pytest.approx(2 * x.accuracy - 1)
        assert 0 <= x.low <= x.accuracy <= x.high <= 1


def test_balanced_accuracy_interval_by_hand() -> None:
    """Separated, 10 on each side of the half that tests; both intervals at 97.5 % hold together at 95 %."""
    found = balanced_accuracy(*labelled(np.ones(20), np.zeros(20)))
    low = clopper_pearson(10, 10, 0.975)[0] / 2 + (1 - clopper_pearson(0, 10, 0.975)[1]) / 2
    assert (found.accuracy, found.low, found.high) == pytest.approx((1, low, 1))


def test_balanced_accuracy_without_signal_is_one_half() -> None:
    """The best threshold of 40 scores, on the same scores, would have an advantage of about 0.2."""
    found = [balanced_accuracy(*gaussian(20, 20, 0.0, seed), seed=seed) for seed in range(400)]
    advantages = np.array([x.advantage for x in found])
    assert abs(advantages.mean()) < 4 * advantages.std() / 20
    assert np.mean([x.low > 0.5 for x in found]) <= 0.05


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_epsilon_lower_is_below_randomised_response(epsilon: float) -> None:
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = [epsilon_lower(*coins(p, 1 - p, 400, seed), delta=0.0, seed=seed) for seed in range(200)]
    assert np.mean(np.array(bounds) > epsilon) <= 0.05
    assert min(bounds) >= 0.0
    assert epsilon_lower(*coins(p, 1 - p, 100_000, 0), delta=0.0) == pytest.approx(epsilon, abs=0.08)


def test_epsilon_lower_without_signal_is_zero() -> None:
    bounds = [epsilon_lower(*gaussian(100, 100, 0.0, seed), delta=0.0, seed=seed) for seed in range(200)]
    assert np.mean(np.array(bounds) > 0) <= 0.05


@pytest.mark.parametrize("other_way", [False, True])
def test_epsilon_lower_uses_both_log_ratios(other_way: bool) -> None:
    """Members are 1 half of the time, others never: log(TPR / FPR) is large, log(TNR / FNR) at most log 2."""
    scores, is_member = coins(1.0, 0.5, 1000, 0) if other_way else coins(0.5, 0.0, 1000, 0)
    half = 500
    reach = math.log((0.5 - 0.15) / clopper_pearson(0, half, 0.975)[1])
    assert epsilon_lower(scores, is_member, delta=0.0) > reach > math.log(2) + 1


def test_epsilon_lower_by_hand() -> None:
    """Separated, 10 on each side of the half that tests: Clopper-Pearson at 97.5 % of 10 in 10 and of 0 in 10."""
    scores, is_member = labelled(np.ones(20), np.zeros(20))
    low, _ = clopper_pearson(10, 10, 0.975)
    _, high = clopper_pearson(0, 10, 0.975)
    assert epsilon_lower(scores, is_member, delta=0.0) == pytest.approx(math.log(low / high))
    assert epsilon_lower(scores, is_member, delta=0.2) == pytest.approx(math.log((low - 0.2) / high))
    assert epsilon_lower(scores, is_member, delta=0.7) == 0
    assert epsilon_lower(scores, is_member, delta=0.0, confidence=0.5) > math.log(low / high)


def test_thresholds_are_chosen_on_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """One half is separated at 10, the other at 5: a threshold of 10, or of 0 the other way, finds nothing there."""
    halves = {"members": (np.full(50, 10.0), np.full(50, 5.0)), "others": (np.full(50, 0.0), np.full(50, 4.0))}
    for place in ("indication", "rates"):
        monkeypatch.setattr(f"bench.metrics.membership.{place}.halves", lambda scores, seed, name: halves[name])
    scores, is_member = gaussian(100, 100)
    assert epsilon_lower(scores, is_member, delta=0.0) == 0
    assert balanced_accuracy(scores, is_member).accuracy == 0.5
    halves.update({"members": (np.full(50, 5.0), np.full(50, 5.0)), "others": (np.full(50, 4.0), np.full(50, 4.0))})
    assert epsilon_lower(scores, is_member, delta=0.0) > 2
    assert balanced_accuracy(scores, is_member).accuracy == 1


@pytest.mark.parametrize("digits", [16, 1])
def test_metrics_depend_only_on_the_order_of_scores(digits: int) -> None:
    scores, is_member = gaussian(90, 130, digits=digits)
    whole, epsilon = membership(scores, is_member), epsilon_lower(scores, is_member, 1e-5)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))
    assert membership(scores[order], is_member[order]) == whole
    assert epsilon_lower(scores[order], is_member[order], 1e-5) == epsilon
    for transformed in (scores * 1000 - 7, scores.exp(), scores**3):
        assert len(transformed.unique()) == len(scores.unique())
        assert membership(transformed, is_member) == whole
        assert epsilon_lower(transformed, is_member, 1e-5) == epsilon


def test_membership_combines_its_parts() -> None:
    scores, is_member = gaussian(90, 1300)
    found = membership(scores, is_member, seed=3, confidence=0.9)
    assert (found.members, found.non_members) == (90, 1300)
    assert (found.auc, found.auc_low, found.auc_high) == auc_interval(scores, is_member, 0.9)
    assert found.at_1_percent == tpr_at(scores, is_member, 0.01, 0.9)
    assert found.at_01_percent == tpr_at(scores, is_member, 0.001, 0.9)
    assert found.balanced == balanced_accuracy(scores, is_member, 3, 0.9)
    assert found.balanced != balanced_accuracy(scores, is_member, 4, 0.9)
    assert found.at_01_percent.resolved
    assert not membership(*gaussian(90, 999)).at_01_percent.resolved
    assert all(isinstance(x, float) for x in asdict(found.balanced).values())


def verdict_on(auc: float, low: float, high: float) -> Membership:
    return replace(membership(*gaussian(10, 10)), auc=auc, auc_low=low, auc_high=high)


def test_membership_power_needs_success_only_on_the_teacher() -> None:
    strong, chance = verdict_on(0.8, 0.7, 0.9), verdict_on(0.51, 0.45, 0.57)
    weak, inverted = verdict_on(0.56, 0.5, 0.62), verdict_on(0.3, 0.2, 0.4)
    for passed, teacher, random, gain_low, value in (
        (False, verdict_on(0.599, 0.55, 0.65), chance, None, "0.60"),
        (True, verdict_on(0.6, 0.55, 0.65), chance, None, "0.600 [0.550, 0.650]"),
        (True, strong, chance, None, "0.800 [0.700, 0.900]"),
        (True, strong, inverted, None, "0.300 [0.200, 0.400]"),
        (False, weak, chance, None, "0.560 [0.500, 0.620]"),
        (False, chance, chance, None, "0.510 [0.450, 0.570]"),
        (False, inverted, chance, None, "0.300 [0.200, 0.400]"),
        (False, strong, verdict_on(0.6, 0.51, 0.7), None, "0.600 [0.510, 0.700]"),
        (True, strong, chance, 0.01, "0.800 [0.700, 0.900]"),
        (False, strong, chance, -0.02, "-0.020"),
    ):
        found = membership_power(teacher, random, gain_low)
        assert found.passed == passed and value in found.reason


def test_auc_gain_and_its_delong_interval_by_hand() -> None:
    """Two members, two others: placements by hand. Ours (1, 1), (0, 0); theirs (1, .5), (.5, 0)."""
    is_member = torch.tensor([True, True, False, False])
    ours, theirs = torch.tensor([3.0, 4.0, 1.0, 2.0]), torch.tensor([4.0, 2.0, 3.0, 1.0])
    gain, low, high = auc_gain(ours, theirs, is_member)
    assert gain == 1.0 - 0.75
    variance = np.var([0.0, 0.5], ddof=1) / 2 + np.var([-0.5, 0.0], ddof=1) / 2
    assert (low, high) == pytest.approx((0.25 - 1.959964 * variance**0.5, min(1.0, 0.25 + 1.959964 * variance**0.5)))
    assert auc_gain(ours, ours, is_member) == (0.0, 0.0, 0.0)


def test_auc_gain_interval_of_unequal_sides_by_hand() -> None:
    """Three members and two others against one constant score, for which every placement is a half.

    Placements less a half: members 1/2, 1/2 and 0, of variance 1/12; others 1/6 and 1/2, of variance 1/18.
    """
    is_member = torch.tensor([True, True, True, False, False])
    gain, low, high = auc_gain(torch.tensor([3.0, 4.0, 1.0, 2.0, 0.0]), torch.zeros(5), is_member)
    reach = 1.959964 * math.sqrt(1 / 12 / 3 + 1 / 18 / 2)
    assert (gain, low, high) == pytest.approx((1 / 3, 1 / 3 - reach, 1 / 3 + reach))


def test_auc_gain_without_variance_has_an_interval() -> None:
    """Perfect separation against one constant score: each area's own interval, at half of the error."""
    is_member = torch.arange(100) < 50
    gain, low, high = auc_gain(is_member.double(), torch.zeros(100), is_member)
    (_, ours, _), (_, _, theirs) = (
        auc_interval(each, is_member, 0.975) for each in (is_member.double(), torch.zeros(100))
    )
    assert gain == 0.5 and low == pytest.approx(ours - theirs) and low < 0.35 and high > 0.65


def test_auc_gain_interval_covers_and_is_narrow() -> None:
    rng, covered, narrower = np.random.RandomState(0), 0, 0
    is_member = torch.arange(400) < 200
    for _ in range(200):
        shared, own, other = torch.from_numpy(rng.randn(3, 400))
        ours, theirs = shared + 0.5 * own + 0.4 * is_member, shared + 0.5 * other
        _, low, high = auc_gain(ours, theirs, is_member)
        covered += low <= norm.cdf(0.4 / math.sqrt(2 * 1.25)) - 0.5 <= high
        unpaired = sum((reach := auc_interval(each, is_member))[2] - reach[1] for each in (ours, theirs))
        narrower += high - low < unpaired / math.sqrt(2)
    assert covered >= 180 and narrower == 200


def test_metrics_refuse_bad_scores_and_arguments() -> None:
    scores, is_member = gaussian(10, 10)
    for call in (membership, auc_interval, balanced_accuracy):
        for bad in (scores[1:], scores.view(4, 5)):
            with pytest.raises(ValueError, match=re.escape(str(tuple(bad.shape)))):
                call(bad, is_member)
        with pytest.raises(ValueError, match=r"torch\.bool"):
            call(scores, is_member.long())
        with pytest.raises(ValueError, match=r"\b1\b.*\b10\b"):
            call(scores[9:], is_member[9:])
        with pytest.raises(ValueError, match="confidence 1"):
            call(scores, is_member, confidence=1.0)
        for bad_score in (float("nan"), float("inf")):
            broken = scores.clone()
            broken[4] = bad_score
            with pytest.raises(ValueError, match="NaN"):
                call(broken, is_member)
    for limit in (0.0, 1.0):
        with pytest.raises(ValueError, match="fpr"):
            tpr_at(scores, is_member, limit)
    for delta in (-0.1, 1.0):
        with pytest.raises(ValueError, match="delta"):
            epsilon_lower(scores, is_member, delta)
