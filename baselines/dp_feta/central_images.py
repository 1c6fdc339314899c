"""Central images of DP-FETA: noisy class means of small images, and their public post-processing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.dp_training.clipped_sums import as_seen
from bench.dp_training.clipping import poisson_sample
from bench.privacy.mechanisms import clip_rows, gaussian_rows
from bench.privacy.noise import Source

SHARPEN = 1 / 8
"""Weight by which each of the eight neighbours is subtracted from a pixel; the pixel itself has weight 2."""


def largest_norm(pixels: int) -> float:
    """Return sqrt(d'), the norm of an all-white small image of d' pixels: the sensitivity of a class sum.

    >>> largest_norm(14 * 14)
    14.0
    """
    return math.sqrt(pixels)


def small_images(images: Tensor) -> Tensor:
    """Step 1: every second pixel of every second row of (n, c, h, w) images, as rows (n, d') in [0, 1], float64."""
    return as_seen(images[:, :, ::2, ::2]).double().flatten(1)


def central_round(
    images: Tensor,
    labels: Tensor,
    classes: int,
    sampling: float,
    multiplier: float,
    clip: float,
    samples: Source,
    noise: Source,
) -> Tensor:
    """Step 1: return (classes, d') float32, the noisy class means of one Poisson sample.

    Both the method and the audit's game call this function, the only use of the records for central images.

    Args:
        images: (n, c, h, w) records, uint8 or in [0, 1]; n is public.
        labels: (n,) int64.
        classes: C.
        sampling: q_c in (0, 1].
        multiplier: sigma_c >= 0; 0 = no noise.
        clip: bound on a small image's norm; 0 = the largest possible norm, which changes no image.
        samples, noise: sources of the Poisson sample and of the noise.
    """
    chosen = poisson_sample(len(images), sampling, samples)
    small = small_images(images[chosen])
    bound = clip or largest_norm(small.shape[1])
    small = clip_rows(small, bound) if clip else small
    sums = torch.zeros(classes, small.shape[1], dtype=torch.float64, device=images.device)
    sums.index_add_(0, labels[chosen], small)
    # The denominator is public: the counts of a sample are private
    expected = sampling * len(images) / classes
    return (gaussian_rows(sums, multiplier * bound, noise) / expected).float()


def finished(means: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Step 2: clamp, enlarge, take the median of 3x3 pixels, and sharpen grey images; post-processing.

    Args:
        means: (n, d') noisy means.
        shape: (c, h, w) of the records.

    Returns:
        (n, c, h, w) in [0, 1].
    """
    c, h, w = shape
    small = means.clamp(0, 1).view(-1, c, -(-h // 2), -(-w // 2))
    x = neighbours(F.interpolate(small, size=(h, w), mode="bilinear")).median(2).values
    if c == 1:
        around = neighbours(x)
        x = 2 * x - SHARPEN * (around.sum(2) - x)
    return x.clamp(0, 1)


def neighbours(x: Tensor) -> Tensor:
    """Return (n, c, 9, h, w): each pixel and its eight neighbours, with the border repeated."""
    n, c, h, w = x.shape
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    return F.unfold(padded, 3).view(n, c, 9, h, w)
