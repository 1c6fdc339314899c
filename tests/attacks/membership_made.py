"""Models with fixed tables of outputs, and sets of references with known members."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bench.api import AttackerKnowledge, MembershipAttack, Reference, Target
from bench.testing import context


class Table(nn.Module):
    """Answers the logits of the row that the image's brightness names; (rows, classes)."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits.float()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[(x.flatten(1).mean(1) * 1000).round().long()]


def cards(n: int, first: int = 0) -> Tensor:
    """(n, 1, 2, 2) images, the i-th of brightness (first + i) / 1000."""
    return (torch.arange(first, first + n) / 1000).view(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()


def table(logits: Tensor) -> Target:
    return Target(Table(logits), "scores", (1, 2, 2), logits.shape[1])


def binary(phi: Tensor) -> Tensor:
    """(n, 2) logits with true class 0 and logit-scaled confidence phi."""
    return torch.stack([phi, torch.zeros_like(phi)], 1)


def split_in_half(count: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(seed)).argsort(0) < count // 2


def world(known: Tensor, members: Tensor, population: int = 0) -> AttackerKnowledge:
    """Suspects of two classes, all of class 0, in which reference i is confident by `known[i]`, population last."""
    n = members.shape[1]

    def references(count: int, kind: Literal["teacher", "student"]) -> list[Reference]:
        return [Reference(table(binary(phi)), inside) for phi, inside in zip(known, members, strict=True)][:count]

    labels = torch.zeros(n, dtype=torch.int64)
    others = (cards(population, n), torch.zeros(population, dtype=torch.int64))
    return AttackerKnowledge(cards(n), labels, lambda: others, references)


def knows(x: Tensor, y: Tensor, outside: tuple[Tensor, Tensor] | None = None) -> AttackerKnowledge:
    """Return suspects with labels and a population, without references."""
    return AttackerKnowledge(x, y, lambda: outside or (x[:1], y[:1]), no_references)


def no_references(count: int, kind: str) -> list[Reference]:
    raise AssertionError("the attack uses no references")


def infer(attack: MembershipAttack, phi: Tensor, known: Tensor, members: Tensor, population: int = 0) -> Tensor:
    """Return the scores of an attack in a `world`, on a target with confidences `phi`."""
    return attack.infer(table(binary(phi)), world(known, members, population), context()).scores


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
