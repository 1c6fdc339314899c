"""Data-independent orthonormal bases of image space, in which private images are described.

For glyphs: principal directions of random pen strokes. For any image: cosines of low frequencies.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench.nets.stroke_generator import StrokeGenerator

STROKES, POINTS = 4000, (4, 5, 6, 8)
"""Number of random strokes per basis, and the possible numbers of control points of a stroke."""


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
    """Return (c h w, d or slightly more): cosines of the lowest frequencies, equal in every channel; uses no data."""
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
