"""Toy networks that look their output up in a table; they replace teachers and students in audit games."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TableNetwork(nn.Module):
    """A classifier of numbered images: the logits of an image whose first pixel is i are row i of a table.

    Args:
        table: (images, classes) logits.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.body = nn.Identity()  # an ensemble looks here for features that its members share

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, classes)."""
        return self.table[images[:, 0, 0, 0].long()]


def numbered_images(numbers: Tensor) -> Tensor:
    """Return (n, 1, 1, 1) images of (n,) numbers."""
    return numbers.float().view(-1, 1, 1, 1)


def voter(*classes: int, of: int) -> TableNetwork:
    """Return a network that classifies image i as the i-th of these classes."""
    return TableNetwork(torch.nn.functional.one_hot(torch.tensor(classes), of).float())
