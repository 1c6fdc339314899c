"""The conditional generator of DP-MERF and DP-NTK: two dense layers, then twice bilinear doubling and a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import BenchError
from bench.nets.generators import Shape


class BilinearGenerator(nn.Module):
    """DP-MERF's generator for any image whose height and width are multiples of 4.

    [z, onehot(y)]; dense `hidden`, batch normalisation, ReLU; dense to 16 maps of a quarter of the size, batch
    normalisation; twice bilinear doubling and a 5x5 convolution, to 8 maps with ReLU, then to the c channels; sigmoid.

    Raises:
        BenchError: height or width is not a multiple of 4.
    """

    def __init__(self, shape: Shape, classes: int, latent: int = 5, hidden: int = 200) -> None:
        super().__init__()
        c, h, w = shape
        if h % 4 or w % 4:
            raise BenchError(f"images of {h}x{w} pixels: this generator makes multiples of 4 only; resize the data set")
        flat = 16 * (h // 4) * (w // 4)
        self.classes = classes
        self.body = nn.Sequential(
            nn.Linear(latent + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, flat),
            nn.BatchNorm1d(flat),
            nn.Unflatten(1, (16, h // 4, w // 4)),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(16, 8, 5, padding=2),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, c, 5, padding=2),
            nn.Sigmoid(),
        )

    def condition(self, z: Tensor, labels: Tensor) -> Tensor:
        """Concatenate (n, latent) latents and one-hot labels to (n, latent + classes)."""
        return torch.cat([z, F.one_hot(labels, self.classes).to(z.dtype)], 1)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map (n, latent) and (n,) int64, or only the result of `condition`, to (n, c, h, w) images in [0, 1]."""
        return self.body(z if labels is None else self.condition(z, labels))
