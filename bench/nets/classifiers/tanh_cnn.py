"""DP-SGD's network for grey images, two convolutions, with tempered sigmoids, by default tanh"""

from __future__ import annotations

from bench.nets.dp_sgd_nets import PrivateNet


class TanhCnn(PrivateNet):
    """`PrivateNet` with tanh."""
