"""Metrics of images: `bench.metrics` compared with torchmetrics, scikit-learn and prdc."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.metrics.distribution import Prdc, frechet_distance, prdc
from bench.metrics.inversion import knn_distance
from bench.metrics.pairs import ssim_pairs
from peer_pairs._pair import Absent, Pair, near

FEATURES, IMAGES, CLASSES, NEIGHBOURS = 256, 2000, 10, 5
PAIRS, SIDE = 200, 32


def pairs() -> Iterator[Pair | Absent]:
    """Yield the Fréchet distance, SSIM, the distance to the nearest neighbour, and PRDC."""
    ours, theirs = features(0, 0.3), features(1, 0.0)
    yield Pair(
        "Fréchet distance",
        "torchmetrics",
        lambda: frechet_distance(ours, theirs),
        lambda: their_frechet(ours, theirs),
        lambda a, b: near("Fréchet distance", a, b, relative=1e-6),
        bar=1.0,
    )
    yield _ssim()
    yield _neighbours(ours, theirs)
    yield _prdc_by_sklearn(ours, theirs)
    yield _prdc(ours, theirs)


def features(seed: int, shift: float) -> Tensor:
    """Return (IMAGES, FEATURES) float32, correlated like a network's features."""
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(FEATURES, FEATURES, generator=torch.Generator().manual_seed(9)) / FEATURES**0.5
    return torch.randn(IMAGES, FEATURES, generator=rng) @ mixing + shift


class Same(nn.Module):
    """A network whose features are its input."""

    num_features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


def their_frechet(features: Tensor, private_features: Tensor) -> float:
    """Compute the distance with torchmetrics, in float64."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(Same()).set_dtype(torch.float64)
    metric.update(private_features.double(), real=True)
    metric.update(features.double(), real=False)
    return float(metric.compute())


def _ssim() -> Pair:
    from torchmetrics.functional.image import structural_similarity_index_measure

    rng = torch.Generator().manual_seed(0)
    x = torch.rand(PAIRS, 3, SIDE, SIDE, generator=rng, dtype=torch.float64)
    y = (x + 0.2 * torch.rand(x.shape, generator=rng, dtype=torch.float64)).clamp(0, 1)

    def theirs() -> Tensor:
        found = structural_similarity_index_measure(x, y, data_range=1.0, reduction="none")
        assert isinstance(found, Tensor)
        return found

    def check(a: Tensor, b: Tensor) -> None:
        near("largest difference of a pair's SSIM", float((a - b).abs().max()), 0.0, 0.0, absolute=1e-9)

    return Pair("SSIM", "torchmetrics", lambda: ssim_pairs(x, y), theirs, check, bar=1.2)


def _neighbours(ours: Tensor, theirs: Tensor) -> Pair:
    """Compare the mean squared distance to the nearest private image of the class."""
    from sklearn.neighbors import NearestNeighbors

    labels = torch.arange(IMAGES) % CLASSES
    a, b, classes = ours.numpy(), theirs.numpy(), labels.numpy()

    def by_sklearn() -> float:
        squares = []
        for c in range(CLASSES):
            known = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b[classes == c].astype(np.float64))
            squares.append(known.kneighbors(a[classes == c].astype(np.float64))[0] ** 2)
        return float(np.concatenate(squares).mean())

    return Pair(
        "distance to the nearest",
        "scikit-learn, NearestNeighbors",
        lambda: knn_distance(ours, labels, theirs, labels),
        by_sklearn,
        lambda x, y: near("mean squared distance", x, y, relative=1e-6),
        bar=1.2,
    )


def _our_prdc(ours: Tensor, theirs: Tensor) -> Prdc:
    labels = torch.zeros(IMAGES, dtype=torch.int64)
    return prdc(ours, labels, theirs, labels, NEIGHBOURS)


def _check_prdc(ours: Prdc, theirs: dict[str, Any]) -> None:
    for name in ("precision", "recall", "density", "coverage"):
        near(name, getattr(ours, name), float(theirs[name]), relative=0.0, absolute=1e-6)


def _prdc_by_sklearn(ours: Tensor, theirs: Tensor) -> Pair:
    from sklearn.metrics import pairwise_distances
    from sklearn.neighbors import NearestNeighbors

    fake, real = ours.numpy().astype(np.float64), theirs.numpy().astype(np.float64)

    def radii(x: Any) -> Any:
        found = NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute").fit(x).kneighbors()
        return found[0][:, -1]

    def by_sklearn() -> dict[str, float]:
        gaps, of_real, of_fake = pairwise_distances(real, fake), radii(real), radii(fake)
        inside = gaps < of_real[:, None]
        return {
            "precision": inside.any(0).mean(),
            "recall": (gaps < of_fake).any(1).mean(),
            "density": inside.sum(0).mean() / NEIGHBOURS,
            "coverage": inside.any(1).mean(),
        }

    return Pair("PRDC", "scikit-learn", lambda: _our_prdc(ours, theirs), by_sklearn, _check_prdc, bar=1.2)


def _prdc(ours: Tensor, theirs: Tensor) -> Pair | Absent:
    try:
        from prdc import compute_prdc
    except ImportError:
        return Absent("PRDC and prdc: not installed; pip install 'dp-distill-bench[peers]'")
    fake, real = ours.numpy().astype(np.float64), theirs.numpy().astype(np.float64)

    def by_prdc() -> dict[str, float]:
        with contextlib.redirect_stdout(io.StringIO()):  # prdc prints its number of images
            return compute_prdc(real, fake, NEIGHBOURS)

    return Pair("PRDC", "prdc", lambda: _our_prdc(ours, theirs), by_prdc, _check_prdc, bar=1.2)
