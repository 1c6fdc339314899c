"""Votes of the private records for candidate images: features, nearest candidates, and the noisy histogram.

Features are rounded to whole numbers, so that distances in float64 are exact: a record's vote depends on the record
and the candidates, not on the other records with which it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.data import to_float
from bench.dp_training.exact_products import exact_products
from bench.nets.scattering import Scattering
from bench.privacy.counts import noisy_counts
from bench.privacy.noise import Source

EmbeddingName = Literal["pixels", "scattering", "pca"]
LEVELS = {"pixels": 255.0, "scattering": 8192.0, "pca": 8192.0}
"""Steps per unit to which features are rounded."""
LARGEST = 2.0**15 - 1
"""Largest rounded feature. A product of two rows of up to 2^22 features is below 2^52, which float64 holds exactly."""
PART = 500
"""Images that are embedded, and records that vote, at once."""


@dataclass(frozen=True)
class Embedding:
    """A data-free map of (n, c, h, w) images in [0, 1] to (n, D) features, and the steps to which they are rounded."""

    features: Callable[[Tensor], Tensor]
    levels: float

    def __call__(self, images: Tensor) -> Tensor:
        """Map images, uint8 or float, to (n, D) float32 whole numbers."""
        return self.rounded(self.exact(images) * self.levels)

    @torch.no_grad()
    def exact(self, images: Tensor) -> Tensor:
        """Map images to float32 features that are not rounded."""
        parts = (part if part.is_floating_point() else to_float(part) for part in images.split(PART))
        return torch.cat([self.features(part.float()) for part in parts])

    @staticmethod
    def rounded(features: Tensor) -> Tensor:
        """Round features to whole numbers of at most LARGEST."""
        return features.round().clamp(-LARGEST, LARGEST)


def make_embedding(name: EmbeddingName, components: int, public: Tensor) -> Embedding:
    """Return the embedding of that name.

    Args:
        components: number of principal components of the wavelet features for "pca".
        public: (m, c, h, w) images in [0, 1] for "pca", none of which is private.
    """
    if name == "pixels":
        return Embedding(lambda images: images.flatten(1), LEVELS[name])
    network = Scattering().to(public.device, torch.get_default_dtype())

    def waves(images: Tensor) -> Tensor:
        return network(images).flatten(1)

    if name == "scattering":
        return Embedding(waves, LEVELS[name])
    mean, axes = principal_axes(Embedding(waves, 1.0).exact(public), components)
    return Embedding(lambda images: (waves(images) - mean) @ axes.T, LEVELS[name])


def principal_axes(rows: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """Return the mean of (m, D) rows and their first principal axes, (components, D) or fewer."""
    mean = rows.double().mean(0)
    off = rows.double() - mean
    axes = torch.linalg.eigh(off.T @ off).eigenvectors.flip(1)[:, :components].T
    return mean.float(), axes.float()


def nearest(features: Tensor, candidates: Tensor) -> Tensor:
    """Return (n,) int64: the nearest of (m, D) candidates to each of (n, D) rows of whole numbers; the first of equals.

    |x - e|^2 = |x|^2 - 2 <x, e> + |e|^2, without |x|^2, which is the same for all candidates.
    """
    e = candidates.double()
    norms = e.square().sum(1)
    return torch.cat([(norms - 2 * part.double() @ e.T).argmin(1) for part in features.split(PART)])


def votes(features: Tensor, labels: Tensor, candidates: Tensor) -> Tensor:
    """Step 3: count the records of class c for which candidate j of class c is the nearest, (C, N_c) float64.

    A record adds 1 to one count. A record whose label is not in [0, C) does not vote.

    Args:
        features, labels: (n, D) of the private records, (n,).
        candidates: (C, N_c, D).
    """
    classes, each = candidates.shape[:2]
    counts = torch.zeros(classes, each, dtype=torch.float64, device=features.device)
    with exact_products(features.device):
        for c in range(classes):
            chosen = nearest(features[labels == c], candidates[c])
            counts[c] = torch.bincount(chosen, minlength=each)
    return counts


def noisy_votes(features: Tensor, labels: Tensor, candidates: Tensor, sigma: float, source: Source) -> Tensor:
    """Steps 3 and 4: release the histogram by one Gaussian mechanism; both training and the audit's game call it."""
    return noisy_counts(votes(features, labels, candidates), "gaussian", sigma, source)
