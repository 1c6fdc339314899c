"""Base class of the bench's own classifiers: a trunk followed by one linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from bench.errors import Incompatible


class SmallNet(nn.Module):
    """A classifier that ends in one linear layer: `forward(x) == head(features(x))`.

    Attributes:
        trunk: maps (n, c, h, w) to (n, d).
        head: maps (n, d) to (n, classes).
    """

    trunk: nn.Sequential
    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d), the input of the last linear layer."""
        return self.trunk(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, classes) logits."""
        return self.head(self.features(x))


def at_least(name: str, side: int, height: int, width: int) -> None:
    """Refuse images with a side below `side` pixels. Raises BenchError naming the network."""
    if min(height, width) < side:
        raise Incompatible(
            f"the network {name} takes images of at least {side}x{side}, not {height}x{width}: use another one"
        )
