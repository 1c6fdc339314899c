"""Class-conditional images from one private release: the mean and second moment of every class, in a data-free basis.

For a record x of class y let u = U^T x / ||U^T x||, U orthonormal columns chosen without data. Released are, with
Gaussian noise, S_y1 = sum a u and S_y2 = sum b u u^T over the records of each class, a^2 = b^2 = 1/2. Everything after
that is post-processing: a Gaussian per class, and images drawn from it.

Sensitivity. A record adds a unit vector (a u, b u u^T) to its class's block, u u^T counted with the Frobenius norm.
Added or removed it moves the release by 1; replaced by one of another class by sqrt(2); by one of the same class, with
t = <u, u'>, by sqrt(2 - t - t^2) <= 1.5, which covers all three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.nets.strokes import StrokeGenerator

SENSITIVITY = 1.5
A = B = math.sqrt(0.5)
STROKES, POINTS = 4000, (4, 5, 6, 8)


@dataclass(frozen=True)
class Moments:
    """Noisy sums of one release.

    Attributes:
        first: (classes, d) noisy sums of u.
        second: (classes, d, d) noisy sums of u u^T, symmetric.
        noise: standard deviation of the noise before the division by a and b.
        basis: (pixels, d) orthonormal columns U.
    """

    first: Tensor
    second: Tensor
    noise: float
    basis: Tensor


def release(
    images: Tensor, labels: Tensor, classes: int, basis: Tensor, multiplier: float, rng: torch.Generator
) -> Moments:
    """The noisy moments; a Gaussian mechanism of noise multiplier `multiplier` for one record replaced.

    Args:
        images: (n, c, h, w) uint8, private.
        labels: (n,) int64, private.
        basis: (c h w, d) orthonormal columns, chosen without data; on the generator's device.
        multiplier: noise over `SENSITIVITY`; 0 = no noise.
        rng: of the privacy noise.
    """
    device, d, std = basis.device, basis.shape[1], multiplier * SENSITIVITY
    first, second = torch.zeros(classes, d, device=device), torch.zeros(classes, d, d, device=device)
    for part, of in zip(images.split(4096), labels.split(4096), strict=True):
        u = F.normalize(part.to(device).float().flatten(1) / 255 @ basis, dim=1)
        member = F.one_hot(of, classes).to(device, u.dtype)
        first += member.T @ u
        second += torch.einsum("nk,ni,nj->kij", member, u, u)
    above = torch.randn(classes, d, d, generator=rng, device=device).triu(1) / math.sqrt(2)
    diagonal = torch.randn(classes, d, generator=rng, device=device)
    noise = above + above.transpose(1, 2) + torch.diag_embed(diagonal)
    first_noise = torch.randn(classes, d, generator=rng, device=device)
    return Moments(first + std / A * first_noise, second + std / B * noise, std, basis)


@dataclass(frozen=True)
class Gaussians:
    """A Gaussian of u per class: means (classes, d), factors (classes, d, d) with covariance L L^T, and the basis."""

    means: Tensor
    factors: Tensor
    basis: Tensor

    def draw(self, count: int, rng: torch.Generator, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """(count, c, h, w) projections, of no particular scale, and their classes, which are equally frequent."""
        classes = torch.arange(count, device=self.means.device) % len(self.means)
        normal = torch.randn(count, self.means.shape[1], generator=rng, device=self.means.device)
        u = self.means[classes] + torch.einsum("nij,nj->ni", self.factors[classes], normal)
        return (F.normalize(u, dim=1) @ self.basis.T).view(count, *shape), classes


def gaussians(released: Moments) -> Gaussians:
    """Post-processing: positive semidefinite class covariances from noisy moments.

    A class's size is the trace of its second moment, as ||u|| = 1. Its covariance is shrunk to the classes' mean
    covariance by the share that noise has in how the two differ, and eigenvalues are shrunk by the semicircle law:
    those inside the noise's edge 2 sqrt(d) s are 0, larger ones lose what the noise added to them.
    """
    d = released.basis.shape[1]
    size = released.second.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1)
    means = released.first / size[:, None]
    own = released.second / size[:, None, None] - means[:, :, None] * means[:, None, :]
    pooled = (own * size[:, None, None]).sum(0) / size.sum()
    variance = (released.noise / B / size).square() / 2
    differs = (own - pooled).square().mean((1, 2))
    trust = (1 - variance / differs.clamp_min(1e-20)).clamp(0, 1)[:, None, None]
    values, vectors = torch.linalg.eigh(trust * own + (1 - trust) * pooled)
    edge = 2 * math.sqrt(d) * (trust[:, 0] * variance.sqrt()[:, None])
    kept = (values + (values.square() - edge.square()).clamp_min(0).sqrt()) / 2
    spread = torch.where(values > edge, kept, torch.zeros_like(values)).clamp_min(1e-7).sqrt()
    return Gaussians(means, vectors * spread[:, None, :], released.basis)


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
    """(c h w, d or a little more): cosines of the lowest frequencies, in every channel alike; no data."""
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


def ink(projections: Tensor) -> Tensor:
    """Projections to images of pen strokes: each scaled to its own brightest ink, dim ground cut off; in [0, 1]."""
    bright = projections.flatten(1).quantile(0.97, dim=1).clamp_min(1e-3)[:, None, None, None]
    return ((projections / bright - 0.15) / 0.7).clamp(0, 1)


def light(projections: Tensor) -> Tensor:
    """Projections to images in [0, 1]: each scaled to its own brightest pixels."""
    bright = projections.flatten(1).quantile(0.99, dim=1).clamp_min(1e-3)[:, None, None, None]
    return (projections / bright).clamp(0, 1)
