"""The variants of DGD at tier smoke, and a teacher with an ensemble that counts its queries."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from methods_made import smoke
from torch import Tensor

from bench.api import Teacher
from bench.nets import Ensemble
from bench.testing import CLASSES, SHAPE, toy_teacher

printed, learning = partial(smoke, "dgd", "printed"), partial(smoke, "dgd", "working")


class SpyEnsemble(Ensemble):
    queried = 0

    def votes(self, images: Tensor) -> Tensor:
        self.queried += len(images)
        return super().votes(images)


def teacher(**parts: Any) -> Teacher:
    members = SpyEnsemble.build(["shard-cnn"], 3, SHAPE, CLASSES, range(3)).eval().requires_grad_(False)
    return replace(toy_teacher(), **({"ensemble": members} | parts))
