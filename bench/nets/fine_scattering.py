"""Data-independent fine features: the scattering transform over two scales and eight angles, 81 maps per input channel.

The conventions are those of the Kymatio library (Andreux et al., JMLR 2020; J = 2, L = 8), and the values agree with
it: images are padded by reflection, Morlet wavelets are periodic on the padded image and applied in Fourier space, and
maps after the second scale are computed at half the resolution.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ANGLES, SCALES = 8, 2
MAPS = 1 + SCALES * ANGLES + ANGLES * ANGLES
"""Number of maps per channel: order 0; order 1 by scale and angle; order 2 by the first and the second angle."""
STRIDE = 2**SCALES
FREQUENCY, BANDWIDTH, SLANT = 0.75 * math.pi, 0.8, 4 / ANGLES
"""Finest wavelet: frequency in radians per pixel, bandwidth in pixels, and ratio of its decay across and along the
wave."""
PERIODS = 2
"""Number of periods to either side over which a periodic wavelet is summed."""
CACHED, ON_ACCELERATOR = 10_000, 200
"""Padded pixels transformed at once, which fit into the CPU's cache; factor on that number on an accelerator."""
EPSILON = 1e-20
"""Added to the squares under a square root."""


class FineScattering(nn.Module):
    """Scattering of orders 0, 1 and 2, averaged over about 4x4 pixels; differentiable, and without parameters.

    With psi_(j,t) the wavelet of scale 2^j and angle t and phi the average, its maps are x * phi, |x * psi_(j,t)| * phi
    for j = 0, 1, and ||x * psi_(0,t)| * psi_(1,t')| * phi. Channels are transformed separately; an image's maps depend
    only on that image.

    Args:
        height, width: of the images, at least 8.
    """

    fine: Tensor
    quarters: Tensor
    rows: Tensor
    columns: Tensor
    half_rows: Tensor
    half_columns: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.border = (*_border(width), *_border(height))
        p, q = height + sum(_border(height)), width + sum(_border(width))
        self.at_once = max(CACHED // (p * q), 1)
        for name, value in _filters(p, q).items():
            self.register_buffer(name, value.float().clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, 81 c, h // 4, w // 4), the maps of the first channel first."""
        n, channels = images.shape[:2]
        x = images.float().flatten(0, 1)[:, None]
        if torch.compiler.is_compiling():  # an exported program's batch size is unknown at export
            maps = self._maps(x)
        else:
            size = self.at_once * (1 if x.device.type == "cpu" else ON_ACCELERATOR)
            maps = torch.cat([self._maps(part) for part in x.split(size)])
        return maps.unflatten(0, (n, channels)).flatten(1, 2)

    def _maps(self, x: Tensor) -> Tensor:
        """Map (m, 1, h, w) to (m, 81, h // 4, w // 4)."""
        x = F.pad(x, self.border, mode="reflect")
        first = _modulus(torch.fft.ifft2(torch.fft.fft2(x) * self.fine))
        coarse, second = self._halved(x).flatten(1, 2), self._halved(first).flatten(1, 2)
        full, half = (self.rows, self.columns), (self.half_rows, self.half_columns)
        return torch.cat(
            [_averaged(x, *full), _averaged(first, *full), _averaged(coarse, *half), _averaged(second, *half)], 1
        )

    def _halved(self, maps: Tensor) -> Tensor:
        """Map (m, k, p, q) to the moduli of their coarse wavelets, (m, k, angles, p / 2, q / 2).

        Halving the resolution adds the four quarters of a spectrum. For a real map the right half of the spectrum is
        the left one, reversed and conjugated.
        """
        p, q = maps.shape[2] // 2, maps.shape[3] // 2
        spectra = torch.fft.rfft2(maps)
        mirrored = spectra[..., 1:].flip(-2, -1).roll(1, -2).conj().resolve_conj()
        left, right = (torch.view_as_real(half).flatten(-2)[:, :, None] for half in (spectra[..., :q], mirrored))
        quarters = self.quarters.split(ANGLES)
        total = left[..., :p, :] * quarters[0]
        for quarter, part in enumerate((left[..., p:, :], right[..., :p, :], right[..., p:, :]), 1):
            total = torch.addcmul(total, part, quarters[quarter])
        return _modulus(torch.fft.ifft2(torch.view_as_complex(total.unflatten(-1, (q, 2)))))


def _modulus(waves: Tensor) -> Tensor:
    """Return the absolute value, with a finite gradient at 0."""
    return torch.addcmul(waves.real.square() + EPSILON, waves.imag, waves.imag).sqrt()


def _border(side: int) -> tuple[int, int]:
    """Return the numbers of pixels by which a side is padded before its start and after its end."""
    more = ((side + STRIDE) // STRIDE + 1) * STRIDE - side
    return more // 2, more - more // 2


def _averaged(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Average (m, k, p, q) to (m, k, h // 4, w // 4): phi is a product of a row average and a column average."""
    return rows @ (maps @ columns.T)


@cache
def _filters(p: int, q: int) -> dict[str, Tensor]:
    """Return, for padded images (p, q), the real spectra of the wavelets, and phi's two matrices at either scale.

    All are float64, for any precision in which the first network was built. The fine spectra are (angles, p, q); the
    coarse ones are quarters, (4, angles, p / 2, q), every number twice: top left, bottom left, top right, bottom right.
    """
    spectra = []
    for scale in range(SCALES):
        sigma, frequency, found = BANDWIDTH * 2**scale, FREQUENCY / 2**scale, []
        for angle in range(ANGLES):
            theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
            wave, envelope = (_gabor(p, q, sigma, theta, at) for at in (frequency, 0.0))
            morlet = wave - wave.sum() / envelope.sum() * envelope  # its mean is 0
            found.append(torch.fft.fft2(morlet).real)
        spectra.append(torch.stack(found))
    quarters = [part for half in spectra[1].chunk(2, 2) for part in half.chunk(2, 1)]
    # Three axes: channels-last conversion of frozen networks permutes four-axis tensors and would split complex numbers
    filters = {"fine": spectra[0], "quarters": torch.cat(quarters).repeat_interleave(2, -1) / 4}
    for halved, prefix in ((False, ""), (True, "half_")):
        filters |= {f"{prefix}rows": _averages(p, halved), f"{prefix}columns": _averages(q, halved)}
    return filters


def _gabor(p: int, q: int, sigma: float, theta: float, frequency: float) -> Tensor:
    """Return a (p, q) complex128 plane wave under a Gaussian of norm 1, summed over the periods.

    Rows are the first axis.
    """
    y, x = (torch.arange(-PERIODS * side, (PERIODS + 1) * side, dtype=torch.float64) for side in (p, q))
    along = y[:, None] * math.cos(theta) + x * math.sin(theta)
    across = x * math.cos(theta) - y[:, None] * math.sin(theta)
    envelope = torch.exp(-(along.square() + (SLANT * across).square()) / (2 * sigma**2))
    wave = torch.polar(envelope, frequency * along) * (SLANT / (2 * math.pi * sigma**2))
    copies = 2 * PERIODS + 1
    return wave.view(copies, p, copies, q).sum((0, 2))


def _averages(side: int, halved: bool) -> Tensor:
    """Return (side // 4 - 2, side) float64 Gaussian averages around every fourth pixel of a padded side.

    Args:
        halved: for maps of half the resolution, (side // 4 - 2, side / 2): phi's spectrum is folded like theirs.
    """
    sigma = BANDWIDTH * 2 ** (SCALES - 1)
    x = torch.arange(-PERIODS * side, (PERIODS + 1) * side, dtype=torch.float64)
    window = torch.exp(-x.square() / (2 * sigma**2)).view(-1, side).sum(0) / (math.sqrt(2 * math.pi) * sigma)
    spectrum = torch.fft.fft(window).real
    if halved:
        spectrum = spectrum.clone()
        spectrum[side // 4 : side // 4 + side // 2] = 0
        spectrum = spectrum.view(2, -1).sum(0)
    window, stride = torch.fft.ifft(spectrum).real, STRIDE // 2 if halved else STRIDE
    shifts = torch.arange(side // STRIDE)[1:-1, None] * stride - torch.arange(len(window))
    return window[shifts % len(window)]
