"""two small convolutions on finer scattering features, 81 maps a channel, normalised image by image"""

from __future__ import annotations

from torch import nn

from bench.nets.small_net import SmallNet
from bench.nets.wavelet_nets import EqualRows, check_shape, feature_maps

GREY, COLOUR, HIDDEN = (16, 32), (64, 64), 32
"""Channels of the two convolutions, for grey and for colour images; units of the dense layer for grey images."""


class WaveletCnn(SmallNet):
    """The convolutions of Tramer and Boneh (ICLR 2021) on their scattering features; `trunk[0]` has no weights.

    Grey images: 16 maps at stride 2, 32 maps, and a layer of 32 units. Colour images: 64 maps, max-pooling, 64 maps.
    tanh activations.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        check_shape("wavelet-cnn", shape)
        features, (maps, height, width) = feature_maps(shape)
        if shape[0] == 1:
            first, second = GREY
            size = second * -(-height // 2) * -(-width // 2)
            layers = [nn.Conv2d(maps, first, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(first, second, 3, padding=1)]
            layers += [nn.Tanh(), nn.Flatten(), nn.Linear(size, HIDDEN), nn.Tanh()]
        else:
            first, second = COLOUR
            size = second * (height // 2) * (width // 2)
            layers = [nn.Conv2d(maps, first, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
            layers += [nn.Conv2d(first, second, 3, padding=1), nn.Tanh(), nn.Flatten()]
        self.trunk = nn.Sequential(nn.Sequential(features, EqualRows()), *layers)
        self.head = nn.Linear(HIDDEN if shape[0] == 1 else size, classes)
