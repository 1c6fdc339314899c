"""Which images a teacher is asked about: fresh ones of a prior, children of those answered, the student's choice.

All of it looks at answers that were given and at the student that learnt from them: post-processing, which costs no
privacy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.data.affine import apply_affine, draw_affine
from bench.distillation.transcription.mutation import children

PART = 512
"""Images that a network sees at once where no gradient is taken."""
FEWEST = 2.0
"""Added to the count of a class before it is divided by, so that a class with one image has not all children."""
LEAST_UNSURE = 1e-3


class Answered:
    """The images that were asked about, in 8 bits, and what is kept of the answers.

    Attributes:
        images: (n, c, h, w) uint8.
        readings: (n, classes), such as the log-likelihoods of an answer under every class.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, device: torch.device) -> None:
        self.images = torch.empty(0, *shape, dtype=torch.uint8, device=device)
        self.readings = torch.empty(0, classes, device=device)

    def __len__(self) -> int:
        return len(self.images)

    def add(self, images: Tensor, readings: Tensor) -> None:
        """Keep what was answered: (n, c, h, w) uint8 images, (n, classes) readings."""
        self.images, self.readings = torch.cat([self.images, images]), torch.cat([self.readings, readings])

    def newest(self, count: int) -> Answered:
        """The last `count` of them."""
        found = Answered(tuple(self.images.shape[1:]), self.readings.shape[1], self.images.device)  # type: ignore[arg-type]
        found.add(self.images[-count:], self.readings[-count:])
        return found


def as_bytes(images: Tensor) -> Tensor:
    """uint8 of images in [0, 1]."""
    return (images * 255).round().to(torch.uint8)


def as_floats(images: Tensor) -> Tensor:
    """Images in [0, 1] of uint8."""
    return images.float() / 255


def drawn_children(answered: Answered, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """(count, c, h, w) uint8 children of answered images, whose parents are balanced over what they are taken to show.

    Args:
        classes: (n,) int64, what each answered image is taken to show.
    """
    weight = 1 / (torch.bincount(classes, minlength=answered.readings.shape[1]).float() + FEWEST)
    parents = torch.multinomial(weight[classes], count, replacement=True, generator=rng)
    return torch.cat([as_bytes(children(as_floats(answered.images[part]), rng)) for part in parents.split(PART)])


def slightly_moved(images: Tensor, rng: torch.Generator) -> Tensor:
    """(n, c, h, w) images in [0, 1], each turned, scaled, sheared and moved by about a pixel: of the same class."""
    return apply_affine(images, draw_affine(len(images), rng), turn=0.04, scale=0.04, shear=0.04, move=0.05)


def chosen(candidates: Tensor, logits: Tensor, count: int, unsure: float, rng: torch.Generator) -> Tensor:
    """(count,) rows of the candidates: balanced over the classes that the student sees, unsure ones more often.

    Drawn without replacement by the largest log(u) / weight (Efraimidis and Spirakis, 2006), the weight being
    (1 - margin)^unsure over the mean probability of the row's class.

    Args:
        candidates: (n, ...) of which only the number counts, n >= count.
        logits: (n, c) the student's.
        unsure: exponent, >= 0; 0 = balance alone.
    """
    p = logits.softmax(1)
    top = p.topk(2, 1)
    weight = (LEAST_UNSURE + 1 - (top.values[:, 0] - top.values[:, 1])) ** unsure / p.mean(0)[top.indices[:, 0]]
    u = torch.rand(len(candidates), generator=rng, device=rng.device).clamp_min(1e-30)
    return (u.log() / weight).topk(count).indices


@torch.no_grad()
def logits_of(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """(n, classes) float32 logits of uint8 images, a part at a time; a module is asked in evaluation mode."""
    if isinstance(network, nn.Module):
        network.eval()
    return torch.cat([network(as_floats(part)).float() for part in images.split(PART)])
