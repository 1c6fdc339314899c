"""What priors draw with: random numbers, the places of pixels, textures, colours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TINT = 0.2
"""Standard deviation of a channel around the lightness of a colour."""
TINTED = 4.0
"""What a tint is multiplied by before the logistic function, whose slope in the middle is a quarter."""
OWN = 0.2
"""Share of a field that is each channel's own; the rest they have in common."""


class Draws:
    """Random numbers of one generator, on its device; `size` as in torch.rand."""

    def __init__(self, rng: torch.Generator) -> None:
        self.rng, self.device = rng, rng.device

    def uniform(self, low: float, high: float, *size: int) -> Tensor:
        """Even in [low, high)."""
        return low + (high - low) * torch.rand(*size, generator=self.rng, device=self.device)

    def normal(self, *size: int) -> Tensor:
        """Standard normal."""
        return torch.randn(*size, generator=self.rng, device=self.device)

    def chance(self, share: float, *size: int) -> Tensor:
        """True with probability `share`."""
        return torch.rand(*size, generator=self.rng, device=self.device) < share

    def integers(self, low: int, high: int, *size: int) -> Tensor:
        """Even in low..high, both included."""
        return torch.randint(low, high + 1, size, generator=self.rng, device=self.device)

    def choice(self, values: Sequence[float], *size: int) -> Tensor:
        """One of the values, all equally likely."""
        return torch.tensor(values, device=self.device)[self.integers(0, len(values) - 1, *size)]


def pixel_places(height: int, width: int, device: torch.device) -> Tensor:
    """(h w, 2): x to the right and y down of every pixel's centre, in halves of the shorter side from the middle."""
    short = min(height, width)
    x = (torch.arange(width, device=device) * 2 + 1 - width) / short
    y = (torch.arange(height, device=device) * 2 + 1 - height) / short
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)


def texture(
    count: int, shape: tuple[int, int, int], draws: Draws, exponents: tuple[float, float] = (0.5, 3.0)
) -> Tensor:
    """(n, c, h, w) in [0, 1]: Gaussian noise with a power-law spectrum, of random contrast, lightness and tint.

    Args:
        exponents: a random one of these bounds is the spectrum's; 0 is white noise, 3 are clouds.
    """
    channels, height, width = shape
    rows = torch.fft.fftfreq(height, device=draws.device)[:, None]
    columns = torch.fft.rfftfreq(width, device=draws.device)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1 / max(height, width))
    spectrum = frequency ** -draws.uniform(*exponents, count, 1, 1, 1)
    white = correlated(draws.normal(count, channels, height, width))
    field = torch.fft.irfft2(torch.fft.rfft2(white) * spectrum, s=(height, width))
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True).clamp_min(1e-6)
    lightness = draws.normal(count, 1, 1, 1) + TINTED * hue(count, channels, draws)[..., None, None]
    return torch.sigmoid(field * draws.uniform(0.5, 3.5, count, 1, 1, 1) + lightness)


def correlated(fields: Tensor) -> Tensor:
    """(n, c, ...) independent fields to fields of which all channels share the greater part; one channel stays."""
    return fields if fields.shape[1] == 1 else fields[:, :1].lerp(fields, OWN)


def hue(count: int, channels: int, draws: Draws) -> Tensor:
    """(n, c): what a random colour adds to its lightness; 0 for one channel."""
    if channels == 1:
        return torch.zeros(count, 1, device=draws.device)
    off = TINT * draws.normal(count, channels)
    return off - off.mean(1, keepdim=True)
