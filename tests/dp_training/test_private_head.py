"""The private head and the whitening of its rows: one record's influence, the noise, and folded layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from bench.dp_training import linear_head, whitening
from bench.dp_training.clipping import ROOM
from bench.dp_training.exact_products import exact_products
from bench.dp_training.fixed_features import normalised
from bench.dp_training.linear_head import HeadSettings, clipped_sum, noisy_descent
from bench.dp_training.whitening import (
    REPLACED,
    noisy_second_moment,
    private_whitening,
    public_whitening,
    second_moment,
)
from bench.errors import BenchError
from bench.testing import context

RECORDS, D, CLASSES, CLIP = 20_000, 64, 10, 0.3
LEVEL = 1e-4
"""Significance of the statistical tests, which have fixed seeds."""


def unit(n: int, d: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)))


def similar_rows(n: int = RECORDS) -> tuple[Tensor, Tensor, Tensor]:
    """Rows near one direction, so that sums are large; their labels; weights that misclassify them."""
    rows = F.normalize(unit(n, D, 0) * 0.1 + unit(1, D, 1))
    labels = torch.arange(n) % CLASSES
    return rows, labels, 5 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(2))


def sum_in_16_bits(rows: Tensor, labels: Tensor, weight: Tensor, clip: float) -> Tensor:
    """A faulty sum: products added in bfloat16, a large chunk at a time."""
    total = torch.zeros(weight.shape)
    for part, own in zip(rows.split(5000), labels.split(5000), strict=True):
        hits = F.one_hot(own.clamp_min(0), len(weight)).float() * (own >= 0)[:, None]
        off = ((part @ weight.T).softmax(1) - hits) * (own >= 0)[:, None]
        off *= (clip / off.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)
        total += (off.bfloat16().T @ part.bfloat16()).float()
    return total.double()


def sensitivity(sums: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> float:
    """Largest change of the sum, over C, by one absent record of several."""
    rows, labels, weight = similar_rows()
    whole, moved = sums(rows, labels, weight, CLIP), []
    for missing in (0, 1, 255, 256, 7777, RECORDS - 1):
        without = labels.clone()
        without[missing] = -1
        moved.append(float((whole - sums(rows, without, weight, CLIP)).norm()) / CLIP)
    return max(moved)


def test_clipped_sum_has_sensitivity_c() -> None:
    assert 0.9 < sensitivity(clipped_sum) <= 1
    assert sensitivity(sum_in_16_bits) > 1.5, "products added in bfloat16 have no such bound"


def test_clipped_sum_of_a_zero_row_equals_an_absent_record() -> None:
    rows, labels, weight = similar_rows(1000)
    zeroed, gone = rows.clone(), labels.clone()
    zeroed[5], gone[5] = 0, -1
    assert torch.equal(clipped_sum(zeroed, labels, weight, CLIP), clipped_sum(rows, gone, weight, CLIP))


def test_clipped_sum_adds_chunks_in_float64() -> None:
    """256 records at a time are added in float32, for which the allowance below the clipping norm suffices."""
    rows, labels, weight = similar_rows(1000)
    whole = clipped_sum(rows, labels, weight, CLIP)
    total = sum(clipped_sum(*part, weight, CLIP) for part in zip(rows.split(256), labels.split(256), strict=True))
    assert whole.dtype == torch.float64 and torch.equal(whole, total)


def test_clipped_sum_is_the_gradient_if_unclipped() -> None:
    rows, labels, weight = unit(500, D, 0).double().float(), torch.arange(500) % CLASSES, torch.randn(CLASSES, D)
    weight.requires_grad_()
    F.cross_entropy(rows @ weight.T, labels, reduction="sum").backward()
    found = clipped_sum(rows, labels, weight.detach(), 100.0)
    torch.testing.assert_close(found.float(), weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [1, 4, 16])
def test_second_moment_of_a_removed_record_changes_by_1(places: int) -> None:
    rows = F.normalize(unit(5000, D, 0) * 0.1 + unit(1, D, 1))
    whole = second_moment(rows, places)
    assert torch.equal(whole, whole.T) and whole.shape == (D // places, D // places)
    parts = rows.unflatten(1, (-1, places)).double()
    torch.testing.assert_close(whole, torch.einsum("nip,njp->ij", parts, parts), rtol=1e-5, atol=1e-5)
    for missing in (0, 300, 4999):
        without = rows.clone()
        without[missing] = 0
        moved = float((whole - second_moment(without, places)).norm())
        assert (0.99 if places == 1 else 0.2) < moved <= 1 + 2**-7


def test_second_moment_of_a_replaced_record_by_sqrt_2() -> None:
    for seed in range(20):
        pair = unit(2, D, seed)
        one, other = (second_moment(row[None], 4) for row in pair)
        assert float((one - other).norm()) <= REPLACED
    across = torch.eye(D)[:2]
    assert float((second_moment(across[:1]) - second_moment(across[1:])).norm()) == pytest.approx(REPLACED)


def is_normal(values: Tensor, std: float) -> bool:
    """Whether the variance of draws with mean 0 is that of N(0, std^2), by a two-sided chi-square test."""
    total, freedom = float(values.double().square().sum()) / std**2, values.numel()
    return bool(LEVEL / 2 < stats.chi2.cdf(total, freedom) < 1 - LEVEL / 2)


def test_noisy_second_moment_has_its_deviations() -> None:
    std, rows = 3.0, torch.zeros(4, 300)
    made = noisy_second_moment(rows, 1, std, torch.Generator().manual_seed(0))
    assert torch.equal(made, made.T)
    wide = std * (1 + 2**-7)
    diagonal, off = made.diagonal(), made[torch.triu_indices(300, 300, 1).unbind()]
    assert is_normal(diagonal, wide) and is_normal(off, wide / math.sqrt(2))
    exact = noisy_second_moment(unit(100, 12, 0), 3, 0.0, torch.Generator())
    torch.testing.assert_close(exact, second_moment(unit(100, 12, 0), 3), rtol=1e-12, atol=1e-12)
    for wrong in (2 / 3, 3 / 2):
        assert not is_normal(diagonal, wide * wrong) and not is_normal(off, wide / math.sqrt(2) * wrong)
    assert not is_normal(off, wide)


def test_noisy_descent_step_has_its_deviation() -> None:
    """With empty records only noise remains: W = -rate noise / n after one step."""
    rows, labels, settings = torch.zeros(50, 2000), torch.full((50,), -1), HeadSettings(1, CLIP, 2.0, 0.9)
    noise = torch.Generator().manual_seed(0)
    weight = noisy_descent(rows, labels, CLASSES, settings, 7.0, noise, context(), "test")
    assert is_normal(weight, 7.0 * 2.0 / 50)
    assert not is_normal(weight, 7.0 * 2.0 / 50 * 2 / 3) and not is_normal(weight, 7.0 * 2.0 / 50 * 3 / 2)


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("kind", ["private", "public"])
def test_whitened_rows_and_folded_layer_agree(kind: str, places: int) -> None:
    rows = F.normalize(unit(400, 40, 0) * torch.linspace(1, 20, 40))
    if kind == "private":
        white = private_whitening(rows, places, 0.5, 1.0, torch.Generator().manual_seed(0))
    else:
        white = public_whitening(rows, places, 0.1)
    made = white(rows)
    torch.testing.assert_close(made.norm(dim=1), torch.ones(400), rtol=1e-5, atol=0)
    weight = torch.randn(CLASSES, made.shape[1], generator=torch.Generator().manual_seed(1))
    folded, bias = white.folded(weight)
    ours, theirs = rows @ folded.T + bias, made @ weight.T
    assert float((ours.argmax(1) == theirs.argmax(1)).float().mean()) > 0.99
    torch.testing.assert_close(F.normalize(ours), F.normalize(theirs), rtol=1e-3, atol=1e-3)
    assert (kind == "public") == bool(bias.abs().max() > 0)


def test_public_whitening_has_unit_covariance() -> None:
    rows = F.normalize(unit(4000, 20, 0) * torch.linspace(1, 5, 20) + 3)
    white = public_whitening(rows, 1, 1e-3)
    covariance = torch.cov(((rows - white.mean) @ white.matrix).T)
    assert float((covariance - torch.eye(20)).abs().max()) < 0.1


def test_private_whitening_doubles_a_small_shift() -> None:
    white = private_whitening(unit(10, 50, 0), 1, 5.0, 1e-3, torch.Generator().manual_seed(0))
    assert white.matrix.isfinite().all()


@pytest.mark.parametrize(("least", "doubled"), [(1e-6, True), (9e-4, True), (2e-3, False), (0.5, False)])
def test_nearly_singular_moments_are_shifted_more(monkeypatch: pytest.MonkeyPatch, least: float, doubled: bool) -> None:
    """One direction of noise would otherwise be most of every row."""
    shift = 0.01 * math.sqrt(2 * 20)  # kappa 0.01 without noise
    moment = torch.diag(torch.linspace(0.5, 2.0, 20, dtype=torch.float64))
    moment[0, 0] = (least - 1) * shift
    monkeypatch.setattr(whitening, "noisy_second_moment", lambda *_: moment)
    white = private_whitening(unit(10, 20, 0), 1, 0.0, 0.01, torch.Generator())
    expected = (moment.diagonal() + (2 if doubled else 1) * shift).rsqrt().float()
    assert torch.allclose(white.matrix.diagonal(), expected, rtol=1e-4)


def test_noisy_descent_learns_a_linear_task() -> None:
    rows = unit(3000, 20, 0)
    labels = (rows @ torch.randn(20, 4, generator=torch.Generator().manual_seed(1))).argmax(1)
    settings = HeadSettings(60, 0.3, 300.0, 0.9, average=0.5)
    weight = noisy_descent(rows, labels, 4, settings, 0.3, torch.Generator().manual_seed(0), context(), "test")
    assert float(((rows @ weight.T).argmax(1) == labels).float().mean()) > 0.95


@pytest.mark.parametrize(
    "given", [{"steps": 0}, {"rate": 0.0}, {"clip": 0.0}, {"momentum": 1.0}, {"average": 2.0}], ids=str
)
def test_head_settings_refuse_values_out_of_range(given: dict[str, float]) -> None:
    usual: dict[str, float] = {"steps": 5, "clip": 0.3, "rate": 1.0, "momentum": 0.9}
    with pytest.raises((ValueError, BenchError), match=next(iter(given))):
        HeadSettings(**(usual | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("sums", ["gradients", "moments"])
def test_sums_are_exact_under_autocast(sums: str) -> None:
    rows, labels, weight = similar_rows(1000)

    def of_them() -> Tensor:
        return clipped_sum(rows, labels, weight, CLIP) if sums == "gradients" else second_moment(rows)

    plain = of_them()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(of_them(), plain)


def test_clipped_sum_refuses_lower_matmul_precision() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(BenchError, match="highest"):
            clipped_sum(*similar_rows(10), CLIP)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_exact_products_switches_tf32_of_cudnn_off() -> None:
    """torch's default for cuDNN is TF32."""
    assert torch.backends.cudnn.allow_tf32, "else this cannot fail"
    with exact_products(torch.device("cpu")):
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("differ", [False, True], ids=["for every backend", "differ each other"])
def test_exact_products_for_any_precision_of_cudnn(differ: bool) -> None:
    """torch's older switch, `allow_tf32`, leaves TF32 on in the one case and raises in the other."""
    backends, kinds = torch.backends, [getattr(torch.backends.cudnn, name, None) for name in ("conv", "rnn")]
    if not all(hasattr(kind, "fp32_precision") for kind in kinds):
        pytest.skip("this torch has no precision of one kind of operation")
    conv, rnn = kinds
    before = [kind.fp32_precision for kind in kinds]
    exact = [backends.cuda.matmul, backends.mkldnn.matmul, backends.mkldnn.conv]
    try:
        if differ:
            rnn.fp32_precision = "ieee"
        else:
            backends.fp32_precision = "tf32"
            for each in exact:
                each.fp32_precision = "ieee"
        with exact_products(torch.device("cpu")):
            assert (conv.fp32_precision, rnn.fp32_precision) == ("ieee", "ieee")
        assert conv.fp32_precision == "tf32", "as it was"
        assert rnn.fp32_precision == ("ieee" if differ else "tf32")
    finally:
        for each in (backends, *exact):
            each.fp32_precision = "none"
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


@pytest.mark.parametrize(
    ("backend", "operator", "precision"),
    [("mkldnn", "matmul", "tf32"), ("cuda", "matmul", "tf32"), ("mkldnn", "conv", "tf32"), ("mkldnn", "conv", "bf16")],
)
def test_clipped_sum_refuses_lower_precision_of_a_backend(backend: str, operator: str, precision: str) -> None:
    """torch itself does not return one precision then."""
    setting = getattr(getattr(torch.backends, backend), operator, None)
    if not hasattr(setting, "fp32_precision"):
        pytest.skip("this torch has no precision of one backend's products")
    setting.fp32_precision = precision
    try:
        with pytest.raises(BenchError, match=rf"{backend}\.{operator}\.fp32_precision is '{precision}'"):
            clipped_sum(*similar_rows(10), CLIP)
    finally:
        setting.fp32_precision = "none"
    clipped_sum(*similar_rows(10), CLIP)


@pytest.mark.parametrize(
    ("name", "rounds", "exact"),
    [
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "STRICT"),
        ("DNNL_DEFAULT_FPMATH_MODE", "any", "strict"),
        ("NVIDIA_TF32_OVERRIDE", "1", "0"),
    ],
)
def test_clipped_sum_refuses_lower_precision_by_environment(
    name: str, rounds: str, exact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries of torch read it; torch does not report it."""
    monkeypatch.setenv(name, rounds)
    with pytest.raises(BenchError, match=f"{name}={rounds}.*{exact.lower()}"):
        clipped_sum(*similar_rows(10), CLIP)
    monkeypatch.setenv(name, exact)
    clipped_sum(*similar_rows(10), CLIP)


def test_clipped_sum_ignores_an_overflowing_record() -> None:
    rows = torch.stack([F.one_hot(torch.tensor(0), D).float(), torch.full((D,), D**-0.5)])
    weight = torch.zeros(CLASSES, D)
    weight[0] = 3e38  # times the second row it is infinite
    found = clipped_sum(rows, torch.tensor([1, 1]), weight, CLIP)
    assert found.isfinite().all() and torch.equal(found, clipped_sum(rows[:1], torch.tensor([1]), weight, CLIP))


def test_normalised_row_of_mixed_sizes_has_norm_1() -> None:
    rows = torch.full((1, 62_208), 1e-4)
    rows[0, 0] = 1.0
    assert abs(float(normalised(rows).double().norm()) - 1) < 1e-6


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("records", [1, 31, 511, 600])
def test_blocks_hold_few_rows_for_any_number_of_threads(
    lanes: int, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 256 rows are added in float32, also in the last blocks."""
    monkeypatch.setattr(linear_head, "_lanes", lambda _: lanes)
    rows, labels = torch.nn.functional.normalize(torch.randn(records, 7), dim=1), torch.arange(records) % 3
    found = [(part.clone(), own) for part, own in linear_head._blocks(rows, labels, None)]
    assert max(part.shape[1] for part, _ in found) <= linear_head.BLOCK
    assert torch.equal(torch.cat([part.flatten(0, 1) for part, _ in found]), rows)
    weight = torch.randn(3, 7)
    off = (rows @ weight.T).softmax(1) - torch.eye(3)[labels]
    expected = (off * (ROOM * 0.1 / off.norm(dim=1, keepdim=True)).clamp(max=1)).double().T @ rows.double()
    torch.testing.assert_close(linear_head.clipped_sum(rows, labels, weight, 0.1), expected, rtol=1e-5, atol=1e-6)
