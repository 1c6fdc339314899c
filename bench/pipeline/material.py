"""The images of a run: who holds which part of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.data import ImageData

SEED = 2020


@dataclass(frozen=True)
class Material:
    """The images of a run, uint8: the whole data set, the teacher's private part, the attacker's part, the latter's
    labels where its classes are the private ones, and the public part, unlabelled, if the method asks for one."""

    data: ImageData
    private: tuple[Tensor, Tensor]
    aux: Tensor
    aux_labels: Tensor | None = None
    public: Tensor | None = None


def load_material(dataset: str, split: str, root: Path | None, download: bool, public: bool) -> Material:
    """The images of a run; arguments as in `Settings`. Raises BenchError if they are not there.

    Args:
        public: whether the method asks for public images.
    """
    images = data.load(dataset, root, download)
    shared = data.split(images, split, public)
    load_other = partial(data.load, root=root, download=download)
    aux, labels = data.aux_part(images, shared, load_other), data.aux_labels(images, shared)
    private, domain = data.private_part(images, shared), data.private_domain(images, shared)
    return Material(domain, private, aux, labels, data.public_part(images, shared))


def quantised(images: Tensor) -> Tensor:
    """Images in [0, 1] as uint8 on the CPU, as steps keep them and every scorer sees them."""
    return (images.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def some_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Indices of `count` records of each class, class by class, the same for all runs on the same data."""
    rng = np.random.RandomState(SEED)
    by_class = [(labels == c).nonzero().flatten() for c in labels.unique()]
    return torch.cat([rows[torch.from_numpy(rng.permutation(len(rows))[:count])] for rows in by_class])
