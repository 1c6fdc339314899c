"""Networks that answer by a table, in place of teachers and students, for the game of an audit."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TableNetwork(nn.Module):
    """A classifier of numbered images: row i of a table are the logits of an image whose first pixel is i.

    Args:
        table: (images, classes) logits.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.body = nn.Identity()  # where an ensemble looks for features that its members share

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) to (n, classes)."""
        return self.table[images[:, 0, 0, 0].long()]


def numbered_images(numbers: Tensor) -> Tensor:
    """(n, 1, 1, 1) images of (n,) numbers."""
    return numbers.float().view(-1, 1, 1, 1)


def voter(*classes: int, of: int) -> TableNetwork:
    """A network that takes image i for the i-th of these classes."""
    return TableNetwork(torch.nn.functional.one_hot(torch.tensor(classes), of).float())
