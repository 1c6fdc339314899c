"""Images drawn from a Gaussian per private class, for training a student or querying a teacher.

The Gaussians are estimated from one noisy release of class moments (`noisy_moments`), in a data-independent orthonormal
basis of image space: principal directions of random pen strokes for glyphs, cosines of low frequencies for other
images. Drawing is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from bench import data
from bench.api import Context, Teacher
from bench.distillation.class_moments.noisy_moments import (
    Gaussians,
    gaussians,
    noisy_moments,
    to_image,
    to_stroke_image,
)
from bench.nets.stroke_generator import StrokeGenerator
from bench.privacy.noise import Source

SMALL = 1000
"""Number of private records per class below which moments are pooled and use fewer directions."""
DIRECTIONS, FEWER = 80, 32
FIRST, FIRST_OF_POOLED = 0.5, 0.7
"""a^2, the share of the first moments in the release; the second value is for pooled moments."""
STROKES, POINTS = 4000, (4, 5, 6, 8)
"""Number of random strokes per basis, and the possible numbers of control points of a stroke."""


class ClassImages(NamedTuple):
    """A distribution of images: a Gaussian per class in a basis of image space, and a map of its samples to images."""

    gaussians: Gaussians
    decode: Callable[[Tensor], Tensor]
    shape: tuple[int, int, int]

    def draw(self, count: int, rng: Generator) -> tuple[Tensor, Tensor]:
        """Draw (count, c, h, w) images in [0, 1] and the (count,) classes of their Gaussians, which cycle."""
        projections, classes = self.gaussians.draw(count, rng, self.shape)
        return self.decode(projections), classes


def class_images(
    teacher: Teacher, multiplier: float, noise: Source, ctx: Context, pooled: bool | None = None, dimension: int = 0
) -> ClassImages:
    """Release the class moments once and return the image distribution; data sets of glyphs use a basis of pen strokes.

    Args:
        teacher: provides the private records; nothing else of it is used.
        multiplier: standard deviation of the noise divided by `SENSITIVITY`; 0 = no noise.
        noise: source of the privacy noise.
        pooled: one second moment for all records; None = below 1,000 records per class.
        dimension: number of basis vectors; 0 = 80, or 32 below 1,000 records per class.

    Raises:
        RuntimeError: the method has no private records.
    """
    if teacher.private is None:
        raise RuntimeError('the moments need the private images: `needs` must name "private_data"')
    images, labels = teacher.private
    few, glyphs = len(images) < SMALL * teacher.classes, data.facts(teacher.dataset).prior == "pen"
    pooled = few if pooled is None else pooled
    d = min(dimension or (FEWER if few else DIRECTIONS), math.prod(teacher.shape))
    seed = ctx.generator("basis").initial_seed()
    basis = (stroke_basis(teacher.shape, d, seed) if glyphs else cosine_basis(teacher.shape, d)).to(ctx.device)
    moments = noisy_moments(images, labels, teacher.classes, basis, multiplier, noise, first_share(pooled), pooled)
    return ClassImages(gaussians(moments), to_stroke_image if glyphs else to_image, teacher.shape)


def first_share(pooled: bool) -> float:
    """Return a^2, the share of the first moments in the release."""
    return FIRST_OF_POOLED if pooled else FIRST


class ClassImageSource:
    """A source of query images (`image_source.Source`) that draws from `ClassImages` and discards their classes."""

    def __init__(self, images: ClassImages) -> None:
        self._images = images

    def draw(self, count: int, shape: tuple[int, int, int], rng: Generator) -> Tensor:
        """Draw (count, c, h, w) images in [0, 1], cycling through the classes."""
        return self._images.draw(count, rng)[0]

    def learn(self, student: nn.Module) -> None:
        """Do nothing, as this source is fixed."""


def stroke_basis(shape: tuple[int, int, int], d: int, seed: int) -> Tensor:
    """Return (c h w, d): principal directions of images with one or two random pen strokes; uses no data."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        drawn = []
        for points in POINTS:
            pen = StrokeGenerator(shape, points)
            drawn.append(pen(torch.randn(STROKES // len(POINTS), pen.latent)))
        one = torch.cat(drawn)
        other = one[torch.randperm(len(one))] * (torch.rand(len(one), 1, 1, 1) < 0.5)
        flat = torch.maximum(one, other).flatten(1)
    _, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    return vectors[:, -d:].flip(1).contiguous()


def cosine_basis(shape: tuple[int, int, int], d: int) -> Tensor:
    """Return (c h w, d or slightly more): cosines of the lowest frequencies, each in one channel; uses no data."""
    channels, h, w = shape
    rows, columns = _cosines(h), _cosines(w)
    order = sorted((i * i + j * j, i, j) for i in range(h) for j in range(w))[: math.ceil(d / channels)]
    planes = torch.stack([torch.outer(rows[i], columns[j]).flatten() for _, i, j in order], 1)
    return torch.block_diag(*[planes] * channels).contiguous()


def _cosines(size: int) -> Tensor:
    """Return the (size, size) orthonormal cosines (DCT-II), ordered by frequency."""
    at = (torch.arange(size) + 0.5) * math.pi / size
    waves = torch.cos(torch.arange(size)[:, None] * at)
    return waves / waves.norm(dim=1, keepdim=True)
