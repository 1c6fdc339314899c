"""DP-SGD's network for colour images, six convolutions, with ReLU"""

from __future__ import annotations

from torch import nn

from bench.nets.dp_sgd_nets import PrivateVgg


class ReluVgg(PrivateVgg):
    """`PrivateVgg` with ReLU."""

    activation = nn.ReLU
