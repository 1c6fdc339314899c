"""Teachers and students with known outputs, and a spy that counts queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.testing import CLASSES


def log(*rows: list[float]) -> Tensor:
    """Return the logits of rows of probabilities."""
    return torch.tensor(rows).log()


def towards(r: int) -> Tensor:
    """Return the normalised gradient at a flat output for a teacher that is certain of class r."""
    return torch.full((CLASSES,), 1 / 12**0.5).index_fill(0, torch.tensor(r), -(0.75**0.5))


class Spy(nn.Module):
    """Counts the images of a network's queries, and the queries with gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.asked: list[int] = []
        self.seen: list[Tensor] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(len(x))
        self.seen.append(x.detach().clone())
        self.with_gradient += x.requires_grad
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        self.with_gradient += x.requires_grad
        return self.model.features(x)  # type: ignore[operator]


class Fixed(nn.Module):
    """Returns the same logits, one row per image, and the same features for every batch."""

    def __init__(self, logits: Tensor, features: Tensor | None = None) -> None:
        super().__init__()
        self.logits, self.body = logits, nn.Identity()
        self.shown = logits if features is None else features

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x)]

    def features(self, x: Tensor) -> Tensor:
        return self.shown[: len(x)]


class FixedMembers(nn.Module):
    """Teachers that return the same (teachers, images, classes) logits for every batch."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def __len__(self) -> int:
        return len(self.logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[:, : len(x)]


class Forbidden(nn.Module):
    """Fails when queried."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("this network must not be queried")
