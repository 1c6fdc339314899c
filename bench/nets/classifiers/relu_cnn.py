"""DP-SGD's network for grey images, two convolutions, with ReLU"""

from __future__ import annotations

from torch import nn

from bench.nets.dp_sgd_nets import PrivateNet


class ReluCnn(PrivateNet):
    """`PrivateNet` with ReLU."""

    activation = nn.ReLU
