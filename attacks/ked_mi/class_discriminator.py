"""The discriminator of KED-MI: class outputs and minibatch discrimination.

Chen et al., ICCV 2021; minibatch discrimination: Salimans et al., NeurIPS 2016, section 3.2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bench.nets.generators import Shape, check_square

_SMALLEST_MAP = 4
"""The discriminator halves maps until they are at most this wide."""


class MinibatchDiscrimination(nn.Module):
    """Minibatch discrimination: closeness of every image to the other images of its batch.

    With M_b(x) the b-th of `kernels` linear codes of length `length`, the output for x_i is
    o_b(x_i) = sum over the others x_j of exp(-||M_b(x_i) - M_b(x_j)||_1).

    The initial weights are so small that the distance of two images is of order 1 for features of order 1. With weights
    of order 1 distances are hundreds, all exponentials are 0, and the layer cannot learn.

    Args:
        features: length of the input.
    """

    def __init__(self, features: int, kernels: int, length: int) -> None:
        super().__init__()
        self.kernels, self.length = kernels, length
        self.project = nn.Linear(features, kernels * length, bias=False)
        nn.init.normal_(self.project.weight, std=1 / (length * math.sqrt(features)))

    def codes(self, h: Tensor) -> Tensor:
        """Map (n, features) to the codes M, (kernels, n, length), float32."""
        return self.project(h).float().view(-1, self.kernels, self.length).transpose(0, 1)

    def forward(self, h: Tensor, others: Tensor | None = None) -> Tensor:
        """Map (n, features) to o, (n, kernels).

        Args:
            others: (kernels, m, length) codes of images to compare with; None = compare the batch with itself.
        """
        codes = self.codes(h)
        if others is not None:
            return torch.cdist(codes, others, p=1).neg().exp().sum(2).T
        return torch.cdist(codes, codes, p=1).neg().exp().sum(2).T - 1


class ClassDiscriminator(nn.Module):
    """The discriminator of KED-MI, extended to other image sizes.

    5x5 convolutions of stride 2 halve the map (rounding up) until at most 4 pixels are left, with d, 2d, 4d and, for 64
    pixels, again 4d channels, as in the authors' code, each followed by affine instance normalisation and leaky ReLU
    0.2; these are the features h. Minibatch discrimination is appended to h, and a linear layer makes one logit per
    class; "fake" has the fixed logit 0.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        width: d.
        kernels, length: arguments of the minibatch discrimination.

    Raises:
        BenchError: the image size is not supported.
    """

    def __init__(self, shape: Shape, classes: int, width: int, kernels: int, length: int) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        layers: list[nn.Module] = []
        outputs = width
        while size > _SMALLEST_MAP:
            layers += [
                nn.Conv2d(inputs, outputs, 5, stride=2, padding=2),
                nn.InstanceNorm2d(outputs, affine=True),
                nn.LeakyReLU(0.2),
            ]
            inputs, outputs, size = outputs, min(2 * outputs, 4 * width), (size + 1) // 2
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.minibatch = MinibatchDiscrimination(inputs * size**2, kernels, length)
        self.last = nn.Linear(inputs * size**2 + kernels, classes)

    def features(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) to the features h, (n, features); images do not affect each other."""
        return self.body(x)

    def head(self, h: Tensor, others: Tensor | None = None) -> Tensor:
        """Map features to (n, classes) logits; images are compared with the batch or with the codes `others`."""
        return self.last(torch.cat([h, self.minibatch(h, others).to(h.dtype)], 1))

    def codes(self, x: Tensor) -> Tensor:
        """Return the (kernels, m, length) codes of (m, c, h, w) images, to be passed as `others`."""
        return self.minibatch.codes(self.features(x))

    def forward(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        """Map (n, c, h, w) to (n, classes) logits; with `others`, images do not affect each other."""
        return self.head(self.features(x), others)
