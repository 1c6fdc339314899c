"""A replay buffer of annotated images, and a class-balanced choice of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Answers:
    """A replay buffer of annotated batches; reusing them is post-processing and costs no privacy."""

    def __init__(self) -> None:
        self.images: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.batches = 0
        """Number of batches added."""

    def add(self, images: Tensor, targets: Tensor) -> None:
        """Store one annotated batch: (n, c, h, w) images, (n, classes) targets."""
        self.batches += 1
        self.images.append(images.detach())
        self.targets.append(targets.detach())

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `count` images with their targets, with replacement, from the whole buffer."""
        images, targets = self._joined()
        flat = torch.randint(len(images), (count,), generator=rng, device=images.device)
        return images[flat], targets[flat]

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Return all images and all targets, concatenated on first use after an addition."""
        if len(self.images) > 1:
            self.images, self.targets = [torch.cat(self.images)], [torch.cat(self.targets)]
        return self.images[0], self.targets[0]


def balanced(images: Tensor, student: nn.Module, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` of the images so that the student's predicted classes are about equally frequent.

    Weighted drawing without replacement by the largest log(u) / weight (Efraimidis and Spirakis, 2006).

    Args:
        images: (n, c, h, w), n >= count.
        student: called in evaluation mode, `count` images at a time, without gradients.
        rng: on the images' device.
    """
    student.eval()
    with torch.no_grad():
        probability = torch.cat([student(part).softmax(1) for part in images.split(count)])
    weight = 1 / probability.mean(0)[probability.argmax(1)]
    uniform = torch.rand(len(images), generator=rng, device=images.device).clamp_min(1e-30)
    return images[(uniform.log() / weight).topk(count).indices]
