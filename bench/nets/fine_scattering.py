"""Fixed features, finer: the scattering transform over two scales and eight angles, 81 maps per input channel.

The conventions are those of the Kymatio library (Andreux et al., JMLR 2020; J = 2, L = 8), to which the values agree:
images are reflected at the border, wavelets are Morlet's, periodic on the padded image and applied in Fourier space,
and what the second scale leaves is computed at half the resolution. Nothing in here knows of any data set.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ANGLES, SCALES = 8, 2
MAPS = 1 + SCALES * ANGLES + ANGLES * ANGLES
"""Of one channel: order 0; order 1 by scale and angle; order 2 by the first and the second angle."""
STRIDE = 2**SCALES
FREQUENCY, BANDWIDTH, SLANT = 0.75 * math.pi, 0.8, 4 / ANGLES
"""Of the finest wavelet: radians a pixel, pixels, and how much slower it falls off across the wave than along it."""
REACH = 2
"""Periods to either side that a periodic wavelet is summed over."""
CACHED, ON_ACCELERATOR = 10_000, 200
"""Padded pixels that are transformed at once, so that all stays in the processor's cache; times as many elsewhere."""
LEAST = 1e-20
"""Added to the squares below a root."""


class FineScattering(nn.Module):
    """Scattering of orders 0, 1 and 2, averaged over about 4x4 pixels; differentiable, and without parameters.

    With psi_(j,t) the wavelet of scale 2^j and angle t and phi the average, its maps are x * phi, |x * psi_(j,t)| * phi
    for j = 0, 1, and ||x * psi_(0,t)| * psi_(1,t')| * phi. Every channel has its own; an image's maps depend on it
    alone.

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
        """(n, c, h, w) to (n, 81 c, h // 4, w // 4), the maps of the first channel first."""
        n, channels = images.shape[:2]
        x = images.float().flatten(0, 1)[:, None]
        if torch.compiler.is_compiling():  # a program's number of images is not known when it is written
            maps = self._maps(x)
        else:
            size = self.at_once * (1 if x.device.type == "cpu" else ON_ACCELERATOR)
            maps = torch.cat([self._maps(part) for part in x.split(size)])
        return maps.unflatten(0, (n, channels)).flatten(1, 2)

    def _maps(self, x: Tensor) -> Tensor:
        """(m, 1, h, w) to (m, 81, h // 4, w // 4)."""
        x = F.pad(x, self.border, mode="reflect")
        first = _modulus(torch.fft.ifft2(torch.fft.fft2(x) * self.fine))
        second, again = self._halved(x).flatten(1, 2), self._halved(first).flatten(1, 2)
        low, half = (self.rows, self.columns), (self.half_rows, self.half_columns)
        return torch.cat(
            [_averaged(x, *low), _averaged(first, *low), _averaged(second, *half), _averaged(again, *half)], 1
        )

    def _halved(self, maps: Tensor) -> Tensor:
        """Maps (m, k, p, q) to the moduli of their coarse wavelets, (m, k, angles, p / 2, q / 2).

        Halving the resolution adds up the four quarters of a spectrum. Of a real map's spectrum the right half is the
        left one, turned round and conjugated.
        """
        p, q = maps.shape[2] // 2, maps.shape[3] // 2
        spectra = torch.fft.rfft2(maps)
        turned = spectra[..., 1:].flip(-2, -1).roll(1, -2).conj().resolve_conj()
        left, right = (torch.view_as_real(half).flatten(-2)[:, :, None] for half in (spectra[..., :q], turned))
        quarters = self.quarters.split(ANGLES)
        total = left[..., :p, :] * quarters[0]
        for quarter, part in enumerate((left[..., p:, :], right[..., :p, :], right[..., p:, :]), 1):
            total = torch.addcmul(total, part, quarters[quarter])
        return _modulus(torch.fft.ifft2(torch.view_as_complex(total.unflatten(-1, (q, 2)))))


def _modulus(waves: Tensor) -> Tensor:
    """The absolute value, whose gradient is finite at 0 too."""
    return torch.addcmul(waves.real.square() + LEAST, waves.imag, waves.imag).sqrt()


def _border(side: int) -> tuple[int, int]:
    """Pixels that a side is reflected by before its start and after its end."""
    more = ((side + STRIDE) // STRIDE + 1) * STRIDE - side
    return more // 2, more - more // 2


def _averaged(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(m, k, p, q) to (m, k, h // 4, w // 4): phi is a product of a row's and a column's average."""
    return rows @ (maps @ columns.T)


@cache
def _filters(p: int, q: int) -> dict[str, Tensor]:
    """Of padded images (p, q): spectra of the wavelets, which are real, and phi's two matrices at either scale.

    All are float64, whatever precision the first network was built in. The fine ones are (angles, p, q); the coarse
    ones quarters, (4, angles, p / 2, q), every number twice: left above, left below, right above, right below.
    """
    spectra = [
        torch.stack([torch.fft.fft2(_morlet(p, q, scale, angle)).real for angle in range(ANGLES)])
        for scale in range(SCALES)
    ]
    quarters = [part for half in spectra[1].chunk(2, 2) for part in half.chunk(2, 1)]
    # Three axes: channels-last, which frozen networks are, turns those of four, and complex numbers would come apart
    found = {"fine": spectra[0], "quarters": torch.cat(quarters).repeat_interleave(2, -1) / 4}
    for halved, prefix in ((False, ""), (True, "half_")):
        found |= {f"{prefix}rows": _averages(p, halved), f"{prefix}columns": _averages(q, halved)}
    return found


def _morlet(p: int, q: int, scale: int, angle: int) -> Tensor:
    """(p, q) complex128: the wavelet of scale 2^`scale`, whose mean is 0."""
    sigma, frequency = BANDWIDTH * 2**scale, FREQUENCY / 2**scale
    theta = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    wave, envelope = (_gabor(p, q, sigma, theta, at) for at in (frequency, 0.0))
    return wave - wave.sum() / envelope.sum() * envelope


def _gabor(p: int, q: int, sigma: float, theta: float, frequency: float) -> Tensor:
    """(p, q) complex128: a plane wave under a Gaussian of norm 1, summed over the periods; rows are its first axis."""
    y, x = (torch.arange(-REACH * side, (REACH + 1) * side, dtype=torch.float64) for side in (p, q))
    along = y[:, None] * math.cos(theta) + x * math.sin(theta)
    across = x * math.cos(theta) - y[:, None] * math.sin(theta)
    envelope = torch.exp(-(along.square() + (SLANT * across).square()) / (2 * sigma**2))
    wave = torch.polar(envelope, frequency * along) * (SLANT / (2 * math.pi * sigma**2))
    periods = 2 * REACH + 1
    return wave.view(periods, p, periods, q).sum((0, 2))


def _averages(side: int, halved: bool) -> Tensor:
    """(side // 4 - 2, side) float64: Gaussian averages around every fourth pixel of a padded side, its ends left out.

    Args:
        halved: for maps of half the resolution, (side // 4 - 2, side / 2): phi's spectrum is folded as theirs is.
    """
    sigma, period = BANDWIDTH * 2 ** (SCALES - 1), torch.arange(-REACH * side, (REACH + 1) * side, dtype=torch.float64)
    window = torch.exp(-period.square() / (2 * sigma**2)).view(-1, side).sum(0) / (math.sqrt(2 * math.pi) * sigma)
    spectrum = torch.fft.fft(window).real
    if halved:
        spectrum = spectrum.clone()
        spectrum[side // 4 : side // 4 + side // 2] = 0
        spectrum = spectrum.view(2, -1).sum(0)
    window, stride = torch.fft.ifft(spectrum).real, STRIDE // 2 if halved else STRIDE
    places = torch.arange(side // STRIDE)[1:-1, None] * stride - torch.arange(len(window))
    return window[places % len(window)]
