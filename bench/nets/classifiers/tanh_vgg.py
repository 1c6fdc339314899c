"""DP-SGD's network for colour images, six convolutions, with tempered sigmoids, by default tanh"""

from __future__ import annotations

from bench.nets.dp_sgd_nets import PrivateVgg


class TanhVgg(PrivateVgg):
    """`PrivateVgg` with tanh."""
