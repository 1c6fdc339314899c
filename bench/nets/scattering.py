"""Data-independent features: a small wavelet scattering transform.

Wavelets, moduli and local averages do not depend on any data set, so that a linear layer on top learns from few images,
and a release may use the features without privacy cost.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ANGLES = 4
CENTRE_FREQUENCY, BANDWIDTH = 0.75 * math.pi, 0.8


class Scattering(nn.Module):
    """Scattering of orders 0, 1 and 2 over two scales (Bruna and Mallat, 2013), averaged over 4x4 pixels.

    The first order is |x * psi_1| and |x * psi_2|, psi_j the Morlet wavelets of scale 2^(j-1) in `ANGLES` directions;
    the second ||x * psi_1| * psi_2|. 25 channels of h/4 x w/4 for one input channel; several input channels are
    averaged first.
    """

    def __init__(self) -> None:
        super().__init__()
        for scale, size in ((1, 7), (2, 13)):
            self.register_buffer(f"psi_{scale}", morlets(size, scale), persistent=False)
        self.register_buffer("phi_4", gaussian_window(13, 2.4), persistent=False)
        self.register_buffer("phi_2", gaussian_window(7, 1.2), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, 25, ceil(h / 4), ceil(w / 4)), non-negative for non-negative images."""
        x = images.mean(1, keepdim=True)
        n = x.shape[0]
        first, coarse = _modulus(x, self.psi_1, 1), _modulus(x, self.psi_2, 2)
        again = _modulus(first.flatten(0, 1)[:, None], self.psi_2, 2)
        second = again.reshape(n, ANGLES * ANGLES, *again.shape[2:])  # `view` fails for channels-last tensors
        smooth = [_average(x, self.phi_4, 4), _average(first, self.phi_4, 4)]
        return torch.cat([*smooth, _average(coarse, self.phi_2, 2), _average(second, self.phi_2, 2)], 1)

    psi_1: Tensor
    psi_2: Tensor
    phi_4: Tensor
    phi_2: Tensor


def morlets(size: int, scale: int) -> Tensor:
    """Return (2 ANGLES, 1, size, size): real parts, then imaginary parts of Morlet wavelets, whose mean is zero."""
    r = torch.arange(size, dtype=torch.float32) - size // 2
    y, x = torch.meshgrid(r, r, indexing="ij")
    sigma, frequency, slant = BANDWIDTH * scale, CENTRE_FREQUENCY / scale, 4 / ANGLES
    real, imaginary = [], []
    for step in range(ANGLES):
        cos, sin = math.cos(math.pi * step / ANGLES), math.sin(math.pi * step / ANGLES)
        along, across = cos * x + sin * y, cos * y - sin * x
        envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
        wave = envelope * torch.cos(frequency * along)
        norm = slant / (2 * math.pi * sigma**2)
        real.append(norm * (wave - wave.sum() / envelope.sum() * envelope))
        imaginary.append(norm * envelope * torch.sin(frequency * along))
    return torch.stack(real + imaginary)[:, None]


def gaussian_window(size: int, std: float) -> Tensor:
    """Return a (1, 1, size, size) Gaussian window that sums to 1."""
    r = torch.arange(size, dtype=torch.float32) - size // 2
    line = torch.exp(-r.square() / (2 * std**2))
    return (line[:, None] * line / line.sum() ** 2)[None, None]


def _modulus(x: Tensor, wavelets: Tensor, stride: int) -> Tensor:
    both = F.conv2d(x, wavelets, padding=wavelets.shape[-1] // 2, stride=stride)
    real, imaginary = both.chunk(2, 1)
    return (real.square() + imaginary.square() + 1e-12).sqrt()


def _average(x: Tensor, window: Tensor, stride: int) -> Tensor:
    """Average each channel around every stride-th pixel."""
    n, c, h, w = x.shape
    half = window.shape[-1] // 2
    padded = F.pad(x.reshape(n * c, 1, h, w), (half - stride // 2, half) * 2)
    return F.conv2d(padded, window, stride=stride).unflatten(0, (n, c)).squeeze(2)
