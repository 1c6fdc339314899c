"""Networks and steps of GANs that know the target's classes. Shared by attacks; not an attack.

`ClassCritic` is the discriminator of KED-MI (Chen et al., ICCV 2021): class outputs and minibatch discrimination
(Salimans et al., NeurIPS 2016, section 3.2). `ConditionalGenerator` and `ProjectionCritic` are the pair of PLG-MI (Yuan
et al., AAAI 2023): residual networks with class-conditional batch normalisation and with spectral normalisation and a
projection of the class (Miyato and Koyama, ICLR 2018; Miyato et al., ICLR 2018).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, relu
from torch.nn.utils.parametrizations import spectral_norm

from bench.nets.generators import Shape, check_square, doublings

_CLASS_MAP, _PROJECTION_MAP = 4, 3


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of `optimiser` against the gradient of `loss` in its own parameters alone."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimiser.step()


class MinibatchDiscrimination(nn.Module):
    """How close every image is to the other images of its batch.

    With M_b(x) the b-th of `kernels` linear codes of length `length`, the output for x_i is
    o_b(x_i) = sum over the others x_j of exp(-||M_b(x_i) - M_b(x_j)||_1).

    The weights start so small that the distance of two images is of order 1 for features of order 1. Weights of order 1
    make distances of hundreds, all exponentials 0, and the layer can never learn.

    Args:
        features: length of the input.
    """

    def __init__(self, features: int, kernels: int, length: int) -> None:
        super().__init__()
        self.kernels, self.length = kernels, length
        self.project = nn.Linear(features, kernels * length, bias=False)
        nn.init.normal_(self.project.weight, std=1 / (length * math.sqrt(features)))

    def codes(self, h: Tensor) -> Tensor:
        """M: (n, features) to (kernels, n, length), float32."""
        return self.project(h).float().view(-1, self.kernels, self.length).transpose(0, 1)

    def forward(self, h: Tensor, beside: Tensor | None = None) -> Tensor:
        """o: (n, features) to (n, kernels).

        Args:
            beside: (kernels, m, length) codes of other images to be compared with; None compares the batch with itself.
        """
        codes = self.codes(h)
        if beside is not None:
            return torch.cdist(codes, beside, p=1).neg().exp().sum(2).T
        return torch.cdist(codes, codes, p=1).neg().exp().sum(2).T - 1


class ClassCritic(nn.Module):
    """The discriminator of KED-MI, for other sizes too (card, network KED D32).

    5x5 convolutions of stride 2 halve the map (rounding up) until at most 4 pixels are left, with d, 2d, 4d, ...
    channels, each followed by affine instance normalisation and leaky ReLU 0.2; these are the features h. Minibatch
    discrimination is appended to h, and a linear layer makes one logit per class; "fake" has the fixed logit 0.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        width: d.
        kernels, length: of the minibatch discrimination.

    Raises:
        BenchError: a size it cannot take.
    """

    def __init__(self, shape: Shape, classes: int, width: int, kernels: int, length: int) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        layers: list[nn.Module] = []
        outputs = width
        while size > _CLASS_MAP:
            layers += [
                nn.Conv2d(inputs, outputs, 5, stride=2, padding=2),
                nn.InstanceNorm2d(outputs, affine=True),
                nn.LeakyReLU(0.2),
            ]
            inputs, outputs, size = outputs, 2 * outputs, (size + 1) // 2
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.minibatch = MinibatchDiscrimination(inputs * size**2, kernels, length)
        self.last = nn.Linear(inputs * size**2 + kernels, classes)

    def features(self, x: Tensor) -> Tensor:
        """h: (n, c, h, w) to (n, features); images do not affect each other."""
        return self.body(x)

    def head(self, h: Tensor, beside: Tensor | None = None) -> Tensor:
        """d: (n, features) to (n, classes) logits, compared with the batch itself or with the codes `beside`."""
        return self.last(torch.cat([h, self.minibatch(h, beside).to(h.dtype)], 1))

    def codes(self, x: Tensor) -> Tensor:
        """The codes of images (m, c, h, w), to be compared with."""
        return self.minibatch.codes(self.features(x))

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """(n, c, h, w) to (n, classes) logits; with `beside`, images do not affect each other."""
        return self.head(self.features(x), beside)


class ClassBatchNorm(nn.Module):
    """Batch normalisation with a scale and a shift of each channel for every class, at the start 1 and 0."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(n, channels, h, w) of classes (n,)."""
        return self.scale(y)[:, :, None, None] * self.norm(x) + self.shift(y)[:, :, None, None]


def _conv(inputs: int, outputs: int, kernel: int, gain: float = math.sqrt(2)) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.xavier_uniform_(conv.weight, gain)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


class _Grow(nn.Module):
    """A residual block that doubles the map."""

    def __init__(self, inputs: int, outputs: int, classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([ClassBatchNorm(inputs, classes), ClassBatchNorm(outputs, classes)])
        self.first, self.second = _conv(inputs, outputs, 3), _conv(outputs, outputs, 3)
        self.skip = _conv(inputs, outputs, 1, gain=1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(interpolate(relu(self.norms[0](x, y)), scale_factor=2))
        h = self.second(relu(self.norms[1](h, y)))
        return h + interpolate(self.skip(x), scale_factor=2)


class ConditionalGenerator(nn.Module):
    """The generator of PLG-MI: latent vectors and classes to images in [0, 1].

    A linear layer makes a small map, `doublings(h)` residual blocks double it, from 2^doublings d channels to d; then
    batch normalisation, ReLU, a 3x3 convolution and a sigmoid. For 64 pixels the channels are 16d, 8d, 4d, 2d, d.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        latent: length of a latent vector.
        width: d.

    Raises:
        BenchError: a size it cannot make.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        self.latent = latent
        stages = doublings(shape[1])
        size = shape[1] >> stages
        widths = [width << stage for stage in range(stages, -1, -1)]
        start = nn.Linear(latent, widths[0] * size**2)
        nn.init.xavier_uniform_(start.weight)
        self.start = nn.Sequential(start, nn.Unflatten(1, (widths[0], size, size)))
        self.grow = nn.ModuleList(_Grow(a, b, classes) for a, b in pairwise(widths))
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), _conv(width, shape[0], 3, gain=1.0), nn.Sigmoid())

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """(n, latent) and classes (n,) to (n, c, h, w) in [0, 1]."""
        x = self.start(z)
        for block in self.grow:
            x = block(x, y)
        return self.last(x)


class _Shrink(nn.Module):
    """A residual block that halves the map, rounding down; the first one takes images, which have no activation."""

    def __init__(self, inputs: int, outputs: int, first: bool) -> None:
        super().__init__()
        middle = outputs if first else inputs
        self.takes_images = first
        self.first, self.second = spectral_norm(_conv(inputs, middle, 3)), spectral_norm(_conv(middle, outputs, 3))
        self.skip = spectral_norm(_conv(inputs, outputs, 1, gain=1.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x if self.takes_images else relu(x))
        return avg_pool2d(self.second(relu(h)), 2) + self.skip(avg_pool2d(x, 2))


class ProjectionCritic(nn.Module):
    """The discriminator of PLG-MI: images and classes to one number each; images do not affect each other.

    Residual blocks halve the map until at most 3 pixels are left, with d, 2d, 4d, ... channels; h is the sum of the
    map's places after a ReLU, and D(x, y) = v . h + b + e_y . h. Every layer, e included, is spectrally normalised.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of classes.
        width: d.

    Raises:
        BenchError: a size it cannot take.
    """

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        blocks: list[nn.Module] = []
        outputs = width
        while size > _PROJECTION_MAP:
            blocks.append(_Shrink(inputs, outputs, first=not blocks))
            inputs, outputs, size = outputs, 2 * outputs, size // 2
        self.body = nn.Sequential(*blocks, nn.ReLU())
        self.score = spectral_norm(nn.Linear(inputs, 1))
        self.embed = spectral_norm(nn.Embedding(classes, inputs))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(n, c, h, w) and classes (n,) to (n,) scores; higher means more like a real image of the class."""
        h = self.body(x).sum((2, 3))
        return self.score(h).squeeze(1) + (self.embed(y) * h).sum(1)
