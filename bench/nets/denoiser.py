"""The denoiser of a diffusion model with labels, and the generator that samples from it.

Karras, Aittala, Aila, Laine, "Elucidating the Design Space of Diffusion-Based Generative Models", NeurIPS 2022 (EDM).
Images are in [-1, 1]; their deviation sd is that of independent uniform pixels, a public number.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]
DEVIATION = math.sqrt(1 / 3)
"""sd, the deviation of a pixel that is uniform in [-1, 1]."""
MOST_NOISE, LEAST_NOISE, CURVE = 80.0, 0.002, 7.0
"""EDM's largest and smallest noise level in sampling, and the exponent of the levels between them."""
FREQUENCIES = 8
"""Number of frequencies at which the noise level enters the network."""
CONDITIONS = 64
"""Length of the vector of conditions in a network of linear layers."""
IN_GROUP, MOST_GROUPS = 4, 32
"""Least channels of a group in group normalisation, and most groups."""


class Block(nn.Module):
    """Residual block: group normalisation, SiLU and a 3x3 convolution, twice; the conditions are added between.

    Args:
        channels, made: number of input and output channels.
        conditions: length of the vector of conditions.
    """

    def __init__(self, channels: int, made: int, conditions: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = group_norm(channels), group_norm(made)
        self.first = nn.Conv2d(channels, made, 3, padding=1)
        self.second = nn.Conv2d(made, made, 3, padding=1)
        self.condition = nn.Linear(conditions, made)
        self.skip = nn.Conv2d(channels, made, 1) if channels != made else nn.Identity()

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        """Map (n, channels, h, w) and (n, conditions) to (n, made, h, w)."""
        found = self.first(F.silu(self.first_norm(x))) + self.condition(conditions)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.second_norm(found)))


class Stage(nn.Module):
    """Residual blocks of one size, one after the other; arguments as in `Block`, with `blocks` of them."""

    def __init__(self, channels: int, made: int, conditions: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(channels if i == 0 else made, made, conditions) for i in range(blocks))

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        """Map (n, channels, h, w) and (n, conditions) to (n, made, h, w)."""
        for block in self.blocks:
            x = block(x, conditions)
        return x


class Conditions(nn.Module):
    """A vector of noise level and label: waves of the level, and a vector of the label, through two layers.

    Args:
        classes: number of labels; label `classes` means that the label is not given.
        length: of the vector.
    """

    def __init__(self, classes: int, length: int) -> None:
        super().__init__()
        self.classes = classes
        self.of_level = nn.Linear(2 * FREQUENCIES, length)
        self.of_label = nn.Parameter(torch.randn(classes + 1, length))
        self.mixed = nn.Linear(length, length)

    def forward(self, level: Tensor, labels: Tensor) -> Tensor:
        """Map (n,) noise levels and (n,) int64 labels to (n, length)."""
        turns = level[:, None] * (torch.arange(FREQUENCIES, device=level.device) + 1)
        waves = torch.cat([turns.cos(), turns.sin()], 1)
        one_hot = (labels[:, None] == torch.arange(self.classes + 1, device=labels.device)).to(waves.dtype)
        return F.silu(self.mixed(F.silu(self.of_level(waves) + one_hot @ self.of_label)))


class DenseNet(nn.Module):
    """F(x, c, y) of three linear layers on all pixels, with labels and noise level.

    Args:
        shape: (c, h, w) of images.
        classes: as in `Conditions`.
        width: units of the hidden layers.
    """

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        pixels = math.prod(shape)
        self.conditions = Conditions(classes, CONDITIONS)
        self.first, self.condition = nn.Linear(pixels, width), nn.Linear(CONDITIONS, width)
        self.second, self.last = nn.Linear(width, width), nn.Linear(width, pixels)
        start_at_zero(self.last)

    def forward(self, x: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """Map (n, c, h, w) images, (n,) noise levels and (n,) int64 labels to (n, c, h, w)."""
        found = F.silu(self.first(x.flatten(1)) + self.condition(self.conditions(level, labels)))
        return self.last(F.silu(self.second(found))).view_as(x)


class UNet(nn.Module):
    """F(x, c, y): a U-Net of residual blocks with labels and noise level, without attention.

    Args:
        shape: (c, h, w) of images, of any size.
        classes: as in `Conditions`.
        width: channels at full size, a multiple of 4; twice as many below.
        resolutions: number of sizes, each half of the one above.
        blocks: residual blocks at each size.
    """

    def __init__(self, shape: Shape, classes: int, width: int, resolutions: int, blocks: int) -> None:
        super().__init__()
        conditions = 4 * width
        self.conditions = Conditions(classes, conditions)
        self.first = nn.Conv2d(shape[0], width, 3, padding=1)
        widths = [width] + [2 * width] * (resolutions - 1)
        inputs = [width, *widths[:-1]]
        self.down = nn.ModuleList(Stage(*each, conditions, blocks) for each in zip(inputs, widths, strict=True))
        self.middle = Block(widths[-1], widths[-1], conditions)
        below = [widths[-1], *reversed(widths[1:])]
        self.up = nn.ModuleList(
            Stage(under + made, made, conditions, blocks) for under, made in zip(below, reversed(widths), strict=True)
        )
        self.norm, self.last = group_norm(width), nn.Conv2d(width, shape[0], 3, padding=1)
        start_at_zero(self.last)

    def forward(self, x: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """Map (n, c, h, w) images, (n,) noise levels and (n,) int64 labels to (n, c, h, w)."""
        conditions = self.conditions(level, labels)
        x, kept = self.first(x), []
        for at, stage in enumerate(self.down):
            x = stage(x if at == 0 else F.avg_pool2d(x, 2, ceil_mode=True), conditions)
            kept.append(x)
        x = self.middle(x, conditions)
        for stage, skipped in zip(self.up, reversed(kept), strict=True):
            x = x if x.shape[2:] == skipped.shape[2:] else F.interpolate(x, size=skipped.shape[2:])
            x = stage(torch.cat([x, skipped], 1), conditions)
        return self.last(F.silu(self.norm(x)))


def start_at_zero(layer: nn.Linear | nn.Conv2d) -> None:
    """Set the weights of a last layer to zero, so that the denoiser starts as c_skip x."""
    for weight in layer.parameters():
        nn.init.zeros_(weight)


def group_norm(channels: int) -> nn.GroupNorm:
    """Return group normalisation with at least four channels in a group; it does not mix images."""
    return nn.GroupNorm(math.gcd(channels, max(1, min(MOST_GROUPS, channels // IN_GROUP))), channels)


class Denoiser(nn.Module):
    """D(x; s, y) = c_skip x + c_out F(c_in x, ln(s) / 4, y), EDM's preconditioning of a network F.

    c_skip = sd^2 / (s^2 + sd^2), c_out = s sd / sqrt(s^2 + sd^2), c_in = 1 / sqrt(s^2 + sd^2).

    Args:
        network: F, which maps images, noise levels and labels to images.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """Map (n, c, h, w) images with noise of deviation `sigma` (n,), and (n,) labels, to images without noise."""
        s = sigma[:, None, None, None]
        total = s.square() + DEVIATION**2
        made = self.network(x / total.sqrt(), sigma.log() / 4, labels)
        return DEVIATION**2 / total * x + s * DEVIATION / total.sqrt() * made


def denoising_losses(denoised: Tensor, x: Tensor, sigma: Tensor) -> Tensor:
    """Return (n,): w(s) times the mean over pixels of |D - x|^2, with w = (s^2 + sd^2) / (s sd)^2.

    Args:
        denoised: (n, c, h, w), D(x + s e; s).
        x: (n, c, h, w), the images without noise.
        sigma: (n,), s.
    """
    weight = (sigma.square() + DEVIATION**2) / (sigma * DEVIATION).square()
    return weight * (denoised - x).square().flatten(1).mean(1)


def noise_levels(count: int) -> Tensor:
    """Return EDM's falling noise levels s_0 > ... > s_(N-1) and 0, (N + 1,) float32."""
    share = torch.arange(count, dtype=torch.float64) / max(count - 1, 1)
    most, least = MOST_NOISE ** (1 / CURVE), LEAST_NOISE ** (1 / CURVE)
    return torch.cat([(most + share * (least - most)) ** CURVE, torch.zeros(1, dtype=torch.float64)]).float()


class DiffusionGenerator(nn.Module):
    """Images by deterministic sampling (DDIM: Euler steps of EDM's probability flow), as a function of their noise.

    Args:
        denoiser: D.
        shape: (c, h, w) of the images that are returned.
        inside: (c, h, w) of the denoiser's images; enlarged if they are smaller.
        steps: N, number of noise levels, and of calls of the denoiser.
    """

    levels: Tensor

    def __init__(self, denoiser: nn.Module, shape: Shape, inside: Shape, steps: int) -> None:
        super().__init__()
        self.denoiser, self.shape, self.inside = denoiser, shape, inside
        self.register_buffer("levels", noise_levels(steps), persistent=False)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map (n, numbers of an image inside) of N(0, 1), and (n,) labels, to (n, c, h, w) images in [0, 1]."""
        x = z.view(-1, *self.inside) * self.levels[0]
        for now, after in itertools.pairwise(self.levels):
            slope = (x - self.denoiser(x, now.expand(len(x)), labels)) / now
            x = x + (after - now) * slope
        images = (x + 1) / 2
        if self.inside != self.shape:
            images = F.interpolate(images, size=self.shape[1:], mode="bilinear")
        return images.clamp(0, 1)
