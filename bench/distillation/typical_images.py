"""Images moved to where private second moments say that records lie, by gradients through fixed features.

Private whitening has released S, the noisy second moment of the private records' features u, rows of norm 1. Its
inverse, u (S + shift)^-1 u^T, is small in directions that records have often and large where they have nothing: a
Mahalanobis length, by which drawings of a prior are easily told from records. An image that descends it takes on what
most records share (outlines, textures, where things are), while it keeps what it was drawn as, for a few steps.
Nothing private is touched but the second moment, which is in the ledger already: post-processing, which costs nothing.

The idea is that of Yin et al., "Dreaming to Distill", CVPR 2020, whose images match the moments that a network's batch
normalisation has kept of its records; these moments are of fixed features, released with noise, and accounted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.api import Context
from bench.distillation.questions import as_bytes, as_floats
from bench.distillation.updates import descend
from bench.dp_training.fixed_features import LEAST_NORM
from bench.dp_training.whitening import Whitening
from bench.nets import Classifier

PART = 256
"""Images that are moved at once."""
SHARE = 0.5
"""Of the images are moved; the others stay as the prior and mutation made them, so that a student sees both."""
STEPS, RATE = 6, 0.03
"""Of Adam, on pixels in [0, 1]; many steps make all images the same, the one that is most usual."""


@dataclass(frozen=True)
class TypicalImages:
    """Moves images.

    Attributes:
        network: of fixed features, (n, c, h, w) in [0, 1] to (n, d), on the images' device.
        whitening: by the noisy second moment of the records' features.
        ctx: of the run; where it asks for bfloat16, the product with the whitening is in it.
    """

    network: Classifier
    whitening: Whitening
    ctx: Context

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """(n, c, h, w) uint8 of as many uint8 images, of which `SHARE`, drawn by `rng`, are moved."""
        rows = torch.randperm(len(images), generator=rng, device=images.device)[: round(SHARE * len(images))]
        moved = images.clone()
        for part in rows.split(PART):
            moved[part] = as_bytes(self._moved(as_floats(images[part])))
        return moved

    def _moved(self, images: Tensor) -> Tensor:
        x = images.clone().requires_grad_(True)
        adam = torch.optim.Adam([x], lr=RATE)
        with torch.enable_grad():
            for _ in range(STEPS):
                descend(adam, self.lengths(x).sum())
                with torch.no_grad():
                    x.clamp_(0, 1)
        return x.detach()

    def lengths(self, images: Tensor) -> Tensor:
        """(n,) Mahalanobis lengths of images in [0, 1], in units of that of a random direction."""
        features = self.network.features(images).float()
        rows = features / features.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
        with self.ctx.precision():
            return self.whitening.lengths(rows)
