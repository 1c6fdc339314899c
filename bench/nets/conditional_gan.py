"""Conditional networks of `dp_gan` and other baselines: generators G(z, y) and critics D(x, y) without BatchNorm.

dcgan is the network of Bie, Kamath and Zhang, "Private GANs, Revisited" (TMLR 2023) for 28x28 pixels, extended to other
sizes. Maps are halved, rounding up, until at most 4 pixels are left: 28, 14, 7, 4. Even sizes are halved by a 4x4
kernel, odd sizes by a 3x3 kernel, both of stride 2 and padding 1; the generator doubles by the transposed convolutions.
With d = `width` and m halvings the critic's maps have d, 2d, ..., 2^(m-1) d channels, the generator's the same in
reverse order. In each network, half of the first layer's channels are computed from the label, half from its other
input.

mlp has two hidden layers in each network. The label is appended to z, and selects one of the critic's outputs; appended
to the pixels it had no effect. Leaky ReLU 0.2 throughout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.nets.generators import Shape, check_square

SLOPE, LAST_MAP = 0.2, 4


def halvings(size: int) -> list[int]:
    """Return the sizes of the maps from the image's down to at most 4 pixels.

    >>> halvings(28), halvings(16)
    ([28, 14, 7, 4], [16, 8, 4])
    """
    sizes = [size]
    while sizes[-1] > LAST_MAP:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes


def _kernel(larger: int) -> int:
    return 4 if larger % 2 == 0 else 3


class DcganGenerator(nn.Module):
    """Transposed convolutions that make images in [0, 1].

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        classes: number of labels.
        latent: length of z.
        width: d, even.

    Raises:
        BenchError: an unsupported image size.
    """

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        self.classes = classes
        sizes = halvings(shape[1])[::-1]
        channels = width << (len(sizes) - 2)
        self.of_latent = nn.ConvTranspose2d(latent, channels // 2, sizes[0])
        self.of_label = nn.ConvTranspose2d(classes, channels // 2, sizes[0])
        layers: list[nn.Module] = []
        for larger in sizes[1:-1]:
            layers += [nn.ConvTranspose2d(channels, channels // 2, _kernel(larger), 2, 1), nn.LeakyReLU(SLOPE)]
            channels //= 2
        self.grow = nn.Sequential(*layers, nn.ConvTranspose2d(channels, shape[0], 4, 2, 1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Map (n, latent), (n,) int64 to (n, c, h, w) in [0, 1]."""
        label = F.one_hot(y, self.classes).to(z.dtype)
        start = torch.cat([self.of_latent(z[:, :, None, None]), self.of_label(label[:, :, None, None])], 1)
        return (torch.tanh(self.grow(F.leaky_relu(start, SLOPE))) + 1) / 2


class DcganCritic(nn.Module):
    """Strided convolutions to one logit, the reverse of `DcganGenerator`; the label enters as constant planes."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        check_square(shape)
        super().__init__()
        sizes = halvings(shape[1])
        self.size = shape[1]
        self.of_image = nn.Conv2d(shape[0], width // 2, 4, 2, 1)
        self.of_label = nn.Conv2d(classes, width // 2, 4, 2, 1)
        layers: list[nn.Module] = []
        for larger in sizes[1:-1]:
            layers += [nn.Conv2d(width, 2 * width, _kernel(larger), 2, 1), nn.LeakyReLU(SLOPE)]
            width *= 2
        self.shrink = nn.Sequential(*layers, nn.Conv2d(width, 1, sizes[-1]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, c, h, w), (n, classes) float one-hot rows to (n,) logits of being real."""
        planes = y[:, :, None, None].expand(-1, -1, self.size, self.size)
        seen = F.leaky_relu(torch.cat([self.of_image(x), self.of_label(planes)], 1), SLOPE)
        return self.shrink(seen).flatten()


class MlpGenerator(nn.Module):
    """A dense generator: (z, y) through hidden layers of 2 and 4 times `width` to images in [0, 1] of any size."""

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        c, h, w = shape
        self.layers = nn.Sequential(
            nn.Linear(latent + classes, 2 * width),
            nn.LeakyReLU(SLOPE),
            nn.Linear(2 * width, 4 * width),
            nn.LeakyReLU(SLOPE),
            nn.Linear(4 * width, c * h * w),
            nn.Sigmoid(),
            nn.Unflatten(1, shape),
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Map (n, latent), (n,) int64 to (n, c, h, w) in [0, 1]."""
        return self.layers(torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1))


class MlpCritic(nn.Module):
    """A dense critic: hidden layers of `width` and half of it, then one output per class.

    The label selects the output.
    """

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        c, h, w = shape
        self.layers = nn.Sequential(
            nn.Linear(c * h * w, width),
            nn.LeakyReLU(SLOPE),
            nn.Linear(width, width // 2),
            nn.LeakyReLU(SLOPE),
            nn.Linear(width // 2, classes),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Map (n, c, h, w), (n, classes) float one-hot rows to (n,) logits of being real."""
        return (self.layers(x.flatten(1)) * y).sum(1)

    def linear_names(self) -> list[str]:
        """Return the names of the linear layers, in order."""
        return [name for name, layer in self.named_modules() if isinstance(layer, nn.Linear)]

    def traced(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return every linear layer's (n, inputs) and (n, outputs), in order, for (n, c, h, w) images."""
        inputs, outputs, h = [], [], x.flatten(1)
        for layer in self.layers:
            before, h = h, layer(h)
            if isinstance(layer, nn.Linear):
                inputs.append(before)
                outputs.append(h)
        return inputs, outputs


def build(
    name: str, shape: Shape, classes: int, latent: int, generator_width: int, critic_width: int
) -> tuple[nn.Module, nn.Module]:
    """Build the generator and the critic of the family `name`: "mlp", or "dcgan" for any other name.

    Args:
        generator_width, critic_width: `width` of each network; even for dcgan.
    """
    if name == "mlp":
        return MlpGenerator(shape, classes, latent, generator_width), MlpCritic(shape, classes, critic_width)
    return DcganGenerator(shape, classes, latent, generator_width), DcganCritic(shape, classes, critic_width)
