"""Access to the private records, for methods that train on them."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.api import Teacher


def private_records(teacher: Teacher, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the private images (n, c, h, w) uint8 and labels (n,) int64, moved to `device` if one is given.

    Raises:
        RuntimeError: the method's `needs` do not include them.
    """
    if teacher.private is None:
        raise RuntimeError('private training uses the private records; the method\'s `needs` must name "private_data"')
    images, labels = teacher.private
    return (images, labels) if device is None else (images.to(device), labels.to(device))
