from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from scipy.stats import chi2, chisquare, kstest, norm

from bench.errors import BenchError
from bench.privacy.events import most_response_epsilon
from bench.privacy.mechanisms import (
    clip_rows,
    flip_probability,
    gaussian_rows,
    gaussian_shared_mean,
    keep_top_k,
    normalise_rows,
    randomised_response,
    randomised_response_as_printed,
)
from bench.privacy.noise import Noise


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assorted_rows(dtype: torch.dtype) -> torch.Tensor:
    rows = torch.randn(8, 7, generator=seeded(), dtype=torch.float64)
    scales = torch.tensor([0.0, 1e-30, 1e-6, 1e-2, 1.0, 50.0, 1e4, 6e4], dtype=torch.float64)
    return (rows.clamp(-1, 1) * scales[:, None]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 7.0])
def test_normalise_rows_is_strictly_below_the_bound(dtype, bound):
    out = normalise_rows(assorted_rows(dtype), bound)
    assert out.dtype == dtype
    if dtype in (torch.float32, torch.float64):
        assert (out.double().norm(dim=1) < bound).all()
    assert (out.double().norm(dim=1) < bound * (1 + torch.finfo(dtype).eps)).all()
    assert out.double().norm(dim=1)[-1] > 0.98 * bound


def test_normalise_rows_follows_its_formula():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-5, -4e-5]])
    out = normalise_rows(rows, 2.0, h=1e-4)
    torch.testing.assert_close(out[0], torch.tensor([6.0, 8.0]) / 5.0001)
    assert (out[1] == 0).all()
    torch.testing.assert_close(out[2], torch.tensor([6e-5, -8e-5]) / 1.5e-4)


@pytest.mark.parametrize("scale", [1e30, 3e38])
def test_normalise_rows_of_huge_values_is_finite(scale):
    out = normalise_rows(torch.full((1, 2), scale), 1.0)
    torch.testing.assert_close(out, torch.full((1, 2), 0.5**0.5))
    assert out.double().norm() < 1


@pytest.mark.parametrize("bounding", [normalise_rows, clip_rows])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_row_with_nan_or_infinity_becomes_zero(bounding, poison):
    rows = torch.ones(3, 4)
    clean = bounding(rows, 0.5)
    rows[1, 2] = poison
    out = bounding(rows, 0.5)
    assert (out[1] == 0).all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_rows_bounds_only_long_rows(dtype):
    rows = assorted_rows(dtype)
    out = clip_rows(rows, 1.5)
    norms = out.double().norm(dim=1)
    assert (norms <= 1.5 * (1 + torch.finfo(dtype).eps)).all()
    short = rows.double().norm(dim=1) <= 1.5
    assert torch.equal(out[short], rows[short])
    torch.testing.assert_close(norms[~short], torch.full_like(norms[~short], 1.5))
    torch.testing.assert_close(clip_rows(torch.tensor([[3.0, 4.0]]), 1.0), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("bounding", [normalise_rows, clip_rows])
@pytest.mark.parametrize("bound", [0.0, -1.0, 2.0**-101, 2.0**101, math.nan, math.inf])
def test_bound_outside_its_range_is_refused(bounding, bound):
    with pytest.raises(BenchError, match="bound"):
        bounding(torch.ones(1, 2), bound)


def test_keep_top_k_by_magnitude_and_by_value():
    row = torch.tensor([[0.1, -5.0, 3.0, 0.0, -0.2]])
    assert torch.equal(keep_top_k(row, 2, "magnitude"), torch.tensor([[0.0, -5.0, 3.0, 0.0, 0.0]]))
    assert torch.equal(keep_top_k(row, 2, "value"), torch.tensor([[0.1, 0.0, 3.0, 0.0, 0.0]]))
    assert torch.equal(keep_top_k(row, 5, "value"), row)


@pytest.mark.parametrize("by", ["magnitude", "value"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_keep_top_k_with_ties_keeps_k(by, k):
    assert (keep_top_k(torch.ones(4, 6), k, by).count_nonzero(dim=1) == k).all()


@pytest.mark.parametrize("k, by", [(0, "value"), (4, "value"), (1, "size")])
def test_keep_top_k_refuses_invalid_options(k, by):
    with pytest.raises(BenchError, match="top-k"):
        keep_top_k(torch.ones(2, 3), k, by)


def plausible_std(noise: torch.Tensor, std: float) -> bool:
    """Two-sided chi-square test of the variance, mean known to be 0, at level 1e-6."""
    statistic = float((noise.double() / std).square().sum())
    return bool(chi2.ppf(5e-7, noise.numel()) < statistic < chi2.ppf(1 - 5e-7, noise.numel()))


@pytest.mark.parametrize("std", [1e-3, 1.0, 250.0])
def test_gaussian_rows_has_its_scale_and_no_other(std):
    noise = gaussian_rows(torch.zeros(500, 10), std, seeded(1))
    assert plausible_std(noise, std)
    assert not plausible_std(noise, std * 2 / 3)
    assert not plausible_std(noise, std * 3 / 2)
    assert kstest(noise.flatten().numpy(), norm(0, std).cdf).pvalue > 1e-6
    assert kstest(noise.flatten().numpy(), norm(0, std * 3 / 2).cdf).pvalue < 1e-6


def test_gaussian_rows_covers_dropped_coordinates():
    rows = keep_top_k(torch.randn(2000, 5, generator=seeded(3)), 1, "magnitude")
    dropped = (gaussian_rows(rows, 0.5, seeded(4)) - rows)[rows == 0]
    assert len(dropped) == 8000
    # On a grid of 2^-11, 3.1 draws in 8000 round to zero; 16 or more with a chance of 2e-7.
    assert (dropped == 0).sum() < 16
    assert plausible_std(dropped, 0.5)


def test_gaussian_rows_draws_each_coordinate_separately(monkeypatch):
    generator, normal, drawn = seeded(6), Noise.normal, []
    monkeypatch.setattr(Noise, "normal", lambda *args: drawn.append(normal(*args)) or drawn[-1])
    released = [gaussian_rows(torch.zeros(100, 10, dtype=torch.float64), 1.0, generator) for _ in range(2)]
    assert torch.stack(drawn).unique().numel() == 2000
    torch.testing.assert_close(torch.stack(released), torch.stack(drawn), atol=2.0**-11 * 1.001, rtol=0)
    correlation = torch.corrcoef(gaussian_rows(torch.zeros(4000, 4), 1.0, generator).T)
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(4000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_noised_before_rounding(dtype):
    with pytest.raises(BenchError, match="float32 or float64"):
        gaussian_rows(torch.zeros(3, 2, dtype=dtype), 3.0, seeded(7))
    rows = torch.randn(300, 10, generator=seeded(8)).to(dtype)
    out = gaussian_shared_mean(rows, 3.0, seeded(7))
    assert out.dtype == dtype
    assert torch.equal(out, gaussian_shared_mean(rows.double(), 3.0, seeded(7)).to(dtype))
    torch.testing.assert_close(gaussian_shared_mean(rows, 0.0, seeded()), rows.double().mean(0).to(dtype))
    with pytest.raises(BenchError):
        gaussian_shared_mean(rows[:0], 1.0, seeded())


def test_gaussian_shared_mean_draws_once_for_all_rows():
    def noise(n: int, seed: int) -> torch.Tensor:
        return gaussian_shared_mean(torch.zeros(n, 4), 2.0, seeded(seed))

    torch.testing.assert_close(noise(1, 9), noise(64, 9) * 64)
    sums = torch.stack([noise(64, seed) * 64 for seed in range(600)])
    assert sums.shape == (600, 4)
    assert plausible_std(sums, 2.0)
    assert not plausible_std(sums, 2.0 * 8)
    assert not plausible_std(sums, 2.0 * 2 / 3)


def law(monkeypatch, answer, label: int, row: list[int], choices: int, epsilon: float) -> dict[int, float]:
    """The exact distribution of a response: the mechanism run on every outcome of its three draws, weighted by hand."""
    k = len(row)
    kept = math.exp(epsilon) / (math.exp(epsilon) + choices - 1)
    found: dict[int, float] = defaultdict(float)
    for stay, chance in ((True, kept), (False, 1 - kept)):
        for shift in range(1, choices):
            for anywhere in range(k):

                def flipped(noise, probability, n, stay=stay):
                    assert (float(probability), n) == (pytest.approx(1 - kept, rel=1e-12), 1)
                    return torch.tensor([not stay])

                def chosen(noise, low, high, n, shift=shift, anywhere=anywhere):
                    assert (low, high, n) in ((1, choices, 1), (0, k, 1))
                    return torch.tensor([shift if low == 1 else anywhere])

                monkeypatch.setattr(Noise, "chance", flipped)
                monkeypatch.setattr(Noise, "integers", chosen)
                result = int(answer(torch.tensor([label]), torch.tensor([row])))
                found[result] += chance / (choices - 1) / k
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("row", [[4, 1], [0, 3, 5], [2, 3, 4, 1]])
def test_randomised_response_ratio_is_e_to_the_epsilon(monkeypatch, row, epsilon):
    def answer(labels, candidates):
        return randomised_response(labels, candidates, epsilon, seeded())

    laws = [law(monkeypatch, answer, label, row, len(row), epsilon) for label in range(6)]
    for one in laws:
        assert set(one) == set(row)
        assert sum(one.values()) == pytest.approx(1)
    worst = max(one[y] / other[y] for one in laws for other in laws for y in row)
    assert worst == pytest.approx(math.exp(epsilon))
    k, kept = len(row), math.exp(epsilon) / (math.exp(epsilon) + len(row) - 1)
    assert laws[row[0]][row[0]] == pytest.approx(kept)
    assert laws[row[0]][row[1]] == pytest.approx((1 - kept) / (k - 1))
    outside = next(label for label in range(6) if label not in row)
    assert all(p == pytest.approx(1 / k) for p in laws[outside].values())


def test_eq_5_as_published_reveals_candidates(monkeypatch):
    def answer(labels, candidates):
        return randomised_response_as_printed(labels, candidates, 6, 1.0, seeded())

    inside = law(monkeypatch, answer, 1, [1, 3, 5], 6, 1.0)
    outside = law(monkeypatch, answer, 2, [1, 3, 5], 6, 1.0)
    kept = math.e / (math.e + 5)
    assert inside[1] == pytest.approx(kept)
    assert all(inside[y] == pytest.approx((1 - kept) / 5) for y in (0, 2, 3, 4, 5))
    assert outside == pytest.approx({1: 1 / 3, 3: 1 / 3, 5: 1 / 3})
    assert inside[0] > 0 == outside.get(0, 0.0)


def frequencies_fit(answers: torch.Tensor, expected: dict[int, float]) -> bool:
    counts = [int((answers == value).sum()) for value in expected]
    assert sum(counts) == len(answers)
    return bool(chisquare(counts, [p * len(answers) for p in expected.values()]).pvalue > 1e-6)


def expected_law(epsilon: float, k: int, row: list[int], label: int) -> dict[int, float]:
    flipped = 1 / (math.exp(epsilon) + k - 1)
    return {value: math.exp(epsilon) * flipped if value == label else flipped for value in row}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("row", [[7, 2], [1, 4, 9], list(range(10))])
def test_randomised_response_frequencies_fit_epsilon(epsilon, row):
    n, k, label = 100_000, len(row), row[-1]
    answers = randomised_response(torch.full((n,), label), torch.tensor([row]).expand(n, k), epsilon, seeded(12))
    assert frequencies_fit(answers, expected_law(epsilon, k, row, label))
    assert not frequencies_fit(answers, expected_law(epsilon * 0.8, k, row, label))
    assert not frequencies_fit(answers, expected_law(epsilon * 1.25, k, row, label))


def test_label_outside_candidates_has_uniform_response():
    answers = randomised_response(
        torch.full((30_000,), 9), torch.tensor([[1, 4, 6]]).expand(30_000, 3), 5.0, seeded(13)
    )
    assert frequencies_fit(answers, {1: 1 / 3, 4: 1 / 3, 6: 1 / 3})
    assert not frequencies_fit(answers, {1: 0.3, 4: 0.35, 6: 0.35})


@pytest.mark.parametrize("epsilon", [most_response_epsilon(2), math.inf])
def test_randomised_response_of_huge_epsilon_keeps_labels(epsilon):
    candidates = torch.stack([torch.randperm(10, generator=seeded(i))[:3] for i in range(200)])
    labels = candidates[:, 1]
    assert torch.equal(randomised_response(labels, candidates, epsilon, seeded()), labels)
    assert randomised_response(torch.tensor([0, 5]), torch.tensor([[5], [5]]), 1.0, seeded()).tolist() == [5, 5]
    strangers = torch.full((200,), 11)
    assert (randomised_response(strangers, candidates, epsilon, seeded())[:, None] == candidates).any(1).all()


def test_flip_probability_is_exact_up_to_the_limit():
    assert float(flip_probability(most_response_epsilon(2), 2)) == pytest.approx(2.0**-32, rel=1e-12)
    assert flip_probability(2.0, torch.tensor([1, 2, 5])).tolist() == pytest.approx(
        [0.0, 1 / (math.exp(2) + 1), 4 / (math.exp(2) + 4)], rel=1e-12
    )
    assert float(flip_probability(math.inf, 10)) == 0


def test_randomised_response_uses_each_rows_candidates():
    candidates = torch.stack([torch.randperm(10, generator=seeded(i))[:4] for i in range(500)])
    labels = torch.randint(0, 10, (500,), generator=seeded(16))
    answers = randomised_response(labels, candidates, 0.1, seeded(17))
    assert (answers[:, None] == candidates).any(1).all()
    same = randomised_response(torch.full((500,), 3), torch.arange(4).expand(500, 4), 0.0, seeded(18))
    assert frequencies_fit(same, dict.fromkeys(range(4), 0.25))


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, 24.5, 1e4])
def test_randomised_response_refuses_an_invalid_epsilon(epsilon):
    with pytest.raises(BenchError, match="epsilon"):
        randomised_response(torch.tensor([0]), torch.tensor([[0, 1]]), epsilon, seeded())
    with pytest.raises(BenchError, match="epsilon"):
        randomised_response_as_printed(torch.tensor([0]), torch.tensor([[0, 1]]), 10, epsilon, seeded())


def test_randomised_response_refuses_invalid_candidates():
    with pytest.raises(ValueError, match="twice"):
        randomised_response(torch.tensor([0]), torch.tensor([[0, 1, 0]]), 1.0, seeded())
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        randomised_response(torch.tensor([0, 1]), torch.tensor([[0, 1]]), 1.0, seeded())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_mechanisms_accept_a_cuda_generator():
    generator = torch.Generator("cuda").manual_seed(0)
    for device in ("cpu", "cuda"):
        noise = gaussian_rows(torch.zeros(500, 10, device=device), 2.0, generator)
        assert noise.device.type == device
        assert plausible_std(noise.cpu(), 2.0)
        assert gaussian_shared_mean(torch.zeros(5, 10, device=device), 2.0, generator).device.type == device
        labels, row = torch.full((20_000,), 4, device=device), torch.tensor([[1, 4, 6]], device=device)
        answers = randomised_response(labels, row.expand(20_000, 3), 1.0, generator)
        assert answers.device.type == device
        assert frequencies_fit(answers.cpu(), expected_law(1.0, 3, [1, 4, 6], 4))
