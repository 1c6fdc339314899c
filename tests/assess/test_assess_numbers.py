"""Limits of the numbers: they hold without leak and refuse the unmeasurable; matched pairs of sets that differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from assess_made import images, made_logits, trained, write_csv, write_logits

import bench
from bench.assess.epsilon import lower_bound, p_value
from bench.assess.limits import limit_lines, limits_of
from bench.assess.numbers import combine, group_bootstrap, levels_for, measure, needed_for
from bench.cli import main
from bench.errors import BenchError
from bench.membership.blind import Facts, compare, matched, pair_by_score
from bench.teachers.weights import save


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


def _facts(n: int, mean: float, seed: int, classes: int = 2) -> Facts:
    rng = np.random.default_rng(seed)
    return Facts(("age", "size"), rng.normal((mean, 0), 1, (n, 2)), rng.integers(0, classes, n))


def test_matched_pairs_are_not_separable() -> None:
    members, others = _facts(1500, 0, 0), _facts(1500, 1, 1)
    found = compare(members, others, 0)
    assert found is not None and found.differs and found.auc > 0.7
    inside, outside = matched(members, others, 0)
    assert len(inside) == len(outside) == len(set(inside.tolist())) == len(set(outside.tolist())) > 400
    chosen = [
        Facts(side.names, side.values[rows], side.labels[rows])
        for side, rows in ((members, inside), (others, outside))
        if side.labels is not None
    ]
    again = compare(*chosen, 0)
    assert again is not None and not again.differs and again.auc < 0.55


def test_matched_pairs_have_equal_classes() -> None:
    members, others = _facts(300, 0, 0), _facts(900, 0, 1)
    skewed = Facts(others.names, others.values, np.zeros(900, np.int64))
    inside, outside = matched(members, skewed, 0)
    assert members.labels is not None and not members.labels[inside].any()
    assert len(inside) == len(outside) <= int((members.labels == 0).sum())


def test_pair_by_score_finds_the_largest_number_of_pairs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b, caliper = rng.random(7), rng.random(6), rng.choice([0.02, 0.1, 0.3])
        pairs = pair_by_score(a, b, caliper)
        assert len(pairs) == _most_pairs(np.abs(a[:, None] - b) <= caliper)
        assert all(abs(a[i] - b[j]) <= caliper for i, j in pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


def _most_pairs(allowed: np.ndarray) -> int:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(-allowed.astype(float))
    return int(allowed[rows, columns].sum())


def _shifted_scores(folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    inside = write_logits(folder / "in.csv", 1500, 0.0, 0, feature_age=rng.normal(40, 10, 1500))
    outside = write_logits(folder / "out.csv", 1500, 0.0, 1, feature_age=rng.normal(50, 10, 1500))
    return inside, outside


def test_assess_scores_match_compares_like_with_like(tmp_path: Path) -> None:
    scores = _shifted_scores(tmp_path)
    refused = bench.assess(scores=scores)
    assert refused.verdict.decision == "cannot tell" and refused.blind is not None and refused.blind.differs
    assert any("--match" in note for note in refused.notes) and refused.members == 1500
    found = bench.assess(scores=scores, match=True)
    assert found.blind is not None and not found.blind.differs
    assert 300 < found.members == found.others < 1500
    assert main(["assess", "--scores", *map(str, scores), "--match"]) == found.status


def test_assess_match_leaves_equal_sets_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    scores = tuple(
        write_logits(tmp_path / f"{seed}.csv", 400, 0.0, seed, feature_age=rng.normal(40, 10, 400)) for seed in (0, 1)
    )
    assert bench.assess(scores=(scores[0], scores[1]), match=True).members == 400


def test_assess_match_refuses_groups_and_too_few_pairs(tmp_path: Path) -> None:
    for name, groups in (("grouped", True), ("far", False)):
        paths = []
        for side, age in ((0, 0.0), (1, 1000.0)):
            logits, labels = made_logits(200, 0, side)
            columns = {"label": labels, **{f"logit_{k}": logits[:, k] for k in range(3)}}
            columns["feature_age"] = np.random.default_rng(side).normal(age, 1, 200)
            if groups:
                columns["group"] = [f"{side}-{row // 2}" for row in range(200)]
            paths.append(write_csv(tmp_path / f"{name}{side}.csv", columns))
        with pytest.raises(BenchError):
            bench.assess(scores=(paths[0], paths[1]), match=True)
        assert bench.assess(scores=(paths[0], paths[1])).verdict.decision == "cannot tell"


def test_assess_model_match_uses_pairs_only(tmp_path: Path) -> None:
    members = images(150, 0).save(tmp_path / "members.npz")
    others = images(400, 1, brighter=25).save(tmp_path / "others.npz")
    found = bench.assess(trained(), members, others, attacks=["loss"], match=True)
    assert 30 <= found.members == found.others < 150
    assert found.attacks[0].members == found.members


def test_assess_pixel_range_is_read_from_the_command_line(tmp_path: Path) -> None:
    for seed in (0, 1):
        made = images(150, seed)
        pixels = made.images[:, 0].float().numpy() / 127.5 - 1
        np.savez(tmp_path / f"{seed}.npz", images=pixels, labels=made.labels.numpy())
    save(tmp_path / "a.safetensors", trained())
    words = ["assess", "--model", str(tmp_path / "a.safetensors"), "--network", "dense-cnn", "--attacks", "loss"]
    words += ["--members", str(tmp_path / "0.npz"), "--nonmembers", str(tmp_path / "1.npz")]
    assert main(words) == 2
    assert main([*words, "--pixel-range", "1,-1"]) == 2
    assert main([*words, "--pixel-range=-1,1"]) in (0, 1, 3)
