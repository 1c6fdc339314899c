"""Typicality of an image among the private records, by a released second moment of their features.

It is the root of u (S + shift)^-1 u^T, with u the features of an image as a row of norm 1 and S the noisy second
moment: small in directions that are common among the records, large in directions that are rare. For long rows
(`bench/dp_training/whitening.py`), S is of one position's features, and the terms of u's positions are summed. S is the
only input that depends on private data, and it is already released.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bench.api import Context
from bench.dp_training.fixed_features import LEAST_NORM
from bench.dp_training.whitening import Whitening
from bench.nets import Classifier


@dataclass(frozen=True)
class Typicality:
    """Mahalanobis lengths of images, differentiable in the images.

    Attributes:
        network: of fixed features, maps (n, c, h, w) in [0, 1] to (n, d), on the images' device.
        whitening: by the noisy second moment of the records' features.
        ctx: of the run; with bfloat16 autocast, the product with the whitening uses it.
    """

    network: Classifier
    whitening: Whitening
    ctx: Context

    def __call__(self, images: Tensor) -> Tensor:
        """Return (n,) lengths of (n, c, h, w) images in [0, 1], in units of the length of a random direction."""
        features = self.network.features(images).float()
        rows = features / features.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
        with self.ctx.precision():
            return self.whitening.lengths(rows)
