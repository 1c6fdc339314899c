"""Small networks and records for tests of DP-SGD."""

from __future__ import annotations

import torch
from torch import Tensor

from bench import nets
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.nets import Classifier

SHAPE, CLASSES = (1, 16, 16), 4
PLAIN = DpSgdSettings(batch=8, steps=3, multiplier=0.0, clip=1.0, clipping="flat", rate=1.0, momentum=0.0)
ROOM = 127 / 128
"""Share of the clipping norm that is left after the margin for rounding errors."""


def records(n: int, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, *shape), generator=rng, dtype=torch.uint8)
    return images, torch.arange(n) % classes


def network(name: str = "tanh-cnn") -> Classifier:
    torch.manual_seed(0)
    return nets.build(name, SHAPE, CLASSES)
