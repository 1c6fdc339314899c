"""RGP and Spectral-DP: coded gradients by hand, their noise, and one record's influence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from baseline_runs import is_normal, record_calls, rng
from privately_trained import check_neighbours, convert, empty_batches, moved, network, norm_of, split_like, sums
from torch import Tensor, nn

from baselines import spectral_dp
from baselines.rgp import Carriers, Rgp, power_iteration
from baselines.spectral_dp import SpectralDp, Spectrum, low_frequencies
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.testing import SHAPE, toy_private


class TwoLayers(nn.Module):
    """A carried weight of 3 x 4, its bias, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(4, 3), nn.Linear(3, 2)


def carriers(**given: Any) -> Carriers:
    made = Carriers(Rgp(**{"rank": 1, **given}), TwoLayers(), rng())
    made.begin(0)
    return made


def update(made: Carriers, weight: Tensor) -> dict[str, Tensor]:
    """The update by one gradient."""
    return made.decode({name: row[0] for name, row in made.encode(gradients_of(weight)).items()})


def gradients_of(weight: Tensor, bias: float = 3.0, head: float = 5.0) -> dict[str, Tensor]:
    return {
        "hidden.weight": weight[None],
        "hidden.bias": torch.full((1, 3), bias),
        "head.weight": torch.full((1, 2, 3), head),
        "head.bias": torch.full((1, 2), head),
    }


def test_power_iteration_by_hand() -> None:
    """diag(3, 4) from (1, 1): L ~ (3, 4) / 5, and D^T L ~ (9, 16) / 5, so R ~ (9, 16) / sqrt(337)."""
    left, right = power_iteration(torch.diag(torch.tensor([3.0, 4.0])), torch.ones(2, 1), 1)
    assert left.abs().flatten().tolist() == pytest.approx([0.6, 0.8])
    assert right.abs().flatten().tolist() == pytest.approx([9 / 337**0.5, 16 / 337**0.5])


@pytest.mark.parametrize("carried", ["both", "left"])
def test_carrier_gradients_and_update_by_hand(carried: str) -> None:
    """L = e_1, R = e_2^T: dL is G's second column, dR its first row, and dW is G on that column and that row."""
    made = carriers(carriers=carried)
    made.left["hidden.weight"] = torch.tensor([[1.0], [0], [0]]).double()
    made.right["hidden.weight"] = torch.tensor([[0.0, 1, 0, 0]]).double()
    g = torch.arange(12.0).view(3, 4)
    rows, back = made.encode(gradients_of(g)), update(made, g)
    assert set(rows) == set(made.zeros()) and ("hidden.weight/right" in rows) == (carried == "both")
    assert rows["hidden.weight/left"].flatten().tolist() == [1, 5, 9]
    if carried == "both":
        assert rows["hidden.weight/right"].flatten().tolist() == [0, 1, 2, 3]
    first = [0, 1, 2, 3] if carried == "both" else [0, 1, 0, 0]
    assert back["hidden.weight"].tolist() == [first, [0, 5, 0, 0], [0, 9, 0, 0]]
    assert back["hidden.bias"].tolist() == [3, 3, 3]


def test_carrier_gradients_match_reparametrised_layer() -> None:
    """W = L R + constant: autograd's gradients of L and R."""
    made = carriers(rank=2)
    model, x = TwoLayers(), torch.randn(4, generator=rng(1)).double()
    left, right = (held["hidden.weight"].clone().requires_grad_() for held in (made.left, made.right))
    w = model.hidden.weight.detach().double()
    ((left @ right + (w - left @ right).detach()) @ x).pow(2).sum().backward()
    plain = w.clone().requires_grad_()
    (plain @ x).pow(2).sum().backward()
    assert plain.grad is not None
    rows = made.encode(gradients_of(plain.grad))
    torch.testing.assert_close(rows["hidden.weight/left"][0], left.grad)
    torch.testing.assert_close(rows["hidden.weight/right"][0], right.grad)


def test_update_is_the_projection_on_the_span() -> None:
    """dW = G - (I - L L^T) G (I - R^T R): nothing is lost at full rank, and everything stays in the span."""
    made, g = carriers(rank=2), torch.randn(3, 4, generator=rng(2)).double()
    left, right = made.left["hidden.weight"], made.right["hidden.weight"]
    lost = (torch.eye(3).double() - left @ left.T) @ g @ (torch.eye(4).double() - right.T @ right)
    torch.testing.assert_close(update(made, g)["hidden.weight"], g - lost)
    torch.testing.assert_close(update(carriers(rank=16), g)["hidden.weight"], g)


@pytest.mark.parametrize("carried", ["both", "left"])
def test_carriers_come_from_weight_then_its_update(carried: str) -> None:
    """The left carriers are computed only from the weight, in all steps, as in the code."""
    made = carriers(warm_up=2, carriers=carried)
    with torch.no_grad():
        made.weights["hidden.weight"].add_(torch.outer(torch.tensor([0.0, 1, 0]), torch.tensor([0.0, 0, 0, 9.0])))
    w, w0 = made._matrix("hidden.weight"), made.first["hidden.weight"]
    for step, target in ((1, w), (2, w if carried == "left" else w / w.norm() - w0 / w0.norm())):
        made.rng.manual_seed(7)
        made.begin(step)
        start = torch.randn(4, 1, generator=rng(7)).double()
        left, right = power_iteration(target, start, 1)
        torch.testing.assert_close(made.left["hidden.weight"], left)
        torch.testing.assert_close(made.right["hidden.weight"], right)


def test_classifier_gradient_is_scaled_without_carriers() -> None:
    made = carriers()
    rows = made.encode(gradients_of(torch.zeros(3, 4)))
    assert made.carried == ["hidden.weight"] and made.head == "head"
    assert rows["head.weight"].unique().tolist() == [0.05] and rows["head.bias"].unique().tolist() == [0.05]
    assert rows["hidden.bias"].unique().tolist() == [3.0]


@pytest.mark.parametrize("carried", ["both", "left"])
def test_update_noise_is_that_of_the_carriers(monkeypatch: pytest.MonkeyPatch, carried: str) -> None:
    """One step, empty batch: L^T dW R^T of both carriers is N_L R R^T.. = that of dL in the span, sigma C / B each."""
    calls = record_calls(monkeypatch, Carriers, "begin")
    empty_batches(monkeypatch)
    given = {"rate": 1.0, "momentum": 0, "weight_decay": 0, "clip": 0.6, "multiplier": 1.5, "rank": 8}
    release = convert(Rgp, steps=1, batch=8, carriers=carried, **given)
    made, parts = calls[0].arguments[0], split_like(moved(release), release.student)
    std, found = 1.5 * 0.6 / 8, {"left": [], "right": []}  # type: ignore[var-annotated]
    for name in made.carried:
        left, right = made.left[name], made.right[name]
        dw = parts[name].view(len(left), -1)
        outside_left, outside_right = dw - left @ (left.T @ dw), dw - dw @ right.T @ right
        # dW R^T off the span of L is dL there; L^T dW is dR, but in the span of R where both carriers meet.
        found["left"].append(((outside_left @ right.T) ** 2).sum() / ((len(left) - left.shape[1]) * left.shape[1]))
        rows = right.shape[0] * (right.shape[1] - right.shape[0])
        found["right"].append(((left.T @ outside_right) ** 2).sum() / rows)
        assert float((outside_left - outside_left @ right.T @ right).abs().max()) < 1e-5, "outside of both spans"
    assert math.sqrt(float(torch.stack(found["left"]).mean())) == pytest.approx(std, rel=0.1)
    right_std = math.sqrt(float(torch.stack(found["right"]).mean()))
    assert right_std == pytest.approx(std, rel=0.1) if carried == "both" else right_std < 1e-5
    assert is_normal(torch.cat([parts[name] for name in parts if name not in made.first]), std)


@pytest.mark.parametrize("carried", ["both", "left"])
def test_one_record_moves_sum_by_at_most_clipping_norm(carried: Any) -> None:
    model = network()
    gradients = GRADIENTS["opacus"](model, 1)
    coding = Carriers(Rgp(rank=4, clip=0.05, carriers=carried), model, rng())
    coding.begin(0)
    images, labels = toy_private(n=250)
    check_neighbours(coding, gradients, images.float() / 255, labels)
    one = sums(coding, gradients, images[:1].float() / 255, labels[:1])
    assert norm_of(one) == pytest.approx(0.05 * 127 / 128, rel=1e-4)


def spectrum(model: Any, **given: Any) -> Spectrum:
    return Spectrum(SpectralDp(**given), model, SHAPE)


def test_frequencies_by_hand() -> None:
    """Basis for four numbers: the mean, one cosine and one sine; with ratio 1 also the alternating one."""
    s = math.sqrt(0.5)
    expected = [[0.5, 0.5, 0.5, 0.5], [s, 0, -s, 0], [0, s, 0, -s], [0.5, -0.5, 0.5, -0.5]]
    torch.testing.assert_close(low_frequencies(4, 1.0), torch.tensor(expected).double())
    torch.testing.assert_close(low_frequencies(4, 0.5), torch.tensor(expected[:3]).double())


@pytest.mark.parametrize("size", [1, 2, 7, 8, 12])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_frequencies_are_an_orthonormal_fourier_basis(size: int, ratio: float) -> None:
    rows = low_frequencies(size, ratio)
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)).double())
    assert ratio < 1 or len(rows) == size
    x = np.random.default_rng(0).normal(size=size)
    spectrum = np.fft.fft(x)
    spectrum[np.abs(np.fft.fftfreq(size, 1 / size)) > ratio * size / 2] = 0
    filtered = np.fft.ifft(spectrum)
    assert np.abs(filtered.imag).max() < 1e-12
    torch.testing.assert_close(rows.T @ (rows @ torch.tensor(x)), torch.tensor(filtered.real))


def test_frequencies_are_kept_with_noise_or_dropped() -> None:
    """The published code's slice leaves the last frequency, or row and column, with neither."""
    made = spectrum(network())
    noisy = {name: torch.randn(value.shape, dtype=torch.float64) for name, value in made.zeros().items()}
    kernel = made.decode(noisy)["body.trunk.0.weight"]
    back = made.encode({"body.trunk.0.weight": kernel[None], **rest(made)})["body.trunk.0.weight"]
    matrix = made.matrices["body.trunk.0.weight"]
    torch.testing.assert_close(back[0], noisy["body.trunk.0.weight"] @ matrix @ matrix.T)
    zero = made.decode({name: torch.zeros_like(value) for name, value in noisy.items()})
    assert all(not value.any() for value in zero.values()), "nothing reaches the weights but what is noised"


def rest(made: Spectrum) -> dict[str, Tensor]:
    return {n: torch.zeros_like(w)[None] for n, w in made.weights.items() if n != "body.trunk.0.weight"}


def test_kernel_is_filtered_at_its_input_size() -> None:
    """By numpy: pad 8 x 8 to 20 x 20, transform, drop, transform back, crop."""
    kernel = np.random.default_rng(1).normal(size=(8, 8))
    frequencies = np.abs(np.fft.fftfreq(20, 1 / 20)) <= 5
    filtered = np.fft.ifft2(np.fft.fft2(kernel, (20, 20)) * np.outer(frequencies, frequencies)).real[:8, :8]
    matrix = spectral_dp.kernel_frequencies((8, 8), (20, 20), 0.5)
    assert matrix.shape == (11 * 11, 64)
    found = matrix.T @ (matrix @ torch.tensor(kernel).flatten())
    torch.testing.assert_close(found, torch.tensor(filtered).flatten())


def test_layer_inputs_have_padded_sides() -> None:
    found = {name: sides for name, (_, sides) in spectral_dp.layers_and_sides(network(), SHAPE).items()}
    assert list(found.values()) == [(20, 20), (12, 12), (1, 1), (1, 1)]


def test_blocks_by_hand() -> None:
    """A 3 x 3 in blocks of 2: four blocks with zeros beyond; the circulant part is the mean over wrapped diagonals."""
    g = torch.arange(1.0, 10).double().view(1, 3, 3)
    blocks = spectral_dp.to_blocks(g, 2)
    assert blocks[0].tolist() == [[1, 2, 4, 5], [3, 0, 6, 0], [7, 8, 0, 0], [9, 0, 0, 0]]
    torch.testing.assert_close(spectral_dp.from_blocks(blocks[0], torch.Size((3, 3)), 2), g[0])
    matrix = spectral_dp.block_frequencies(2, 1.0)
    assert (blocks[0, 0] @ matrix.T @ matrix).tolist() == pytest.approx([3, 3, 3, 3])
    assert (torch.tensor([1.0, 0, 0, 0]).double() @ matrix.T @ matrix).tolist() == pytest.approx([0.5, 0, 0, 0.5])


def test_dense_update_is_block_circulant() -> None:
    made = spectrum(network(), ratio=1.0)
    name = "body.trunk.7.weight"
    update = made.decode({n: torch.randn(v.shape).double() for n, v in made.zeros().items()})[name]
    block = update[:8, :8]
    torch.testing.assert_close(block, block.roll((1, 1), (0, 1)))
    assert name not in spectrum(network(), block=1).matrices


def test_coefficients_are_not_longer_than_gradients() -> None:
    for matrix in spectrum(network()).matrices.values():
        assert float(torch.linalg.matrix_norm(matrix, 2)) <= 1 + 1e-9


@pytest.mark.parametrize("given", [{}, {"ratio": 1.0}, {"block": 1, "ratio": 0.2}])
def test_one_record_moves_layers_by_at_most_their_share(given: dict[str, Any]) -> None:
    model = network()
    gradients = GRADIENTS["opacus"](model, 1)
    coding = spectrum(model, clip=0.1, **given)
    images, labels = toy_private(n=250)
    check_neighbours(coding, gradients, images.float() / 255, labels)
    assert [group.bound for group in coding.groups()] == pytest.approx([0.05] * 4)
    one = sums(coding, gradients, images[:1].float() / 255, labels[:1])
    assert norm_of(one) <= 0.1


def test_every_kept_coefficient_has_the_full_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """sigma C / B on each real one; the published code has 1 / sqrt(2) of it, on sums that nothing has clipped."""
    empty_batches(monkeypatch)
    given = {"rate": 1.0, "momentum": 0, "clip": 0.6, "multiplier": 1.5, "ratio": 1.0, "block": 8}
    release = convert(SpectralDp, steps=1, batch=8, **given)
    made, named = spectrum(release.student, ratio=1.0), split_like(moved(release), release.student)
    std = 1.5 * 0.6 / 8
    assert is_normal(named["body.trunk.3.weight"], std), "a crop of a whole orthonormal transform"
    dense = made.encode({n: named[n].view(w.shape)[None] for n, w in made.weights.items()})["body.trunk.7.weight"]
    assert is_normal(dense, std)


def test_noise_falls_with_the_share_of_frequencies() -> None:
    """Kernels on maps of 12 x 12 keep 7 x 7 of 12 x 12 frequencies, and that share of the noise's energy."""
    made = spectrum(network())
    energy = made.matrices["body.trunk.3.weight"].square().sum(0)
    assert energy.tolist() == pytest.approx([49 / 144] * 16)


def test_gradients_are_clipped_before_division() -> None:
    """The published code divides by the batch first, so that nothing is clipped: twice the records, twice the sum."""
    model = network()
    gradients = GRADIENTS["opacus"](model, 1)
    coding, (images, labels) = spectrum(model, clip=0.1), toy_private(n=1)
    once = sums(coding, gradients, images.float() / 255, labels)
    many = sums(coding, gradients, images.repeat(64, 1, 1, 1).float() / 255, labels.repeat(64))
    assert norm_of(once) == pytest.approx(0.1 * 127 / 128, rel=1e-3)
    assert norm_of(many) == pytest.approx(64 * norm_of(once), rel=1e-4)
