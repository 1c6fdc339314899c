"""The teachers of `datalens`: stacks of independent discriminators of labelled images, evaluated together."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.generators import Shape

SLOPE = 0.2


class Convolutions(nn.Module):
    """n discriminators of two 5x5 convolutions of stride 2 and two dense layers, leaky ReLU; smaller than G-PATE's.

    The label enters as constant planes before both convolutions, and appended before both dense layers.

    Args:
        count: n.
        shape: (c, h, w) of the images.
        classes: number of labels.
        width: channels of the second convolution without the label's; the dense layer has 8 times as many units.
    """

    def __init__(self, count: int, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        self.count, self.shape, self.classes = count, shape, classes
        c, h, w = shape
        self.channels = (c + classes, width + classes)
        pixels = math.ceil(h / 4) * math.ceil(w / 4)
        self.first = _weights(count * self.channels[0], c + classes, 5, 5)
        self.second = _weights(count * self.channels[1], self.channels[0] + classes, 5, 5)
        self.third = _weights(count, self.channels[1] * pixels + classes, 8 * width, inputs=1)
        self.last = _weights(count, 8 * width + classes, 1, inputs=1)
        sizes = (count * self.channels[0], count * self.channels[1], (count, 1, 8 * width), (count, 1, 1))
        self.biases = nn.ParameterList([torch.zeros(size) for size in sizes])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, m, d) pixels and (n, m, classes) one-hot labels to (n, m) logits of being real."""
        n, m, _ = x.shape
        maps = x.transpose(0, 1).reshape(m, n, *self.shape)
        labels = y.transpose(0, 1)
        for weight, bias in ((self.first, self.biases[0]), (self.second, self.biases[1])):
            planes = labels[..., None, None].expand(-1, -1, -1, *maps.shape[-2:])
            joined = torch.cat([maps, planes], 2).flatten(1, 2)
            maps = F.leaky_relu(F.conv2d(joined, weight, bias, 2, 2, groups=n), SLOPE).unflatten(1, (n, -1))
        flat = torch.cat([maps.flatten(2).transpose(0, 1), y], 2)
        hidden = F.leaky_relu(flat @ self.third + self.biases[2], SLOPE)
        return (torch.cat([hidden, y], 2) @ self.last + self.biases[3]).squeeze(2)


class Perceptrons(nn.Module):
    """n discriminators of one hidden layer, leaky ReLU, and one logit for each label; the logit of y is returned.

    Args:
        count, shape, classes: as of `Convolutions`.
        width: units of the hidden layer.
    """

    def __init__(self, count: int, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        self.first = _weights(count, math.prod(shape), width, inputs=1)
        self.last = _weights(count, width, classes, inputs=1)
        self.bias = nn.Parameter(torch.zeros(count, 1, width))
        self.offset = nn.Parameter(torch.zeros(count, 1, classes))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, m, d) pixels and (n, m, classes) one-hot labels to (n, m) logits of being real."""
        hidden = F.leaky_relu(x @ self.first + self.bias, SLOPE)
        return ((hidden @ self.last + self.offset) * y).sum(2)


def _weights(*shape: int, inputs: int = 0) -> nn.Parameter:
    """Draw normal weights of deviation sqrt(2 / fan-in).

    Args:
        shape: of the weights.
        inputs: dimension that is the fan-in; 0 = all dimensions except the first.
    """
    fan = shape[inputs] if inputs else math.prod(shape[1:])
    return nn.Parameter(torch.randn(*shape) * math.sqrt(2 / fan))
