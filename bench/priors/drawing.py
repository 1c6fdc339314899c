"""Drawing tools of the priors: random numbers, pixel positions, textures, colours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TINT = 0.2
"""Standard deviation of a colour channel around the colour's lightness."""
TINTED = 4.0
"""Factor on a tint before the logistic function, whose slope in the middle is 1/4."""
OWN = 0.2
"""Share of a random field that differs between colour channels; the rest is common to all channels."""


class Draws:
    """Random numbers from one generator, on its device; `size` as in torch.rand."""

    def __init__(self, rng: torch.Generator) -> None:
        self.rng, self.device = rng, rng.device

    def uniform(self, low: float, high: float, *size: int) -> Tensor:
        """Draw uniformly from [low, high)."""
        return low + (high - low) * torch.rand(*size, generator=self.rng, device=self.device)

    def normal(self, *size: int) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(*size, generator=self.rng, device=self.device)

    def chance(self, share: float, *size: int) -> Tensor:
        """Draw booleans, True with probability `share`."""
        return torch.rand(*size, generator=self.rng, device=self.device) < share

    def integers(self, low: int, high: int, *size: int) -> Tensor:
        """Draw integers uniformly from low..high, both included."""
        return torch.randint(low, high + 1, size, generator=self.rng, device=self.device)

    def choice(self, values: Sequence[float], *size: int) -> Tensor:
        """Draw from the values with equal probabilities."""
        return torch.tensor(values, device=self.device)[self.integers(0, len(values) - 1, *size)]

    def of_rows(self, rows: Tensor) -> Draws:
        """Return the draws for some of the images, which `rows`, booleans or indices, selects.

        Every call of a prior makes the same calls of this function in the same order, also for no images.
        """
        return self


def pixel_positions(height: int, width: int, device: torch.device) -> Tensor:
    """Return (h w, 2): x (right) and y (down) of pixel centres from the middle, in halves of the shorter side."""
    short = min(height, width)
    x = (torch.arange(width, device=device) * 2 + 1 - width) / short
    y = (torch.arange(height, device=device) * 2 + 1 - height) / short
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)


pixel_places = pixel_positions
"""The former name, for priors of other packages."""


def texture(
    count: int, shape: tuple[int, int, int], draws: Draws, exponents: tuple[float, float] = (0.5, 3.0)
) -> Tensor:
    """Draw (n, c, h, w) textures in [0, 1]: power-law Gaussian noise of random contrast, lightness and tint.

    Args:
        exponents: range of the random exponent of the spectrum; 0 is white noise, 3 resembles clouds.
    """
    channels = shape[0]
    field = power_law_field(count, shape, draws, exponents)
    lightness = draws.normal(count, 1, 1, 1) + TINTED * hue(count, channels, draws)[..., None, None]
    return torch.sigmoid(field * draws.uniform(0.5, 3.5, count, 1, 1, 1) + lightness)


def power_law_field(count: int, shape: tuple[int, int, int], draws: Draws, exponents: tuple[float, float]) -> Tensor:
    """Draw (n, c, h, w) Gaussian fields with power-law spectra; every channel has mean 0 and standard deviation 1.

    Args:
        exponents: as in `texture`.
    """
    channels, height, width = shape
    rows = torch.fft.fftfreq(height, device=draws.device)[:, None]
    columns = torch.fft.rfftfreq(width, device=draws.device)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1 / max(height, width))
    spectrum = frequency ** -draws.uniform(*exponents, count, 1, 1, 1)
    white = correlated(draws.normal(count, channels, height, width))
    field = torch.fft.irfft2(torch.fft.rfft2(white) * spectrum, s=(height, width))
    return (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True).clamp_min(1e-6)


def correlated(fields: Tensor) -> Tensor:
    """Mix (n, c, ...) independent fields so that channels share the larger part; a single channel is unchanged."""
    return fields if fields.shape[1] == 1 else fields[:, :1].lerp(fields, OWN)


def hue(count: int, channels: int, draws: Draws) -> Tensor:
    """Draw (n, c) offsets of a random colour's channels from its lightness; 0 for one channel."""
    if channels == 1:
        return torch.zeros(count, 1, device=draws.device)
    off = TINT * draws.normal(count, channels)
    return off - off.mean(1, keepdim=True)
