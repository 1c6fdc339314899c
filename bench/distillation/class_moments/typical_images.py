"""Images moved to where private records lie, by gradients of how usual an image is among them.

Where private whitening has released a noisy second moment of the records' features, it tells drawings of a prior from
records (`bench/dp_training/typicality.py`). An image that descends it takes on what most records share (outlines,
textures, where things are), while it keeps what it was drawn as, for a few steps. It is post-processing of a release
that is in the ledger already, and costs nothing.

The idea is that of Yin et al., "Dreaming to Distill", CVPR 2020, whose images match the moments that a network's batch
normalisation has kept of its records; these moments are of fixed features, released with noise, and accounted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.distillation.transcription.questions import as_bytes, as_floats
from bench.distillation.updates import descend

PART = 256
"""Images that are moved at once."""
SHARE = 0.5
"""Of a round's images are moved; the others stay as the prior and mutation made them, so that a student sees both.
What mutation makes in later rounds has parents that may have been moved."""
STEPS, RATE = 6, 0.03
"""Of Adam in a round, on pixels in [0, 1]; many steps make all images the same, the one that is most usual."""


@dataclass(frozen=True)
class TypicalImages:
    """Moves images.

    Attributes:
        lengths: (n, c, h, w) images in [0, 1] to (n,), each of its own image alone; small where records are many.
    """

    lengths: Callable[[Tensor], Tensor]

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """(n, c, h, w) uint8 of as many uint8 images, of which `SHARE`, drawn by `rng`, are moved."""
        rows = torch.randperm(len(images), generator=rng, device=images.device)[: round(SHARE * len(images))]
        moved = images.clone()
        for part in rows.split(PART) if len(rows) else ():  # of nothing, split makes one empty part
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
