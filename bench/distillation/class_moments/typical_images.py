"""Gradient steps that make images more typical of the private records.

Private whitening has released a noisy second moment of the records' features, which separates drawings of a prior from
records (`bench/dp_training/whitening.py`). A few descent steps give an image the properties that most records share
(outlines, textures, positions), while it keeps its content. This is post-processing of a release that is already in the
ledger, and costs nothing.

The idea is that of Yin et al., "Dreaming to Distill", CVPR 2020, whose images match the moments that a network's batch
normalisation stores about its records; these moments are of fixed features, released with noise, and accounted. As
there, images can be optimised towards a class by the classifier's response, too (`ClassTargets`). Drawings are of few
classes; random targets make the classes of the queries more even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.data import to_float
from bench.distillation.training import descend
from bench.distillation.transcription.queries import to_bytes

PART = 256
"""Number of images optimised at once."""
SHARE = 0.5
"""Share of a round's images that are optimised; the others stay as drawn, so that a student sees both. Parents of later
children may be optimised images."""
STEPS, RATE = 6, 0.03
"""Adam steps per round and step size, on pixels in [0, 1]; many steps would make all images alike."""


@dataclass(frozen=True)
class ClassTargets:
    """Random classes towards which images are optimised too.

    Attributes:
        objective: maps (n, c, h, w) images in [0, 1] and (n,) int64 classes to (n,): the length, and a weight times the
            loss of the private classifier's response to the class; each depends on its own image only.
        classes: number of classes, which are equally likely.
    """

    objective: Callable[[Tensor, Tensor], Tensor]
    classes: int


@dataclass(frozen=True)
class TypicalImages:
    """Optimises a share of the images by gradient descent on their Mahalanobis length.

    Attributes:
        lengths: maps (n, c, h, w) images in [0, 1] to (n,), each depending on its own image only; small for typical
            images.
        targets: None = by the length only.
    """

    lengths: Callable[[Tensor], Tensor]
    targets: ClassTargets | None = None

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Return (n, c, h, w) uint8 images of which the share `SHARE`, drawn by `rng`, is optimised."""
        rows = torch.randperm(len(images), generator=rng, device=images.device)[: round(SHARE * len(images))]
        optimised, wanted = images.clone(), None
        if self.targets is not None:
            wanted = torch.randint(self.targets.classes, (len(images),), generator=rng, device=images.device)
        for part in rows.split(PART) if len(rows) else ():  # split of an empty tensor returns one empty part
            x = to_float(images[part]).requires_grad_(True)
            adam = torch.optim.Adam([x], lr=RATE)
            with torch.enable_grad():
                for _ in range(STEPS):
                    descend(adam, self._objective(x, None if wanted is None else wanted[part]).sum())
                    with torch.no_grad():
                        x.clamp_(0, 1)
            optimised[part] = to_bytes(x.detach())
        return optimised

    def _objective(self, images: Tensor, classes: Tensor | None) -> Tensor:
        if self.targets is None or classes is None:
            return self.lengths(images)
        return self.targets.objective(images, classes)
