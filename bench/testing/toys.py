"""Small substitutes for the inputs of a run: a context, a teacher, private images, an attacker's knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from bench import nets
from bench.api import (
    Access,
    AttackerKnowledge,
    Context,
    Reference,
    Sampler,
    Target,
    Teacher,
    gaussian_latents,
)
from bench.metrics.metric import Labelled, Reconstructions
from bench.privacy.noise import Noise
from bench.validate import instance

SHAPE, CLASSES = (1, 16, 16), 4
"""(c, h, w) and number of classes of all toy images."""
CPU = torch.device("cpu")


class MemoryArtifacts:
    """A store of artifacts in memory (`bench.api.Artifacts`); `made` lists the kinds that were made, in order."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Tensor]] = {}
        self.made: list[str] = []

    def get(self, kind: str, key: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the tensors of a key; the first request makes them."""
        name = f"{kind}/{sorted(key.items())}"
        if name not in self.kept:
            self.made.append(kind)
            self.kept[name] = make()
        return self.kept[name]


@contextmanager
def silent(stage: str, total: int) -> Iterator[Callable[[int], None]]:
    """Context manager: a progress bar that shows nothing."""
    yield lambda n: None


def context(seed: int = 0) -> Context:
    """Build a context on the CPU with seeded noise and no storage on disk."""
    return Context(torch.device("cpu"), seed, silent, MemoryArtifacts())


@dataclass(frozen=True)
class RecordingContext(Context):
    """A context that records the (seed, name) of every requested stream of privacy noise."""

    streams: list[tuple[int, str]] = field(default_factory=list)

    def privacy_noise(self, name: str) -> Noise:
        """Record the request and return the noise."""
        self.streams.append((self.seed, name))
        return super().privacy_noise(name)


def recording_context(seed: int = 0) -> RecordingContext:
    """Build a `context` that records requests for noise."""
    return RecordingContext(**vars(context(seed)))


def toy_teacher(seed: int = 0, arch: str = "datalens") -> Teacher:
    """Build an untrained small network as teacher."""
    torch.manual_seed(seed)
    model = nets.build(arch, SHAPE, CLASSES).eval().requires_grad_(False)
    return Teacher(model, arch, SHAPE, CLASSES, "toy")


def sure_network() -> nn.Module:
    """Build the toy teacher's network with large logits, so that its probabilities differ between images."""
    model = toy_teacher().model
    with torch.no_grad():
        for parameter in list(model.parameters())[-2:]:
            parameter.mul_(50)
    return model


def toy_private(seed: int = 0, n: int = 80) -> tuple[Tensor, Tensor]:
    """Return private images (n, c, h, w) uint8 and labels (n,); each class has one bright corner."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 8 * (label // 2) : 8 * (label // 2) + 8, 8 * (label % 2) : 8 * (label % 2) + 8] += 150
    return images.to(torch.uint8), labels


def toy_sampler(seed: int = 0) -> Sampler:
    """Build an untrained, unconditional generator with latents of length 8."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(8, math.prod(SHAPE)), nn.Sigmoid(), nn.Unflatten(1, SHAPE))
    return Sampler(layers.eval().requires_grad_(False), gaussian_latents(8))


def toy_images(n: int, seed: int = 0) -> Tensor:
    """Return the images of `toy_private` as (n, c, h, w) float32 in [0, 1]."""
    return toy_private(seed, n)[0].float() / 255


def toy_aux() -> Tensor:
    """Return an attacker's images: (64, c, h, w) float32 noise in [0, 1]."""
    return torch.rand(64, *SHAPE, generator=torch.Generator().manual_seed(1))


def toy_knowledge(access: Access) -> AttackerKnowledge:
    """Return 40 suspects, a population of 24, and untrained networks as references."""
    images, labels = toy_private(5, 40)
    others, classes = toy_private(6, 24)

    def references(count: int, kind: str) -> list[Reference]:
        inside = torch.rand(count, 40, generator=torch.Generator().manual_seed(7)).argsort(0) < count // 2
        return [
            Reference(Target(toy_teacher(10 + i).model, access, SHAPE, CLASSES), members)
            for i, members in enumerate(inside)
        ]

    return AttackerKnowledge(images.float() / 255, labels, lambda: (others.float() / 255, classes), references)


def weights(module: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers of a module."""
    return list(module.state_dict().values())


def same_tensors(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether two series of tensors have the same length and the same values, bit for bit."""
    pairs = list(zip_longest(some, others))
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def toy_reconstructions(seed: int = 0) -> Reconstructions:
    """Return noisy private images as reconstructions, with features and logits of an untrained network."""
    evaluator = instance(toy_teacher(seed).model, nets.Classifier, "toy teacher")
    private, held_out = (_labelled(evaluator, *toy_private(number)) for number in (seed, seed + 1))
    noise = torch.randint(-20, 20, private.images.shape, generator=torch.Generator().manual_seed(seed))
    made = _labelled(evaluator, (private.images + noise).clamp(0, 255).to(torch.uint8), private.labels)
    logits = evaluator(made.images / 255).double()
    return Reconstructions(made.images, made.labels, made.features, logits, private, held_out)


def _labelled(evaluator: nets.Classifier, images: Tensor, labels: Tensor) -> Labelled:
    return Labelled(images, labels, evaluator.features(images / 255))
