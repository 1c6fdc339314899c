"""Choice of the query images: new ones from a prior, children of annotated ones, and the student's selection.

All of it uses only past responses and the student trained on them: post-processing, which costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.data.affine import apply_affine, draw_affine
from bench.distillation.transcription.mutation import children

PART = 512
"""Number of images per forward pass without gradients."""
FEWEST = 2.0
"""Added to a class's count before dividing by it, so that a class with one image does not get all children."""
LEAST_UNSURE = 1e-3


class Answered:
    """The images queried so far, in 8 bits, and the readings of their responses.

    Attributes:
        images: (n, c, h, w) uint8.
        readings: (n, classes), such as the log-likelihoods of a response under every class.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, device: torch.device) -> None:
        self.images = torch.empty(0, *shape, dtype=torch.uint8, device=device)
        self.readings = torch.empty(0, classes, device=device)

    def __len__(self) -> int:
        return len(self.images)

    def add(self, images: Tensor, readings: Tensor) -> None:
        """Store annotated (n, c, h, w) uint8 images with their (n, classes) readings."""
        self.images, self.readings = torch.cat([self.images, images]), torch.cat([self.readings, readings])

    def newest(self, count: int) -> Answered:
        """Return the last `count` of them."""
        found = Answered(tuple(self.images.shape[1:]), self.readings.shape[1], self.images.device)  # type: ignore[arg-type]
        found.add(self.images[-count:], self.readings[-count:])
        return found


def as_bytes(images: Tensor) -> Tensor:
    """Convert images in [0, 1] to uint8."""
    return (images * 255).round().to(torch.uint8)


def as_floats(images: Tensor) -> Tensor:
    """Convert uint8 images to [0, 1]."""
    return images.float() / 255


def drawn_children(answered: Answered, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw (count, c, h, w) uint8 children of annotated images, with parents balanced over their assumed classes.

    Args:
        classes: (n,) int64, the assumed class of each annotated image.
    """
    weight = 1 / (torch.bincount(classes, minlength=answered.readings.shape[1]).float() + FEWEST)
    parents = torch.multinomial(weight[classes], count, replacement=True, generator=rng)
    return torch.cat([as_bytes(children(as_floats(answered.images[part]), rng)) for part in parents.split(PART)])


def slightly_moved(images: Tensor, rng: torch.Generator) -> Tensor:
    """Rotate, scale, shear and shift each of (n, c, h, w) images in [0, 1] by about a pixel, which keeps its class."""
    return apply_affine(images, draw_affine(len(images), rng), turn=0.04, scale=0.04, shear=0.04, move=0.05)


def chosen(candidates: Tensor, logits: Tensor, count: int, unsure: float, rng: torch.Generator) -> Tensor:
    """Choose (count,) rows of the candidates, balanced over the student's predicted classes, uncertain ones more often.

    Drawn without replacement by the largest log(u) / weight (Efraimidis and Spirakis, 2006), with weight (1 -
    margin)^unsure over the mean probability of the row's class.

    Args:
        candidates: (n, ...), n >= count; only their number is used.
        logits: (n, c), the student's.
        unsure: exponent, >= 0; 0 = class balance only.
    """
    p = logits.softmax(1)
    top = p.topk(2, 1)
    weight = (LEAST_UNSURE + 1 - (top.values[:, 0] - top.values[:, 1])) ** unsure / p.mean(0)[top.indices[:, 0]]
    u = torch.rand(len(candidates), generator=rng, device=rng.device).clamp_min(1e-30)
    return (u.log() / weight).topk(count).indices


@torch.no_grad()
def logits_of(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return (n, classes) float32 logits of uint8 images, in parts; a module is called in evaluation mode."""
    if isinstance(network, nn.Module):
        network.eval()
    return torch.cat([network(as_floats(part)).float() for part in images.split(PART)])
