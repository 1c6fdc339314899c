"""Orthonormal directions of image space in which private images may be described: chosen without any data.

Principal directions of random pen strokes, for glyphs, and cosines of low frequencies, for any image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench.nets.stroke_generator import StrokeGenerator

STROKES, POINTS = 4000, (4, 5, 6, 8)
"""Random strokes behind a basis, and the control points that a stroke may have."""


def stroke_basis(shape: tuple[int, int, int], d: int, seed: int) -> Tensor:
    """(c h w, d): principal directions of random pen strokes, one or two to an image; no data."""
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
    """(c h w, d or a little more): cosines of the lowest frequencies, the same in every channel; no data."""
    channels, h, w = shape
    rows, columns = _cosines(h), _cosines(w)
    order = sorted((i * i + j * j, i, j) for i in range(h) for j in range(w))[: math.ceil(d / channels)]
    planes = torch.stack([torch.outer(rows[i], columns[j]).flatten() for _, i, j in order], 1)
    return torch.block_diag(*[planes] * channels).contiguous()


def _cosines(size: int) -> Tensor:
    """(size, size): orthonormal cosines (DCT-II), by frequency."""
    at = (torch.arange(size) + 0.5) * math.pi / size
    waves = torch.cos(torch.arange(size)[:, None] * at)
    return waves / waves.norm(dim=1, keepdim=True)
