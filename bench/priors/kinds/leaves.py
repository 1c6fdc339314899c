"""occluding textured shapes of all sizes in the colours of a palette, most with an object in the middle

Prior knowledge: the "dead leaves" model of photographs. Surfaces occlude each other, and their sizes follow a power
law. Each has a colour of the scene's palette, a texture with a power-law spectrum, and a gradient of light. Lightness
varies more than colour. In most images an object of a few parts is near the middle, in front of a background that may
be out of focus. No photograph was used. Lengths are in halves of the image's shorter side, angles in radians.

References: Lee, Mumford and Huang, "Occlusion Models for Natural Images", IJCV 2001; Baradad et al., "Learning to See
by Looking at Noise", NeurIPS 2021. From them: the sizes and the spectra; the object, the light and the palette are this
project's.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.priors import Prior
from bench.priors.drawing import Draws, pixel_positions, power_law_field

MOST = 8
"""Largest number of leaves behind the object; it is MOST times the square of a uniform number, so that few are usual.
"""
SMALLEST_LEAF, LARGEST_LEAF, SIZE_POWER = 0.12, 1.2, 2.0
"""Range of a leaf's size, and the exponent of its power law: the density is size^-2."""
OFF = 1.1
"""Largest offset of a leaf from the middle, in x and in y."""
OBJECT, PARTS, MIRRORED = 0.85, 4, 0.4
"""Share of images with an object; its largest number of parts, where all numbers from 1 are equally likely; share of
mirror-symmetric objects, which are in the middle of the image."""
PART_SIZE, SMALLER, PART_OFF, OBJECT_OFF = (0.3, 0.8), 0.5, 0.4, 0.2
"""Range of the size of an object's first part, factor on the others' sizes, their largest offset from the object's
middle, and the standard deviation of that middle."""
FLATTEST, POWERS, UPRIGHT, TALL = 0.15, (1.0, 1.5, 2.0, 2.0, 4.0, 8.0), 0.4, 0.3
"""Superellipses: least ratio of their half axes, exponents from a diamond through ellipses to a box, share of those
that are not turned, and share of those that are taller than wide before they are turned."""
WAVES, WAVY, WAVE = 5, 0.7, 0.2
"""Wavy outlines: number of harmonics, share of wavy ones, standard deviation of the first harmonic; the k-th harmonic
has 1/k of it."""
EDGE = (15.0, 90.0)
"""Range of the steepness of edges: change of the logistic function's argument per unit of length."""

PALETTE, LIGHTNESS, LIGHT_SPREAD = 4, (0.3, 0.7), 0.22
"""Number of colours of an image, range of their mean lightness, and the standard deviation of a colour around it."""
YELLOW, RED, VIVID, OWN = 0.10, 0.05, (0.2, 1.6), 0.6
"""Standard deviations of a colour along blue to yellow and green to red; range of an image's factor on both; share of
their variance by which the colours of one palette differ."""
FIELDS, EXPONENTS, TEXTURE = 2, (1.2, 3.0), 0.2
"""Number of textures of an image, range of their spectrum's exponents, and a surface's largest standard deviation."""
SHADE = 0.2
"""Standard deviation of the horizontal and vertical slope of light over a surface."""
BLURRED, BLURS = 0.5, 2
"""Share of images whose background is out of focus, and the number of blurs, each of a random weight."""
GAMMA, DARKEST, GRAIN = (0.7, 1.4), 1e-4, 0.005
"""Range of the exponent of the curve of tones, the least tone, and the standard deviation of pixel noise."""


class Leaves(Prior):
    """Prior of occluding textured leaves, most with an object in the middle."""

    def draw_part(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1]."""
        draws = Draws(rng)
        scenes = Scenes(count, shape, draws)
        image = draw_background(scenes, draws).view(count, *shape)
        image = draw_object(blur_some(image, draws).flatten(2), scenes, draws)
        image = image.clamp_min(DARKEST) ** draws.uniform(*GAMMA, count, 1, 1)
        return (image.view(count, *shape) + GRAIN * draws.normal(count, *shape)).clamp(0, 1)


class Scenes:
    """Colours and textures of a batch of images.

    Attributes:
        sides: (h, w).
        pixels: (pixels, 2) positions.
        palette: (n, PALETTE, c) colours.
        textures: (n, FIELDS, c, pixels) fields of mean 0 and standard deviation 1.
    """

    def __init__(self, count: int, shape: tuple[int, int, int], draws: Draws) -> None:
        self._draws, self.sides = draws, shape[1:]
        self.pixels = pixel_positions(shape[1], shape[2], draws.device)
        self.palette = draw_palette(count, shape[0], draws)
        fields = [power_law_field(count, shape, draws, EXPONENTS).flatten(2) for _ in range(FIELDS)]
        self.textures = torch.stack(fields, 1)

    def paint(self, rows: Tensor) -> Tensor:
        """Draw (k, c, pixels): one surface for each of the images `rows` (k,): colour, texture and a slope of light."""
        draws, k = self._draws, len(rows)
        colour = self.palette[rows, draws.integers(0, PALETTE - 1, k)][..., None]
        field = self.textures[rows, draws.integers(0, FIELDS - 1, k)]
        weight = TEXTURE * draws.uniform(0, 1, k, 1, 1).square()
        slope = SHADE * draws.normal(2, k, 1)
        light = 1 + slope[0] * self.pixels[:, 0] + slope[1] * self.pixels[:, 1]
        return ((colour + weight * field) * light[:, None]).clamp(0, 1)


def draw_palette(count: int, channels: int, draws: Draws) -> Tensor:
    """Draw (n, PALETTE, c) colours in [0, 1]."""
    light = draws.uniform(*LIGHTNESS, count, 1) + LIGHT_SPREAD * draws.normal(count, PALETTE)
    if channels == 1:
        return light[..., None].clamp(0, 1)
    common, own = draws.normal(2, count, 1), draws.normal(2, count, PALETTE)
    both = draws.uniform(*VIVID, count, 1) * (math.sqrt(1 - OWN) * common + math.sqrt(OWN) * own)
    yellow, red = YELLOW * both[0], RED * both[1]
    return torch.stack([light + yellow + red, light + yellow / 3 - red, light - yellow], -1).clamp(0, 1)


def draw_background(scenes: Scenes, draws: Draws) -> Tensor:
    """Draw (n, c, pixels): a surface that fills the image, and leaves on it."""
    count = len(scenes.palette)
    image = scenes.paint(torch.arange(count, device=draws.device))
    number = (MOST * draws.uniform(0, 1, count).square()).round()
    for index in range(MOST):
        rows = (number > index).nonzero()[:, 0]
        centre = draws.uniform(-OFF, OFF, len(rows), 1, 2)
        inside = draw_outlines(centre, draw_sizes(len(rows), draws), scenes.pixels, draws)
        image[rows] = image[rows].lerp(scenes.paint(rows), inside[:, None])
    return image


def draw_sizes(count: int, draws: Draws) -> Tensor:
    """Draw (n,) sizes of leaves by the power law, by inversion of its distribution function."""
    low, high = SMALLEST_LEAF ** (1 - SIZE_POWER), LARGEST_LEAF ** (1 - SIZE_POWER)
    return (low + (high - low) * draws.uniform(0, 1, count)) ** (1 / (1 - SIZE_POWER))


def draw_object(image: Tensor, scenes: Scenes, draws: Draws) -> Tensor:
    """Return the (n, c, pixels) images with an object on the share OBJECT of them."""
    count = len(image)
    number = draws.integers(1, PARTS, count) * draws.chance(OBJECT, count)
    mirrored = draws.chance(MIRRORED, count)
    middle = OBJECT_OFF * draws.normal(count, 1, 2) * torch.stack([~mirrored, torch.ones_like(mirrored)], 1)[:, None]
    for index in range(PARTS):
        rows = (number > index).nonzero()[:, 0]
        centre, size = middle[rows], draws.uniform(*PART_SIZE, len(rows))
        if index > 0:
            centre, size = centre + draws.uniform(-PART_OFF, PART_OFF, len(rows), 1, 2), SMALLER * size
        inside = draw_outlines(centre, size, scenes.pixels, draws)
        both = torch.maximum(inside, inside.view(-1, *scenes.sides).flip(2).flatten(1))
        inside = torch.where(mirrored[rows, None], both, inside)
        image[rows] = image[rows].lerp(scenes.paint(rows), inside[:, None])
    return image


def draw_outlines(centre: Tensor, size: Tensor, pixels: Tensor, draws: Draws) -> Tensor:
    """Draw (n, pixels) in [0, 1]: soft, turned, wavy superellipses of `size` (n,) at `centre` (n, 1, 2)."""
    count = len(size)
    angle = draws.uniform(0, math.pi, count, 1) * ~draws.chance(UPRIGHT, count, 1)
    flat = draws.uniform(FLATTEST, 1, count, 1).sqrt()
    flat = torch.where(draws.chance(TALL, count, 1), 1 / flat, flat)
    power = draws.choice(POWERS, count, 1)
    x, y = (pixels - centre).unbind(-1)
    u = (x * angle.cos() + y * angle.sin()) * flat / size[:, None]
    v = (y * angle.cos() - x * angle.sin()) / flat / size[:, None]
    radius = (u.abs().clamp_min(1e-4) ** power + v.abs().clamp_min(1e-4) ** power) ** (1 / power)
    around, outline = torch.atan2(v, u), torch.ones_like(u)
    amplitude = WAVE * draws.normal(WAVES, count, 1) * draws.chance(WAVY, count, 1)
    phase = draws.uniform(0, 2 * math.pi, WAVES, count, 1)
    for k in range(WAVES):
        outline += amplitude[k] / (k + 1) * torch.cos((k + 1) * around + phase[k])
    return torch.sigmoid((outline - radius) * draws.uniform(*EDGE, count, 1) * size[:, None] * flat)


def blur_some(images: Tensor, draws: Draws) -> Tensor:
    """Blur a share of the (n, c, h, w) images by binomial filters."""
    count, channels = images.shape[:2]
    line = torch.tensor([1.0, 4, 6, 4, 1], device=images.device) / 16
    kernel = (line[:, None] * line).expand(channels, 1, 5, 5)
    blurred = draws.chance(BLURRED, count, 1, 1, 1)
    for _ in range(BLURS):
        smooth = F.conv2d(F.pad(images, (2, 2, 2, 2), mode="replicate"), kernel, groups=channels)
        images = images.lerp(smooth, draws.uniform(0, 1, count, 1, 1, 1) * blurred)
    return images
