"""A linear decoder of images: their principal components, the eigenfaces of Turk and Pentland (CVPR 1991)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor


@dataclass(frozen=True)
class Eigenfaces:
    """The linear decoder x(z) = clip(m + V (s z)).

    Attributes:
        mean: m, (d,), the mean image.
        directions: the principal directions, (k, d), the transpose of V.
        deviations: s, (k,), the standard deviations along them.
        shape: (c, h, w) of an image.
    """

    mean: Tensor
    directions: Tensor
    deviations: Tensor
    shape: tuple[int, int, int]

    @property
    def size(self) -> int:
        """Return k, the length of a code."""
        return len(self.deviations)

    @classmethod
    def of(cls, images: Tensor, components: int, seed: int) -> Eigenfaces:
        """Compute the decoder from (n, c, h, w) images; at most n - 1 components."""
        rows = images.flatten(1).cpu().numpy().astype(np.float64)
        fitted = PCA(min(components, len(rows) - 1, rows.shape[1]), svd_solver="randomized", random_state=seed).fit(
            rows
        )
        found = (fitted.mean_, fitted.components_, np.sqrt(fitted.explained_variance_))
        mean, directions, deviations = (torch.from_numpy(part).float().to(images.device) for part in found)
        return cls(mean, directions, deviations, (images.shape[1], images.shape[2], images.shape[3]))

    def __call__(self, z: Tensor) -> Tensor:
        """Map (n, k) codes to (n, c, h, w) images in [0, 1]."""
        return self.unclipped(z).clamp(0, 1)

    def unclipped(self, z: Tensor) -> Tensor:
        """Map (n, k) codes to (n, c, h, w) images m + V (s z), not clipped to [0, 1]."""
        return (self.mean + (z * self.deviations) @ self.directions).view(-1, *self.shape)

    def unlikeliness(self, images: Tensor) -> float:
        """Return 0: principal components have no penalty for unrealistic images."""
        del images
        return 0.0

    def code(self, images: Tensor) -> Tensor:
        """Return (n, k) codes z with x(z) nearest to the images, ignoring the clipping."""
        along = (images.flatten(1) - self.mean) @ self.directions.T
        return torch.where(self.deviations > 0, along / self.deviations, torch.zeros_like(along))
