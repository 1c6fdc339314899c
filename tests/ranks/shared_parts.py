"""Networks, recipes and functions that the processes of these tests import."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets import Classifier
from bench.ranks import Rank
from bench.teachers import Recipe

CPU = torch.device("cpu")


def records(n: int, shape: tuple[int, int, int] = (1, 12, 12), classes: int = 3) -> tuple[Tensor, Tensor]:
    """Noise, in which every class has a bright row; the first pixel is the record's number."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 120, (n, *shape), generator=rng, dtype=torch.uint8)
    labels = torch.arange(n) % classes
    images[torch.arange(n), 0, labels * 4 + 1] += 100
    images[:, 0, 0, 0] = torch.arange(n)
    return images, labels


def normalised() -> Classifier:
    """A network with batch normalisation, one of a single place an image, and without dropout."""
    torch.manual_seed(7)
    first = nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    body = nn.Sequential(*first, nn.Linear(24, 8, bias=False), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 3))
    return Classifier(body, 0.5, 0.5)


def with_dropout() -> Classifier:
    """Return the network of `normalised` with dropout."""
    made = normalised()
    made.body.insert(5, nn.Dropout(0.5))  # type: ignore[operator]
    return made


@dataclass(frozen=True)
class Mixing(Recipe):
    """Queries the network twice a step and uses the whole batch: mixed pairs, and the mean prediction."""

    def loss(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        partner = torch.randperm(len(images), generator=generator)
        mixed = forward(0.6 * images + 0.4 * images[partner])
        plain = forward(images)
        mean = plain.softmax(1).mean(0)
        return F.cross_entropy(mixed, labels) + F.cross_entropy(plain, labels[partner]) + (mean * mean.log()).sum()


@dataclass(frozen=True)
class Adversarial(Recipe):
    """Needs gradients of the images."""

    def loss(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        return F.cross_entropy(forward(images.requires_grad_()), labels)


def failing(rank: Rank, given: str) -> None:
    """Fail on one rank while the others wait."""
    if rank.index == 1:
        raise ValueError(given)
    stuck(rank, given)


def stuck(rank: Rank, given: str) -> None:
    """Never end."""
    threading.Event().wait(600)


def observed(rank: Rank, given: int) -> tuple[int, int, int, int, str]:
    """The value, the rank's number, its process, its threads, and the interface that gloo uses."""
    rank.advance(1)
    return given, rank.index, os.getpid(), torch.get_num_threads(), os.environ["GLOO_SOCKET_IFNAME"]


def summed(rank: Rank, given: float) -> float:
    """The sum over all ranks."""
    total = torch.tensor(given)
    dist.all_reduce(total)
    return total.item()


def with_unused_weights() -> Classifier:
    """The network of `normalised`, with a layer that no image passes."""
    made = normalised()
    made.body[2].spare = nn.Linear(3, 3)  # type: ignore[index, assignment]
    return made
