"""overlapping textured shapes, most of them mirror-symmetric, for garments and objects; one image in seven is noise

Prior knowledge: an object has an outline and parts; many objects are mirror-symmetric, upright and in the middle, and
have a texture or stripes. The background is black; of colour images, half have a textured one. Lengths are in halves of
the image's shorter side, angles in radians.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.priors.drawing import Draws, hue, pixel_positions, texture
from bench.priors.drawn import DrawnPrior
from bench.priors.kinds.noise import multiscale_noise

NOISE = 0.15
"""Share of images that are multi-scale noise."""
MOST = 5
"""Largest number of shapes per image; all numbers from 1 are equally likely."""
SYMMETRIC = 0.6
"""Share of mirror-symmetric images."""

OFF, TURNED = 0.5, 0.6
"""Largest offset of a shape from the middle, in x and in y; share of shapes that are rotated."""
HALF_AXES, POWERS, EDGE = (0.15, 0.9), (1.0, 2.0, 2.0, 4.0, 8.0), (8.0, 28.0)
"""Superellipses: half axes, exponents from a diamond through ellipses to a box, and edge steepness at half axis 1."""
WAVY, WAVE = 0.7, 0.25
"""Share of wavy outlines; standard deviation of the first harmonic; the k-th harmonic has 1/k of it."""
WAVES = 4
"""Number of harmonics of a wavy outline."""

TONE, COLOUR_TONE = (0.0, 1.0), (0.2, 1.0)
"""Range of the lightness of an image's shapes, in grey and in colour."""
SPREAD, OTHER_TONE, DARKEST = 0.25, 0.7, 0.08
"""Standard deviation of a shape's lightness around the image's; share of shapes with their own; the least lightness."""
HOLE = 0.25
"""Share of shapes, except the first, that cut a hole."""
TEXTURED, GAIN = 0.8, 1.5
"""Largest weight of the texture in a shape; factor on the texture's brightness."""
STRIPED, STRIPES, SLANTING = 0.25, (6.0, 30.0), 0.3
"""Share of striped images; range of stripe frequencies in radians per unit length; share of slanted stripes."""
HALF_WIDTH, HALF_HEIGHT, SOLID = (0.25, 1.0), (0.35, 1.0), 0.3
"""Box that contains the image's shapes, in half widths and heights; opacity from which a pixel counts as inside."""
GROUND = 0.5
"""Share of colour images with a textured background."""


class Shapes(DrawnPrior):
    """Prior of 1 to 5 overlapping soft superellipses with wavy outlines."""

    def draw_from(self, draws: Draws, count: int, shape: tuple[int, int, int]) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        noise = draws.chance(NOISE, count)
        of_noise, of_shapes = draws.of_rows(noise), draws.of_rows(~noise)
        images = torch.empty(count, *shape, device=draws.device)
        if noise.any():
            images[noise] = multiscale_noise(int(noise.sum()), shape, of_noise)
        if not noise.all():
            images[~noise] = draw_shapes(int((~noise).sum()), shape, of_shapes)
        return images


def draw_shapes(count: int, shape: tuple[int, int, int], draws: Draws) -> Tensor:
    """Draw (n, c, h, w): shapes with texture, stripes and mirroring, fitted into a box, without background."""
    channels, height, width = shape
    pixels = pixel_positions(height, width, draws.device)
    surface = texture(count, shape, draws)
    layers = draw_layers(count, channels, pixels, draws).view(count, channels + 1, height, width)
    image, opacity = layers[:, :-1], layers[:, -1:]
    image = torch.where(opacity.amax((2, 3), keepdim=True) > SOLID, image, surface)  # if a hole removed everything
    textured = TEXTURED * draws.uniform(0, 1, count, 1, 1, 1).square()
    image = image * (1 - textured + GAIN * textured * surface)
    image = (image * draw_stripes(count, pixels, draws).view(count, 1, height, width)).clamp(0, 1)
    layers = torch.cat([image, opacity], 1)
    layers = torch.where(draws.chance(SYMMETRIC, count, 1, 1, 1), torch.maximum(layers, layers.flip(3)), layers)
    layers = fit_to_box(layers, draws)
    image, opacity = layers[:, :-1], layers[:, -1:]
    if channels == 1:
        return image
    ground = texture(count, shape, draws) * draws.chance(GROUND, count, 1, 1, 1)
    return (image + (1 - opacity) * ground).clamp(0, 1)


def draw_layers(count: int, channels: int, pixels: Tensor, draws: Draws) -> Tensor:
    """Draw (n, c + 1, pixels): colours on black, and opacity."""
    tint, number = hue(count, channels, draws), draws.integers(1, MOST, count)
    base = draws.uniform(*(TONE if channels == 1 else COLOUR_TONE), count)
    layers = torch.zeros(count, channels + 1, len(pixels), device=draws.device)
    for index in range(MOST):
        rows = (number > index).nonzero()[:, 0]
        n, own = len(rows), draws.of_rows(rows)
        inside = soft_superellipse(n, pixels, own)[:, None]
        differs = own.chance(OTHER_TONE, n)[:, None]
        light = base[rows, None] + SPREAD * own.normal(n, 1) * differs
        colour = (light + tint[rows] + hue(n, channels, own) * differs).clamp(DARKEST, 1)
        painted = torch.cat([colour, torch.ones(n, 1, device=draws.device)], 1)
        if index > 0:
            painted = painted * ~own.chance(HOLE, n, 1)
        layers[rows] = layers[rows].lerp(painted[..., None].expand(-1, -1, len(pixels)), inside)
    return layers


def soft_superellipse(count: int, pixels: Tensor, draws: Draws) -> Tensor:
    """Return (n, pixels) in [0, 1]: a soft indicator of a superellipse with a wavy outline."""
    angle = draws.uniform(0, math.pi, count, 1) * draws.chance(TURNED, count, 1)
    centre, half_axes = draws.uniform(-OFF, OFF, count, 1, 2), draws.uniform(*HALF_AXES, count, 2)
    power = draws.choice(POWERS, count, 1)
    x, y = (pixels - centre).unbind(-1)
    u = (x * angle.cos() + y * angle.sin()) / half_axes[:, :1]
    v = (y * angle.cos() - x * angle.sin()) / half_axes[:, 1:]
    radius = (u.abs().clamp_min(1e-4) ** power + v.abs().clamp_min(1e-4) ** power) ** (1 / power)
    around, outline = torch.atan2(v, u), torch.ones_like(u)
    amplitude = WAVE * draws.normal(WAVES, count, 1) * draws.chance(WAVY, count, 1)
    phase = draws.uniform(0, 2 * math.pi, WAVES, count, 1)
    for k in range(WAVES):
        outline += amplitude[k] / (k + 1) * torch.cos((k + 1) * around + phase[k])
    return torch.sigmoid((outline - radius) * draws.uniform(*EDGE, count, 1) * half_axes.amin(1, keepdim=True))


def draw_stripes(count: int, pixels: Tensor, draws: Draws) -> Tensor:
    """Draw (n, pixels) brightness factors in [0, 1] for stripes; 1 in images without stripes."""
    angle = draws.uniform(0, math.pi, count, 1) * draws.chance(SLANTING, count, 1)
    along = pixels[:, 0] * angle.cos() + pixels[:, 1] * angle.sin()
    wave = 0.5 + 0.5 * torch.cos(along * draws.uniform(*STRIPES, count, 1) + draws.uniform(0, 2 * math.pi, count, 1))
    depth = draws.chance(STRIPED, count, 1) * draws.uniform(0, 1, count, 1)
    return 1 - depth + depth * wave


def fit_to_box(layers: Tensor, draws: Draws) -> Tensor:
    """Stretch the layers, the last of which is opacity, so that the solid part fills a random central box."""
    solid = layers[:, -1] > SOLID
    box = [ends_of_solid(solid.any(axis)) for axis in (1, 2)]
    half = [draws.uniform(*HALF_WIDTH, len(layers)), draws.uniform(*HALF_HEIGHT, len(layers))]
    zero = torch.zeros_like(half[0])
    scale = [((high - low) / 2).clamp_min(0.1) / wanted for (low, high), wanted in zip(box, half, strict=True)]
    middle = [(low + high) / 2 for low, high in box]
    rows = [torch.stack([scale[0], zero, middle[0]], 1), torch.stack([zero, scale[1], middle[1]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(layers.shape), align_corners=False)
    return F.grid_sample(layers, grid, align_corners=False)


def ends_of_solid(solid: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) positions in [-1, 1] of the first and last solid row or column of (n, side); both ends if none is."""
    side = solid.shape[1]
    centres = (torch.arange(side, device=solid.device) * 2 + 1 - side) / side
    low, high = centres.where(solid, 2).amin(1), centres.where(solid, -2).amax(1)
    found = high > low
    return low.where(found, -1), high.where(found, 1)
