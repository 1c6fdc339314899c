"""Class-conditional images from one private release: the mean and second moment of every class, in a data-free basis.

For a record x of class y let u = x / ||x||, pixels in [0, 1]. The release contains, with Gaussian noise, S_y1 = sum a u
and S_y2 = sum b u u^T over the records of each class (or of all classes: `pooled`), with a^2 + b^2 = 1, in a basis U of
orthonormal columns chosen without data. Everything after that is post-processing: a Gaussian per class, and images
drawn from it.

Sensitivity. A record adds a unit vector to the release (a u in its class's block, b u u^T with the Frobenius norm), so
removing it changes the release by 1, and the noise is scaled to this. The number of records n is public: neighbours
drop one record from everything except n. The noise is isotropic in pixel space; only its projection on U is drawn,
which is post-processing. Replacing one record changes the release by at most sqrt(2), as pixels are non-negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.privacy.noise import Noise, Source

PLAYED, PATCH = 8, 16
"""Number of records in one release of an audit's game, and pixels per bright patch of such a record."""
SENSITIVITY = 1.0
"""Change of the release, in the coordinates of `coordinates`, when one record is removed."""


@dataclass(frozen=True)
class Moments:
    """The noisy sums of one release.

    Attributes:
        first: (classes, d) sums of U^T u with noise of standard deviation noise / a.
        second: (classes, d, d) sums of U^T u u^T U, symmetric, with noise / b on the diagonal and 1 / sqrt(2) times
            that elsewhere; (1, d, d) if pooled.
        noise: standard deviation of the noise before the division by a and b.
        weight: a^2.
        records: number of private records; public.
        basis: (pixels, d) orthonormal columns U.
    """

    first: Tensor
    second: Tensor
    noise: float
    weight: float
    records: int
    basis: Tensor


def noisy_moments(
    images: Tensor,
    labels: Tensor,
    classes: int,
    basis: Tensor,
    multiplier: float,
    source: Source,
    weight: float = 0.5,
    pooled: bool = False,
) -> Moments:
    """Release noisy moments; a Gaussian mechanism of noise multiplier `multiplier` for one removed record.

    Args:
        images: (n, c, h, w) uint8, private.
        labels: (n,) int64, private.
        basis: (c h w, d) orthonormal columns, chosen without data; on the generator's device.
        multiplier: standard deviation of the noise divided by `SENSITIVITY`; 0 = no noise.
        source: source of the privacy noise.
        weight: a^2 in (0, 1), the share of the first moments.
        pooled: release one second moment of all records instead of one per class; for small data sets.
    """
    d, std = basis.shape[1], multiplier * SENSITIVITY
    first, second = _sums(images, labels, classes, basis, pooled)
    noisy = Noise.of(source).gaussian(coordinates(first, second, weight), std)
    # Off-diagonal entries get noise / (b sqrt(2)): both copies are one coordinate, so the noise is drawn once.
    row, column, scale = _upper(d, weight, basis.device)
    first = noisy[: classes * d].view(classes, d) / math.sqrt(weight)
    second[:, row, column] = noisy[classes * d :].view(len(second), -1) / scale
    second[:, column, row] = second[:, row, column]
    return Moments(first.float(), second.float(), std, weight, len(images), basis)


def played_moments(
    multiplier: float, weight: float, pooled: bool, world: bool, n: int, generator: torch.Generator
) -> Tensor:
    """Return (n, 5): n plays of `noisy_moments` with a record, or with a black image, which adds nothing.

    The records have different classes and different bright patches, which form the basis, so that one release of PLAYED
    records contains PLAYED independent plays. A row is its record's contribution: two first and three second moments.
    """
    d, lanes = 2 * PLAYED, torch.arange(PLAYED)
    patches = torch.zeros(PLAYED, d, PATCH, dtype=torch.uint8)
    if world:
        patches[lanes, 2 * lanes], patches[lanes, 2 * lanes + 1] = 180, 255
    images, basis = patches.view(PLAYED, 1, d, PATCH), torch.eye(d).repeat_interleave(PATCH, 0) / math.sqrt(PATCH)
    found = []
    for _ in range(-(-n // PLAYED)):
        made = noisy_moments(images, lanes, PLAYED, basis, multiplier, generator, weight, pooled)
        first, second = made.first.view(PLAYED, PLAYED, 2), made.second.view(-1, PLAYED, 2, PLAYED, 2)
        second = second[0 if pooled else lanes, lanes, :, lanes].flatten(1)
        found.append(torch.cat([first[lanes, lanes], second[:, [0, 1, 3]]], 1))
    return torch.cat(found)[:n]


def coordinates(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Return the released sums as one vector; a record of unit vector u contributes (a u, b u u^T), of length 1.

    Args:
        first: (classes, d).
        second: (k, d, d), symmetric; an off-diagonal entry, which occurs twice in u u^T, is multiplied by sqrt(2).
        weight: a^2.
    """
    row, column, scale = _upper(first.shape[1], weight, first.device)
    return torch.cat([math.sqrt(weight) * first.flatten(), (scale * second[:, row, column]).flatten()])


def _upper(d: int, weight: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return row and column indices of the upper triangle with diagonal, and each entry's factor: b, or b sqrt(2)."""
    row, column = torch.triu_indices(d, d, device=device)
    twice = torch.where(row == column, 1.0, math.sqrt(2)).double()
    return row, column, math.sqrt(1 - weight) * twice


def _sums(images: Tensor, labels: Tensor, classes: int, basis: Tensor, pooled: bool) -> tuple[Tensor, Tensor]:
    """Return float64 sums of U^T u, (classes, d), and of U^T u u^T U, (classes, d, d), or (1, d, d) if pooled."""
    d, wide = basis.shape[1], basis.double()
    first, second = wide.new_zeros(classes, d), wide.new_zeros(1 if pooled else classes, d, d)
    for part, of in zip(images.split(4096), labels.split(4096), strict=True):
        # Each record is normalised by itself: a maximum over all records would be another use of private data.
        u = F.normalize(part.to(basis.device).double().flatten(1), dim=1) @ wide
        member = F.one_hot(of, classes).to(u)
        first += member.T @ u
        groups = member[:, :1].new_ones(len(u), 1) if pooled else member
        second += torch.stack([(u * group[:, None]).T @ u for group in groups.unbind(1)])
    return first, second


@dataclass(frozen=True)
class Gaussians:
    """A Gaussian of u per class: means (classes, d), factors (classes, d, d) with covariance L L^T, and the basis."""

    means: Tensor
    factors: Tensor
    basis: Tensor

    def draw(self, count: int, rng: torch.Generator, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Draw (count, c, h, w) projections, not scaled to [0, 1], and their classes, which cycle."""
        classes = torch.arange(count, device=self.means.device) % len(self.means)
        normal = torch.randn(count, self.means.shape[1], generator=rng, device=self.means.device)
        u = torch.empty_like(normal)
        for k in range(len(self.means)):
            u[k :: len(self.means)] = self.means[k] + normal[k :: len(self.means)] @ self.factors[k].T
        return (F.normalize(u, dim=1) @ self.basis.T).view(count, *shape), classes


def gaussians(released: Moments) -> Gaussians:
    """Estimate a mean and a positive semidefinite covariance per class from noisy moments (post-processing).

    A class's size is its share of the traces of all second moments, or an equal share if they were pooled. If pooled,
    class means are shrunk towards their mean by the fraction of their differences that is noise, and the classes share
    the covariance around them; otherwise each class's covariance is shrunk likewise towards the classes' mean
    covariance. Eigenvalues within the noise's edge, 2 sqrt(d) times the standard deviation of an entry (Wigner), become
    0; the noise's contribution is subtracted from larger ones.
    """
    classes, d = released.first.shape
    on_second = released.noise / (1 - released.weight) ** 0.5
    if len(released.second) == 1:
        size = released.records / classes
        means, noise = released.first / size, (released.noise / released.weight**0.5 / size) ** 2 * d
        # Shrink the means towards their mean by the expected squared norm of the noise on one of them
        centre = means.mean(0)
        away = means - centre
        means = centre + away * (1 - noise / away.square().sum(1, keepdim=True).clamp_min(1e-20)).clamp_min(0.3)
        covariance = released.second / released.records - means.T @ means / classes
        entry = torch.full((1,), on_second / released.records / 2**0.5, device=covariance.device)
    else:
        # A unit vector's u u^T has trace 1, so that noisy traces estimate class sizes without a separate release.
        traces = released.second.diagonal(dim1=1, dim2=2).sum(1).clamp_min(released.records / classes / 8)
        sizes = released.records * traces / traces.sum()
        means = released.first / sizes[:, None]
        own = released.second / sizes[:, None, None] - means[:, :, None] * means[:, None, :]
        pooled = (own * sizes[:, None, None]).sum(0) / sizes.sum()
        variance = (on_second / sizes).square() / 2
        trust = (1 - variance / (own - pooled).square().mean((1, 2)).clamp_min(1e-20)).clamp(0, 1)
        covariance = trust[:, None, None] * own + (1 - trust)[:, None, None] * pooled
        entry = (variance * (trust.square() + (1 - trust.square()) / classes)).sqrt()
    # `entry` is the noise deviation of the entries of each covariance
    factors = denoised_factors(covariance, 2 * d**0.5 * entry)
    return Gaussians(means, factors.expand(classes, d, d), released.basis)


def denoised_factors(covariance: Tensor, edge: Tensor) -> Tensor:
    """Return (k, d, d) factors L with L L^T the denoised covariance (k, d, d).

    Args:
        edge: (k,); eigenvalues up to it are noise and become 0.
    """
    values, vectors = torch.linalg.eigh(covariance)
    edge = edge[:, None]
    kept = (values + (values.square() - edge.square()).clamp_min(0).sqrt()) / 2
    spread = torch.where(values > edge, kept, torch.zeros_like(values)).clamp_min(1e-7).sqrt()
    return vectors * spread[:, None, :]


def to_stroke_image(projections: Tensor) -> Tensor:
    """Map (n, c, h, w) projections to pen-stroke images in [0, 1]: scale to the brightest ink, remove dim pixels."""
    bright = projections.flatten(1).quantile(0.97, dim=1).clamp_min(1e-3)[:, None, None, None]
    return ((projections / bright - 0.15) / 0.7).clamp(0, 1)


def to_image(projections: Tensor) -> Tensor:
    """Map (n, c, h, w) projections to images in [0, 1]: scale each to its brightest pixels."""
    bright = projections.flatten(1).quantile(0.99, dim=1).clamp_min(1e-3)[:, None, None, None]
    return (projections / bright).clamp(0, 1)
