"""Parts of every distillation loop: an optimiser step, training without dropout, a replay buffer, balanced images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Run one optimiser step on a scalar loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def train_without_dropout(network: nn.Module) -> None:
    """Set training mode for all layers except dropout.

    It is for targets that are the network's own output plus a small step; dropout would change the output much more.
    """
    network.train()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()


class ReplayBuffer:
    """Annotated batches that are used again; reusing them is post-processing and costs no privacy."""

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
        """Draw (count, c, h, w) images with their (count, classes) targets, with replacement, from the whole buffer."""
        if len(self.images) > 1:  # concatenate once after additions
            self.images, self.targets = [torch.cat(self.images)], [torch.cat(self.targets)]
        images, targets = self.images[0], self.targets[0]
        rows = torch.randint(len(images), (count,), generator=rng, device=images.device)
        return images[rows], targets[rows]


def draw_balanced(images: Tensor, student: nn.Module, count: int, rng: torch.Generator) -> Tensor:
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
