"""Spectral-DP: frequencies by hand, clipping and noise, and the faults of the published code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from privately_trained import (
    check_neighbours,
    convert,
    empty_batches,
    is_normal,
    moved,
    sums,
)
from torch import Tensor

from baselines.spectral_dp import (
    SpectralDp,
    Spectrum,
    block_frequencies,
    from_blocks,
    kernel_frequencies,
    layers_and_sides,
    low_frequencies,
    to_blocks,
)
from bench import nets
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.testing import CLASSES, SHAPE, toy_private


def network() -> nets.Classifier:
    torch.manual_seed(0)
    return nets.build("relu-cnn", SHAPE, CLASSES)


def spectrum(model: Any, **given: Any) -> Spectrum:
    return Spectrum(SpectralDp(**given), model, SHAPE)


# Frequencies


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
    matrix = kernel_frequencies((8, 8), (20, 20), 0.5)
    assert matrix.shape == (11 * 11, 64)
    found = matrix.T @ (matrix @ torch.tensor(kernel).flatten())
    torch.testing.assert_close(found, torch.tensor(filtered).flatten())


def test_layer_inputs_have_padded_sides() -> None:
    found = {name: sides for name, (_, sides) in layers_and_sides(network(), SHAPE).items()}
    assert list(found.values()) == [(20, 20), (12, 12), (1, 1), (1, 1)]


def test_blocks_by_hand() -> None:
    """A 3 x 3 in blocks of 2: four blocks with zeros beyond; the circulant part is the mean over wrapped diagonals."""
    g = torch.arange(1.0, 10).double().view(1, 3, 3)
    blocks = to_blocks(g, 2)
    assert blocks[0].tolist() == [[1, 2, 4, 5], [3, 0, 6, 0], [7, 8, 0, 0], [9, 0, 0, 0]]
    torch.testing.assert_close(from_blocks(blocks[0], torch.Size((3, 3)), 2), g[0])
    matrix = block_frequencies(2, 1.0)
    assert (blocks[0, 0] @ matrix.T @ matrix).tolist() == pytest.approx([3, 3, 3, 3])
    assert (torch.tensor([1.0, 0, 0, 0]).double() @ matrix.T @ matrix).tolist() == pytest.approx([0.5, 0, 0, 0.5])


def test_dense_update_is_block_circulant() -> None:
    made = spectrum(network(), ratio=1.0)
    name = "body.trunk.7.weight"
    update = made.decode({n: torch.randn(v.shape).double() for n, v in made.zeros().items()})[name]
    block = update[:8, :8]
    torch.testing.assert_close(block, block.roll((1, 1), (0, 1)))
    assert name not in spectrum(network(), block=1).matrices


# Sensitivity and noise


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
    assert math.sqrt(sum(float(value.square().sum()) for value in one.values())) <= 0.1


def test_every_kept_coefficient_has_the_full_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """sigma C / B on each real one; the published code has 1 / sqrt(2) of it, on sums that nothing has clipped."""
    empty_batches(monkeypatch)
    given = {"rate": 1.0, "momentum": 0, "clip": 0.6, "multiplier": 1.5, "ratio": 1.0, "block": 8}
    release = convert(SpectralDp, steps=1, batch=8, **given)
    parts = moved(release).split([w.numel() for w in release.student.parameters()])
    made = Spectrum(SpectralDp(ratio=1.0), release.student, SHAPE)
    named = dict(zip(made.weights, parts, strict=True))
    std = 1.5 * 0.6 / 8
    assert is_normal(named["body.trunk.3.weight"], std), "a crop of a whole orthonormal transform"
    dense = made.encode({n: named[n].view(w.shape)[None] for n, w in made.weights.items()})["body.trunk.7.weight"]
    assert is_normal(dense.flatten(), std)


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
    norm = math.sqrt(sum(float(v.square().sum()) for v in once.values()))
    assert norm == pytest.approx(0.1 * 127 / 128, rel=1e-3)
    assert math.sqrt(sum(float(v.square().sum()) for v in many.values())) == pytest.approx(64 * norm, rel=1e-4)


# Accounting, and what is learnt


def test_settings_are_the_papers() -> None:
    settings = SpectralDp().settings("mnist")
    assert (settings.batch, settings.steps, settings.clip, settings.rate) == (500, 3600, 0.5, 0.001)
    assert (settings.momentum, settings.nesterov, SpectralDp().ratio, SpectralDp().block) == (0.9, True, 0.5, 8)
