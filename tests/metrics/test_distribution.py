"""Fréchet distance, PRDC, k-NN gap and inception score, against definitions, slow references and torchmetrics."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

from bench.metrics import distribution
from bench.metrics.distribution import (
    Prdc,
    equal_parts,
    frechet_distance,
    images_needed,
    knn_gap,
    matched_subset,
    prdc,
    too_few_images,
)
from bench.metrics.inception import inception, splits_for, stratified_order
from bench.metrics.inversion import knn_distance


def gaussian(n: int, f: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, f, generator=rng, dtype=torch.float64) @ torch.randn(f, f, generator=rng).double() + seed


def with_moments(n: int, mean: Sequence[float], deviations: Sequence[float], seed: int) -> Tensor:
    """Return rows with exactly this mean and these standard deviations (over n - 1)."""
    x = gaussian(n, len(mean), seed)
    white = torch.linalg.qr(x - x.mean(0)).Q * (n - 1) ** 0.5
    return white * torch.tensor(deviations, dtype=torch.float64) + torch.tensor(mean, dtype=torch.float64)


def by_sqrtm(x: np.ndarray, y: np.ndarray) -> float:
    s1, s2 = np.cov(x.T), np.cov(y.T)
    root = scipy.linalg.sqrtm(s1 @ s2)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s1 + s2 - 2 * root.real))


def by_eigh(x: np.ndarray, y: np.ndarray) -> float:
    s1, s2 = np.cov(x.T), np.cov(y.T)
    values, vectors = np.linalg.eigh(s1)
    root = vectors @ np.diag(np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ s2 @ root).clip(0)).sum()
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s1) + np.trace(s2) - 2 * cross)


def test_frechet_of_gaussians_has_the_closed_form() -> None:
    """With covariances that commute: |mu1 - mu2|^2 + the squared differences of the standard deviations."""
    x = with_moments(50, (1, 0, -2, 5), (1, 2, 0.1, 30), seed=1)
    y = with_moments(90, (1, 3, -2, 1), (2, 2, 0.4, 10), seed=2)
    turn = torch.linalg.qr(gaussian(4, 4, 3)).Q
    expected = 9 + 16 + 1 + 0.3**2 + 400
    assert frechet_distance(x, y) == pytest.approx(expected, rel=1e-12)
    assert frechet_distance(x @ turn + 7, y @ turn + 7) == pytest.approx(expected, rel=1e-12)


def test_frechet_takes_fewer_images_than_features() -> None:
    x, y = gaussian(12, 40, 1), gaussian(25, 40, 2)
    assert frechet_distance(x, y) == pytest.approx(by_eigh(x.numpy(), y.numpy()), rel=1e-6)
    assert frechet_distance(x, x.flip(0)) == pytest.approx(0, abs=1e-9)
    dead = torch.cat([x, torch.zeros(12, 3)], 1), torch.cat([y, torch.zeros(25, 3)], 1)
    assert frechet_distance(*dead) == pytest.approx(frechet_distance(x, y), rel=1e-9)


@pytest.mark.parametrize(("n", "m", "f"), [(40, 30, 5), (200, 200, 16), (60, 50, 8)])
@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
def test_frechet_agrees_with_scipys_sqrtm_at_any_shift(
    n: int, m: int, f: int, shift: float, recwarn: pytest.WarningsRecorder
) -> None:
    x, y = gaussian(n, f, 1), gaussian(m, f, 2)
    expected = by_sqrtm(x.numpy(), y.numpy())
    assert frechet_distance(x + shift, y + shift) == pytest.approx(expected, rel=1e-7 if shift else 1e-9)
    assert [str(each.message) for each in recwarn if issubclass(each.category, UserWarning)] == []


def test_frechet_is_symmetric_and_ignores_order() -> None:
    x, y = gaussian(40, 6, 1), gaussian(30, 6, 2)
    assert frechet_distance(x, y) == pytest.approx(frechet_distance(y, x), rel=1e-12)
    assert frechet_distance(x.flip(0), y) == pytest.approx(frechet_distance(x, y), rel=1e-12)
    assert frechet_distance(x.float(), y) == pytest.approx(frechet_distance(x, y), rel=1e-5)


def test_frechet_refuses_other_shapes_and_nan() -> None:
    x = gaussian(5, 3)
    for one, other, shape in ((x[:1], x, "(1, 3)"), (x, x[:1], "(1, 3)"), (x, x[:, :2], "(5, 2)"), (x[0], x, "(3,)")):
        with pytest.raises(ValueError, match=re.escape(shape)):
            frechet_distance(one, other)
    broken = x.clone()
    broken[1, 1] = float("nan")
    for pair in ((x, broken), (broken, x)):
        with pytest.raises(ValueError, match="NaN"):
            frechet_distance(*pair)


def test_too_few_images_gives_both_numbers() -> None:
    assert images_needed(84) == 168
    assert too_few_images(168, 84) is None
    reason = too_few_images(167, 84)
    assert reason is not None and "167" in reason and "168" in reason


def slow_prdc(real: np.ndarray, fake: np.ndarray, k: int) -> list[float]:
    """The definition, pair by pair, with squared distances (whole numbers have them exactly)."""
    n, m = len(real), len(fake)
    gap = [[sum((a - b) ** 2 for a, b in zip(r, f, strict=True)) for f in fake] for r in real]

    def radius(rows: np.ndarray, i: int) -> float:
        others = [sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)) for j in range(len(rows)) if j != i]
        return sorted(others)[k - 1]

    real_radii, fake_radii = [radius(real, i) for i in range(n)], [radius(fake, j) for j in range(m)]
    precise = sum(any(gap[i][j] < real_radii[i] for i in range(n)) for j in range(m)) / m
    recalled = sum(any(gap[i][j] < fake_radii[j] for j in range(m)) for i in range(n)) / n
    dense = sum(gap[i][j] < real_radii[i] for i in range(n) for j in range(m)) / (k * m)
    covered = sum(min(gap[i]) < real_radii[i] for i in range(n)) / n
    return [precise, recalled, dense, covered]


def prdc_case(whole: bool, f: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    fake, real = torch.randn(37, f, generator=rng) * 1.5 + 0.4, torch.randn(61, f, generator=rng)
    if whole:
        fake, real = fake.round(), real.round()
    return fake, torch.arange(37) % 3, real, torch.arange(61) % 4


@pytest.mark.parametrize("whole", [False, True], ids=["spread", "tied"])
@pytest.mark.parametrize(("chunk", "k"), [(4, 1), (512, 3), (5, 5)])
def test_prdc_agrees_with_a_slow_reference(whole: bool, chunk: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides of unequal size, and whole numbers with many equal distances and copies."""
    monkeypatch.setattr(distribution, "_CHUNK", chunk)
    fake, targets, real, labels = prdc_case(whole)
    slow = [slow_prdc(real[labels == c].double().numpy(), fake[targets == c].double().numpy(), k) for c in range(3)]
    found = prdc(fake, targets, real, labels, k)
    assert list(vars(found).values()) == pytest.approx(np.mean(slow, 0))
    assert len({round(value, 6) for value in vars(found).values()}) >= 3


@pytest.mark.parametrize("k", [1, 5])
def test_prdc_of_the_private_images_is_one(k: int) -> None:
    """Each ball contains its centre and k - 1 others; the k-th is on its boundary, which is outside."""
    real, labels = gaussian(80, 300).float() + 1000, torch.arange(80) % 2
    assert prdc(real, labels, real, labels, k) == Prdc(1, 1, 1, 1)


def test_prdc_of_collapsed_and_of_distant_images() -> None:
    real, labels = gaussian(60, 4), torch.zeros(60, dtype=torch.int64)
    collapsed = prdc(real[:1].expand(20, -1), labels[:20], real, labels)
    assert collapsed.precision == 1
    assert collapsed.recall == 0
    assert collapsed.coverage < 0.5
    assert prdc(real + 1e4, labels, real, labels) == Prdc(0, 0, 0, 0)


def test_prdc_ignores_a_common_shift_and_the_order() -> None:
    fake, targets, real, labels = (x.double() if x.is_floating_point() else x for x in prdc_case(False))
    assert prdc(fake + 1e5, targets, real + 1e5, labels) == prdc(fake, targets, real, labels)
    order = torch.randperm(len(fake), generator=torch.Generator().manual_seed(1))
    assert prdc(fake[order], targets[order], real, labels) == prdc(fake, targets, real, labels)


@pytest.mark.parametrize("side", ["private", "reconstructions"])
def test_prdc_needs_more_than_k_plus_one_images(side: str) -> None:
    real, few, enough = gaussian(30, 4), torch.zeros(6, dtype=torch.int64), torch.zeros(30, dtype=torch.int64)
    six, thirty = (real[:6], few), (real, enough)
    with pytest.raises(ValueError, match=r"class 0.*k = 5.*\b6\b"):
        prdc(*six, *thirty) if side == "reconstructions" else prdc(*thirty, *six)
    seven = real[:7], enough[:7]
    assert prdc(*seven, *seven) == Prdc(1, 1, 1, 1)


def test_prdc_refuses_bad_input() -> None:
    fake, targets, real, labels = prdc_case(False)
    with pytest.raises(ValueError, match="k is 0"):
        prdc(fake, targets, real, labels, k=0)
    with pytest.raises(ValueError, match=r"class 2\b"):
        prdc(fake, targets, real[labels != 2], labels[labels != 2])
    real[0, 0] = float("inf")
    with pytest.raises(ValueError, match="infinite"):
        prdc(fake, targets, real, labels)


def test_matched_subset_has_the_class_counts() -> None:
    labels, targets = torch.arange(100) % 4, torch.tensor([2, 0, 0, 3, 0, 3])
    drawn = matched_subset(labels, targets, seed=0)
    assert labels[drawn].bincount(minlength=4).tolist() == [3, 0, 1, 2]
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert matched_subset(labels, targets.flip(0), seed=0).tolist() == drawn.tolist()
    assert matched_subset(labels, targets, seed=1).tolist() != drawn.tolist()


def test_matched_subset_draws_classes_separately() -> None:
    labels = torch.arange(100) % 4
    only_class_0 = matched_subset(labels, torch.zeros(5, dtype=torch.int64), seed=0)
    drawn = matched_subset(labels, torch.arange(4).repeat(5), seed=0)
    assert drawn[labels[drawn] == 0].tolist() == only_class_0.tolist()


def test_matched_subset_draws_images_equally_often() -> None:
    labels, targets = torch.zeros(10, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    counts = torch.stack([matched_subset(labels, targets, seed) for seed in range(1000)]).flatten().bincount()
    assert counts.tolist() == pytest.approx([300] * 10, abs=4.5 * (1000 * 0.3 * 0.7) ** 0.5)


def test_matched_subset_refuses_too_few_images() -> None:
    with pytest.raises(ValueError, match=r"class 1\b.*\b2\b.*\b3\b"):
        matched_subset(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 1]), seed=0)
    with pytest.raises(ValueError, match=r"class 7\b.*\b0\b"):
        matched_subset(torch.tensor([0, 1, 1]), torch.tensor([7]), seed=0)
    with pytest.raises(ValueError, match=r"\(0,\)"):
        matched_subset(torch.tensor([0]), torch.zeros(0, dtype=torch.int64), seed=0)


def test_equal_parts_by_hand() -> None:
    private, held_out = torch.tensor([0, 0, 0, 1, 2, 2, 4]), torch.tensor([2, 2, 2, 0, 1, 1, 3])
    mine, theirs = equal_parts(private, held_out, seed=0)
    assert private[mine].tolist() == [0, 1, 2, 2]
    assert sorted(held_out[theirs].tolist()) == [0, 1, 2, 2]
    assert {*mine.tolist()} >= {3, 4, 5} and {*theirs.tolist()} >= {3}
    with pytest.raises(ValueError, match="class"):
        equal_parts(torch.tensor([0]), torch.tensor([1]), seed=0)
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        equal_parts(torch.zeros(2, 2), torch.tensor([1]), seed=0)


def test_knn_gap_by_hand() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    private, held_out = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert knn_gap(torch.zeros(1, 2), one, private, one, held_out, one, seed=0) == pytest.approx(9 - 1)
    assert knn_gap(torch.zeros(1, 2), one, held_out, one, private, one, seed=0) == pytest.approx(1 - 9)


@pytest.mark.parametrize(("m", "h"), [(500, 25), (25, 500)])
def test_knn_gap_ignores_unequal_numbers_of_images(m: int, h: int) -> None:
    rng = torch.Generator().manual_seed(0)
    gaps, naive = [], []
    for seed in range(40):
        fake, private, held_out = (torch.randn(n, 8, generator=rng) for n in (20, m, h))
        targets, labels, others = (torch.arange(len(x)) % 2 for x in (fake, private, held_out))
        gaps.append(knn_gap(fake, targets, private, labels, held_out, others, seed))
        near = knn_distance(fake, targets, private, labels)
        naive.append(knn_distance(fake, targets, held_out, others) - near)
    error = float(np.std(gaps, ddof=1)) / 40**0.5
    assert abs(np.mean(gaps)) < 4 * error
    assert np.mean(naive) * (m - h) > 0
    assert abs(np.mean(naive)) > 10 * error


def test_knn_gap_of_copies_has_the_sign_of_their_side() -> None:
    private, held_out, labels = gaussian(40, 6, 1), gaussian(80, 6, 1)[40:], torch.arange(40) % 4
    assert knn_gap(private, labels, private, labels, held_out, labels, seed=0) > 1
    assert knn_gap(held_out, labels, private, labels, held_out, labels, seed=0) < -1


def test_knn_gap_needs_every_class_on_both_sides() -> None:
    features, labels = gaussian(20, 3), torch.arange(20) % 2
    zeros = labels == 0
    with pytest.raises(ValueError, match=r"held-out.*class 1\b"):
        knn_gap(features, labels, features, labels, features[zeros], labels[zeros], seed=0)
    with pytest.raises(ValueError, match=r"private.*class 1\b"):
        knn_gap(features, labels, features[zeros], labels[zeros], features, labels, seed=0)
    with pytest.raises(ValueError, match=r"\(19,\)"):
        knn_gap(features, labels, features, labels, features, labels[1:], seed=0)


def random_case(n: int = 200, k: int = 10, scale: float = 4.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % k
    logits = scale * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return logits + scale * nn.functional.one_hot(targets, k), targets


def by_definition(logits: Tensor) -> float:
    p = logits.softmax(1).numpy()
    mean = p.mean(0)
    return math.exp(
        np.mean([sum(p[i, y] * math.log(p[i, y] / mean[y]) for y in range(len(mean))) for i in range(len(p))])
    )


@pytest.mark.parametrize("k", [2, 5, 10])
@pytest.mark.parametrize("gap", [200.0, 1000.0, 1e30])
def test_one_hot_logits_of_k_classes_score_k(k: int, gap: float) -> None:
    targets = torch.arange(20 * k) % k
    scores = inception(gap * nn.functional.one_hot(targets, k).float(), targets, splits=4)
    assert scores.score_mean == pytest.approx(k, rel=1e-12)
    assert scores.e6_mean == pytest.approx((k - 1) * 1e6, rel=1e-12)
    assert scores.kl_mean == pytest.approx(math.log(k), rel=1e-12)
    assert scores.score_std == pytest.approx(0, abs=1e-12)
    assert scores.within_class == pytest.approx(1, abs=1e-12)


def test_identical_logits_score_1() -> None:
    logits = torch.tensor([3.0, -700.0, 0.5, 2.0]).expand(80, 4)
    scores = inception(logits, torch.arange(80) % 4, splits=4)
    assert scores.e6_mean == pytest.approx(0, abs=1e-6)
    assert scores.score_mean == pytest.approx(1, abs=1e-12)
    assert scores.within_class == pytest.approx(1, abs=1e-12)


def test_one_image_per_split_scores_1() -> None:
    logits, targets = random_case(40)
    assert inception(logits, targets, splits=40).e6_mean == pytest.approx(0, abs=1e-6)
    assert inception(logits, targets, splits=1).e6_mean > 1e5


def test_inception_agrees_with_the_definition() -> None:
    logits, targets = random_case(60, 6)
    whole = by_definition(logits)
    classes = [by_definition(logits[targets == c]) for c in range(6)]
    scores = inception(logits, targets, splits=1)
    assert scores.score_mean == pytest.approx(whole, rel=1e-12)
    assert scores.within_class == pytest.approx(np.mean(classes), rel=1e-12)
    assert scores.e6_mean == pytest.approx(1e6 * (whole - 1), rel=1e-10)


def test_inception_averages_over_stratified_splits() -> None:
    logits, targets = random_case(60, 6)
    order = stratified_order(logits.log_softmax(1).numpy(), targets.numpy(), 2020)
    assert sorted(order) == list(range(60))
    parts = [order[j::5] for j in range(5)]
    assert all(np.bincount(targets[part], minlength=6).tolist() == [2] * 6 for part in parts)
    expected = [by_definition(logits[part]) for part in parts]
    scores = inception(logits, targets, splits=5)
    assert scores.score_mean == pytest.approx(np.mean(expected), rel=1e-12)
    assert scores.score_std == pytest.approx(np.std(expected, ddof=0), rel=1e-10)
    assert scores.score_std > 0
    assert scores.e6_mean == pytest.approx(1e6 * (scores.score_mean - 1), rel=1e-9)


def test_stratified_order_depends_on_the_seed() -> None:
    logits, targets = random_case(200, 2)
    log_p = logits.log_softmax(1).numpy()
    one, other = (stratified_order(log_p, targets.numpy(), seed) for seed in (1, 2))
    assert (one != other).mean() > 0.5


def test_inception_ignores_order_and_row_constants() -> None:
    logits, targets = random_case()
    rng = torch.Generator().manual_seed(3)
    order, shift = torch.randperm(200, generator=rng), 50 * torch.randn(200, 1, generator=rng, dtype=torch.float64)
    expected = vars(inception(logits, targets))
    assert vars(inception(logits[order], targets[order])) == pytest.approx(expected, rel=1e-12)
    assert vars(inception(logits + shift, targets)) == pytest.approx(expected, rel=1e-9)


def test_e6_mean_keeps_small_scores() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 1e-5 * torch.randn(400, 10, generator=rng, dtype=torch.float64)
    p = logits.softmax(1)
    second_order = float((p.var(0, correction=0) / p.mean(0)).sum() / 2)
    assert inception(logits, torch.arange(400) % 10, splits=1).e6_mean == pytest.approx(1e6 * second_order, rel=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inception_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.inception import InceptionScore

    logits, targets = random_case(120)

    class Lookup(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return logits[images[:, 0, 0, 0].long()].float()

    oracle = InceptionScore(feature=Lookup(), normalize=False, splits=1)
    oracle.update(torch.arange(120, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2))
    assert inception(logits, targets, splits=1).score_mean == pytest.approx(float(oracle.compute()[0]), rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_inception_refuses_logits_that_are_not_finite(bad: float) -> None:
    logits, targets = random_case(40)
    logits[7, 3] = bad
    with pytest.raises(ValueError, match="NaN"):
        inception(logits, targets, splits=2)


def test_inception_refuses_other_shapes_and_splits() -> None:
    for splits in (0, 41):
        with pytest.raises(ValueError, match=f"{splits} splits of 40"):
            inception(*random_case(40), splits=splits)
    with pytest.raises(ValueError, match=r"\(5,\)"):
        inception(torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64), splits=1)


def test_splits_for_makes_one_per_fifty_images() -> None:
    assert [splits_for(n) for n in (1, 20, 99, 100, 200, 499, 500, 1000, 60_000)] == [1, 1, 1, 2, 4, 9, 10, 10, 10]
