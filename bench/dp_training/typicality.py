"""How usual an image is among private records, by the second moment of their features that whitening has released.

The root of u (S + shift)^-1 u^T, u the features of an image as a row of norm 1 and S the noisy second moment: a
Mahalanobis length, small in directions that records have often and large where they have nothing. Where rows are long
(`bench/dp_training/whitening.py`), S is of a place's features, and u's places are summed. Nothing private is touched
but S.
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
    """Lengths of images, through which gradients flow.

    Attributes:
        network: of fixed features, (n, c, h, w) in [0, 1] to (n, d), on the images' device.
        whitening: by the noisy second moment of the records' features.
        ctx: of the run; where it asks for bfloat16, the product with the whitening is in it.
    """

    network: Classifier
    whitening: Whitening
    ctx: Context

    def __call__(self, images: Tensor) -> Tensor:
        """(n,) of (n, c, h, w) images in [0, 1], in units of the length of a random direction."""
        features = self.network.features(images).float()
        rows = features / features.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
        with self.ctx.precision():
            return self.whitening.lengths(rows)
